"""A user's model in JAX's libraries: what its function comes to, that it is the torch model where it should be, and
what is said when it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from detente.records.contract import CONTRACTS
from detente.records.fault import UsageFault
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.own import in_jax, in_torch
from detente.workloads.weights import to_canonical, to_framework

MLP = Path(__file__).parents[2] / "examples/mlp"
LIBRARIES = {
    "nnx": "flax.nnx",
    "linen": "flax.linen",
    "equinox": "equinox",
    "haiku": "haiku",
    "keras": "keras",
}
CONTRACT = CONTRACTS["gradient"].at("fp64")


def sides(pair: str, contract=CONTRACT):
    """(arrays of the torch side, its loss, outputs and gradients, and the JAX side of a pair), all in float64."""
    workload = find_workload(pair)
    size = find_size(workload, None)
    module = in_torch.build(size).double()
    arrays = workload.batch(size, np.random.default_rng(0))
    given = {
        n: t.double() if t.is_floating_point() else t
        for n, a in arrays.items()
        if (t := torch.from_numpy(a)) is not None
    }
    before = {n: p.detach().numpy().copy() for n, p in module.state_dict().items() if p.is_floating_point()}
    loss, outputs = in_torch.loss(module, given)
    loss.backward()
    gradients = {n: p.grad.numpy() for n, p in module.named_parameters()}
    known = replace(size, other=in_torch.side(module))
    after = {n: b.numpy() for n, b in module.named_buffers() if b.is_floating_point()}
    return arrays, before, loss.item(), outputs, gradients, after, known, contract


def jax_side(arrays, before, known, contract=CONTRACT):
    """(loss, outputs, gradients and state of the JAX side) on the same weights and batch."""
    parts = in_jax.parts(known, contract)
    params, rest = parts.drawn()
    leaves = to_framework(parts.rules, before)
    params, rest = (
        parts.filled(s, lambda path, old: jax.numpy.asarray(leaves[path]) if path in leaves else old)
        for s in (params, rest)
    )
    batch = {
        n: jax.numpy.asarray(a, "float64" if a.dtype.kind == "f" else None)
        for n, a in parts.arranged(arrays).items()
    }
    (loss, (outputs, after)), found = jax.value_and_grad(parts.loss, has_aux=True)(params, rest, batch)
    names = set(params)
    rules = [r for r in parts.rules if r.path in names]
    gradients = to_canonical(rules, {p: np.asarray(a) for p, a in found.items()})
    others = [r for r in parts.rules if r.path not in names]
    state = (
        to_canonical(others, {p: np.asarray(after[p]) for p in (r.path for r in others)}) if others else {}
    )
    return float(loss), outputs, gradients, state, parts


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_tutorials_mlp_is_torchs_in_every_library(library):
    pair = f"{MLP}/in_torch.py:make,{MLP}/in_{library}.py:make"
    with jax.enable_x64(True):
        arrays, before, loss, outputs, gradients, _, known, _ = sides(pair)
        found, theirs, grads, _, parts = jax_side(arrays, before, known)
    assert parts.function.library == LIBRARIES[library]
    assert found == pytest.approx(loss, rel=1e-12)
    assert np.allclose(theirs["logits"], outputs["logits"].detach().numpy(), rtol=1e-11, atol=1e-12)
    assert grads.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert np.abs(grads[name] - gradient).max() <= 1e-12, name


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_made_again_has_the_same_names(library):
    size = find_size(find_workload(f"{MLP}/in_{library}.py:make"), None)
    first, again = (
        {t.name: t.shape for t in in_jax.parts(size, CONTRACTS["gradient"]).tensors()} for _ in range(2)
    )
    assert first == again and len(first) == 6


COUNTED_KERAS = """
import keras, numpy as np

class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(4), keras.layers.Dropout(0.1)]
        self.named = {"norm": keras.layers.LayerNormalization()}

    def build(self, shape):
        self.scale = self.add_weight(shape=(4,))
        self.free = keras.Variable(np.ones(4, "float32"))
        self.late = keras.layers.Dense(4)
        self.late.build(shape)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return self.late(self.named["norm"](x)) * self.scale * self.free

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.both = keras.layers.Bidirectional(keras.layers.LSTM(2, name=None))
        self.block, self.mine = Block(), keras.layers.Dense(3, name="my_dense_3")

    def call(self, x):
        return self.mine(self.block(self.both(x)))

def make(dropout=0.0):
    return Net(), lambda model, x: keras.ops.mean(model(x) ** 2), np.ones((2, 3, 4), "float32")
"""


def test_what_keras_counts_over_the_process_is_counted_over_the_model(write):
    size = find_size(find_workload(f"{write(COUNTED_KERAS, 'counted.py')}:make"), None)
    both = [in_jax.parts(size, CONTRACTS["gradient"]) for _ in range(3)]
    names = [sorted((t.name, t.shape) for t in parts.tensors()) for parts in both]
    assert names[0] == names[1] == names[2]
    said = {name for name, _ in names[0]}
    assert len(said) == len(names[0]) == 17
    assert {
        "net.block.variable",
        "net.block.variable_1",
        "net.block.dense_1.kernel",
        "net.my_dense_3.bias",
    } <= said
    assert "net.bidirectional.backward_lstm.lstm_cell.kernel" in said
    assert both[2].function.owners["net.block.dense_1.kernel"] == "keras.Dense"


def test_dropout_in_a_list_of_a_keras_layer_is_switched_off(write):
    text = COUNTED_KERAS.replace("dropout=0.0", "").replace(
        "name=None", "dropout=0.5, recurrent_dropout=0.25"
    )
    size = find_size(find_workload(f"{write(text, 'dropped.py')}:make"), None)
    loaded = in_jax.load(size)
    in_jax.functional(loaded, "file", loaded.batch, training=True, dropout=False)
    assert [part.rate for part in loaded.model.block.parts[1:]] == [0.0]
    inside = loaded.model.both.forward_layer
    assert (inside.dropout, inside.recurrent_dropout) == (0.0, 0.0)


def test_a_keras_layer_that_keeps_its_rate_is_named(write):
    stubborn = "class Stubborn(keras.layers.Layer):\n    rate = property(lambda self: 0.5)\n\nclass Net"
    text = COUNTED_KERAS.replace("dropout=0.0", "").replace("class Net", stubborn)
    text = text.replace("self.block, self.mine", "self.stubborn = Stubborn()\n        self.block, self.mine")
    size = find_size(find_workload(f"{write(text, 'stubborn.py')}:make"), None)
    loaded = in_jax.load(size)
    with pytest.raises(UsageFault, match=r"layer 'stubborn' \(Stubborn\) cannot be set: {'rate': 0.5}"):
        in_jax.functional(loaded, "file", loaded.batch, training=True, dropout=False)


@pytest.mark.parametrize("library", LIBRARIES)
def test_owners_are_seen_in_every_library(library):
    target = f"{MLP}/in_{library}.py:make"
    parts = in_jax.parts(find_size(find_workload(target), None), CONTRACTS["train-step"])
    owners = {t.owner for t in parts.tensors()}
    assert len(owners) == 1 and owners.pop().endswith(("Linear", "Dense")), parts.tensors()
    assert len(parts.tensors()) == 6 and all(t.trained for t in parts.tensors())


BATCH_NORM = """
import torch

def make(channels=4):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 3, padding=1), torch.nn.BatchNorm2d(channels), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(channels * 64, 5))
    def loss(model, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)
    return model, loss, (torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,)))
"""
BATCH_NORM_NNX = """
import numpy as np
import optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, channels, rngs):
        self.conv = nnx.Conv(3, channels, (3, 3), padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, rngs=rngs)
        self.head = nnx.Linear(channels * 64, 5, rngs=rngs)
    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        # torch flattens channels first
        return self.head(x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1))

def loss(model, batch):
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

def make(channels=4):
    return Net(channels, nnx.Rngs(0)), loss, (np.zeros((6, 8, 8, 3), "float32"), np.zeros(6, int))
"""
BATCH_NORM_LINEN = """
import flax.linen as nn
import jax
import numpy as np
import optax

class Net(nn.Module):
    channels: int
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.channels, (3, 3), padding=1)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)(x))
        return nn.Dense(5)(x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1))

def make(channels=4):
    net, images = Net(channels), np.zeros((6, 8, 8, 3), "float32")
    def loss(variables, batch):
        images, labels = batch
        logits, new = net.apply(variables, images, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), {"logits": logits, **new}
    return net.init(jax.random.key(0), images), loss, (images, np.zeros(6, int))
"""


@pytest.fixture
def write(tmp_path):
    def into(text: str, name: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return into


@pytest.mark.parametrize("other", ["nnx", "linen"])
def test_running_statistics_and_channels_last_pictures(write, other):
    text = {"nnx": BATCH_NORM_NNX, "linen": BATCH_NORM_LINEN}[other]
    pair = f"{write(BATCH_NORM, f'bn_torch_{other}.py')}:make,{write(text, f'bn_{other}.py')}:make"
    with jax.enable_x64(True):
        arrays, before, loss, _, gradients, after, known, _ = sides(pair)
        found, _, grads, state, _ = jax_side(arrays, before, known)
    assert found == pytest.approx(loss, rel=1e-7)  # Flax takes a variance by its fast form
    assert np.abs(grads["0.weight"] - gradients["0.weight"]).max() <= 1e-6
    assert state["1.running_mean"] == pytest.approx(after["1.running_mean"], abs=1e-7)


RESIDUAL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.up, self.down = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x).float()), approximate="tanh"))

def make(layers=3):
    blocks = torch.nn.ModuleList([Block() for _ in range(layers)])
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(6, 6), "blocks": blocks})
    def loss(model, x):
        x = model["first"](x)
        for block in model["blocks"]:
            x = block(x)
        return x.square().mean()
    return model, loss, torch.randn(4, 6)
"""
SCANNED = """
import jax
import numpy as np
from flax import nnx

class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.up, self.down = nnx.Linear(6, 12, rngs=rngs), nnx.Linear(12, 6, rngs=rngs)
    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(self.norm(x).astype("float32"))))

class Model(nnx.Module):
    def __init__(self, layers, rngs):
        self.first = nnx.Linear(6, 6, rngs=rngs)
        made = nnx.split_rngs(splits=layers)(nnx.vmap(Block, in_axes=0, out_axes=0))
        self.blocks = made(rngs)
    def __call__(self, x):
        step = nnx.scan(lambda x, block: block(x).astype(x.dtype), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return step(self.first(x), self.blocks)

def make(layers=3):
    return Model(layers, nnx.Rngs(0)), lambda m, x: (m(x) ** 2).mean(), np.random.randn(4, 6)
"""


def test_layers_in_one_stack_are_torchs_list(write):
    """``nnx.scan`` over layers that ``nnx.vmap`` made, beside a ModuleList; both narrow on their way."""
    pair = f"{write(RESIDUAL, 'res_torch.py')}:make,{write(SCANNED, 'res_nnx.py')}:make"
    with jax.enable_x64(True):
        arrays, before, loss, _, gradients, _, known, _ = sides(pair)
        found, _, grads, _, parts = jax_side(arrays, before, known)
    assert {r.layer for r in parts.rules if r.path[0] == "blocks"} == {0, 1, 2}
    assert abs(found - loss) < 1e-12 * abs(loss)
    assert grads.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert np.abs(grads[name] - gradient).max() <= 1e-12, name


def test_dimensions_are_arguments_of_both_functions(write):
    pair = f"{write(BATCH_NORM, 'dims_torch.py')}:make,{write(BATCH_NORM_NNX, 'dims_nnx.py')}:make"
    workload = find_workload(pair)
    size = find_size(workload, "own,channels=6")
    assert dict(size.dims) == {"channels": 6, "dropout": 1} and workload.proved_at(size) == "own,channels=6"
    module = in_torch.build(size)
    assert module[0].out_channels == 6
    parts = in_jax.parts(replace(size, other=in_torch.side(module)), CONTRACTS["train-step"])
    assert {r.name for r in parts.rules} == {n for n in module.state_dict() if "num_batches" not in n}
    with pytest.raises(UsageFault, match="has no dimension 'chanels'; did you mean 'channels'"):
        find_size(workload, "own,chanels=6")


def test_a_state_beside_an_equinox_model_trains(write):
    text = """
import equinox as eqx
import jax
import numpy as np

class Counted(eqx.Module):
    layer: eqx.nn.Linear
    seen: eqx.nn.StateIndex
    def __init__(self, key):
        self.layer = eqx.nn.Linear(3, 2, key=key)
        self.seen = eqx.nn.StateIndex(jax.numpy.zeros(()))
    def __call__(self, x, state):
        return jax.vmap(self.layer)(x), state.set(self.seen, state.get(self.seen) + 1.0)

def make():
    model, state = eqx.nn.make_with_state(Counted)(jax.random.key(0))
    def loss(model, state, batch):
        y, state = model(batch, state)
        return (y ** 2).mean(), state
    return (model, state), loss, np.random.randn(4, 3)
"""
    target = f"{write(text, 'counted.py')}:make"
    parts = in_jax.parts(find_size(find_workload(target), None), CONTRACTS["train-step"])
    params, rest = parts.drawn()
    assert len(rest) == 1 and len(params) == 2
    for expected in (1.0, 2.0):
        _, (_, rest) = parts.loss(params, rest, parts.arranged({"0": np.ones((4, 3), np.float32)}))
        assert float(next(iter(rest.values()))) == expected


FLAX = "import jax\nfrom flax import nnx\nimport numpy as np\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def make():\n    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))",
            "returned a flax.nnx.*Linear|returned a Linear",
        ),
        ("def make():\n    return nnx.Linear(2, 2, rngs=nnx.Rngs(0)), 3, np.ones(2)", "loss is a int"),
        (
            "def make():\n    return nnx.Dropout(0.1), lambda m, b: b.sum(), np.ones(2)",
            "no parameter that is trained",
        ),
        ("def make():\n    return 'model', lambda m, b: 0, nnx and np.ones(2)", "the model is a str"),
        (
            "def make():\n    m = nnx.Linear(2, 2, rngs=nnx.Rngs(0))\n    return m, lambda m, b: m(b), np.ones((3, 2))",
            r"the loss returned an array of shape \(3, 2\), not one number",
        ),
        (
            "def make():\n    m = nnx.Linear(2, 2, rngs=nnx.Rngs(0))\n    return m, len, np.ones(2), ('a', 'b')",
            "returned 2 optimizers",
        ),
        ("def make():\n    raise ValueError('no data', nnx)", r"wrong_5.py:5 raised ValueError"),
        (
            "def make():\n    m = nnx.Linear(2, 2, rngs=nnx.Rngs(0))\n    return m, lambda m, b: 0., jax.random.key(0)",
            "is no array of numbers",
        ),
    ],
)
def test_what_is_wrong_is_said(write, body, said, request):
    name = "wrong_5.py" if "ValueError" in body else f"wrong_{abs(hash(body))}.py"
    target = f"{write(FLAX + body, name)}:make"
    size = find_size(find_workload(target), None)
    with pytest.raises(UsageFault, match=said):
        parts = in_jax.parts(size, CONTRACTS["train-step"])
        params, rest = parts.drawn()
        parts.loss(params, rest, parts.arranged({"0": np.ones((3, 2), np.float32)}))


def test_an_optimizer_that_does_not_start_from_zeros_is_refused(write):
    text = FLAX + (
        "import optax\n"
        "def make():\n    tx = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)\n"
        "    return nnx.Linear(2, 2, rngs=nnx.Rngs(0)), lambda m, b: m(b).sum(), np.ones((3, 2)), tx\n"
    )
    with pytest.raises(UsageFault, match="does not start from zeros"):
        in_jax.parts(
            find_size(find_workload(f"{write(text, 'injected.py')}:make"), None), CONTRACTS["train-step"]
        )


def test_a_pair_wants_both_optimizers_or_none(write):
    text = (MLP / "in_nnx.py").read_text().replace("loss, rows", "loss, rows, optax.adam(1e-3)")
    pair = f"{MLP}/in_torch.py:make,{write(text, 'with_adam.py')}:make"
    size = find_size(find_workload(pair), None)
    known = replace(size, other=in_torch.side(in_torch.build(size)))
    with pytest.raises(UsageFault, match=r"gives one optimizer of its own and .* none"):
        in_jax.parts(known, CONTRACTS["train-step"])


def test_weights_that_do_not_map_are_listed_with_their_shapes(write):
    text = (MLP / "in_nnx.py").read_text().replace("nnx.Linear(64, 10,", "nnx.Linear(64, 12,")
    pair = f"{MLP}/in_torch.py:make,{write(text, 'twelve.py')}:make"
    size = find_size(find_workload(pair), None)
    known = replace(size, other=in_torch.side(in_torch.build(size)))
    with pytest.raises(UsageFault, match=r"(?s)4\.weight.*10.*64") as told:
        in_jax.parts(known, CONTRACTS["train-step"])
    assert "third.kernel" in told.value.message + told.value.hint


def test_a_table_in_the_users_file_decides(write):
    renamed = (MLP / "in_nnx.py").read_text()
    for name, other in (("first", "alpha"), ("second", "beta"), ("third", "gamma")):
        renamed = renamed.replace(f"self.{name}", f"self.{other}")
    renamed = renamed.replace("nnx.Linear(32, 64", "nnx.Linear(64, 64").replace("(64, 10,", "(64, 64,")
    torch_text = (MLP / "in_torch.py").read_text().replace("Linear(32, 64)", "Linear(64, 64)")
    torch_text = torch_text.replace("Linear(64, 10)", "Linear(64, 64)").replace("(batch, 32)", "(batch, 64)")
    square = f"{write(torch_text, 'square_torch.py')}:make"

    def known(pair: str):
        size = find_size(find_workload(pair), None)
        return replace(size, other=in_torch.side(in_torch.build(size)))

    with pytest.raises(UsageFault, match="alpha"):
        in_jax.parts(known(f"{square},{write(renamed, 'square.py')}:make"), CONTRACTS["train-step"])
    told = renamed + "\nweights = {'0': 'gamma', '2': 'alpha', '4': 'beta'}\n"
    parts = in_jax.parts(known(f"{square},{write(told, 'square_told.py')}:make"), CONTRACTS["train-step"])
    assert {r.name: r.path[0] for r in parts.rules if r.name.endswith("weight")} == {
        "0.weight": "gamma",
        "2.weight": "alpha",
        "4.weight": "beta",
    }


def test_batches_of_a_pair_that_differ_are_told(write):
    text = (MLP / "in_nnx.py").read_text().replace("(batch, 32)", "(batch, 31)")
    pair = f"{MLP}/in_torch.py:make,{write(text, 'narrow.py')}:make"
    workload = find_workload(pair)
    size = find_size(workload, None)
    known = replace(size, other=in_torch.side(in_torch.build(size)))
    parts = in_jax.parts(known, CONTRACTS["train-step"])
    with pytest.raises(UsageFault, match=r"'x' of the batch has \(64, 31\) .* and \(64, 32\)"):
        parts.arranged(workload.batch(size, np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import torch\ndef make(): return torch", "torch"),
        ("from flax import nnx\ndef make(): return nnx", "jax"),
        ("import jax\ndef helper(): return jax\ndef make(): return helper()", "jax"),
        ("import torch\nimport equinox\ndef make(): return equinox", "jax"),
        ("import torch\nimport equinox\ndef make(): return torch", "torch"),
        ("def make():\n    import haiku as hk\n    return hk", "jax"),
        (
            "from torch.utils.data import DataLoader\nfrom flax import nnx\ndef make(): return DataLoader, nnx",
            "jax",
        ),
        ("import somewhere\ndef make(): return somewhere", "torch"),
        ("import optax\nimport somewhere\ndef make(): return somewhere, optax", "jax"),
        ("import keras\nclass Net(keras.Model): pass\ndef make(): return Net()", "jax"),
    ],
)
def test_a_functions_framework_is_read_without_running_it(write, text, framework):
    target = f"{write(text, f'reads_{abs(hash(text))}.py')}:make"
    assert set(find_size(find_workload(target), None).functions) == {framework}


def test_a_function_is_followed_into_packages_beside_its_file(tmp_path):
    package = tmp_path / "mine" / "models"
    package.mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "from .nets import net\nfrom mine.losses import loss\nimport torch\n"
    )
    (package / "nets.py").write_text("from ..layers import layer\ndef net(): return layer()\n")
    (tmp_path / "mine" / "layers.py").write_text(
        "import torch\nfrom flax import nnx\ndef layer(): return nnx\n"
    )
    (tmp_path / "mine" / "losses.py").write_text("import torch\ndef loss(): return torch\n")
    for text, framework in [
        ("from mine.models import net\ndef make(): return net()", "jax"),
        ("from mine.models.nets import net as n\ndef make(): return n()", "jax"),
        ("from mine.models import nets\ndef make(): return nets.net()", "jax"),
        ("from mine.models import loss\ndef make(): return loss()", "torch"),
        ("import mine.losses\ndef make(): return mine.losses.loss()", "torch"),
    ]:
        file = tmp_path / "bench.py"
        file.write_text(text)
        assert set(find_size(find_workload(f"{file}:make"), None).functions) == {framework}, text


def test_a_model_of_jax_that_nothing_told_of_says_what_to_write(write):
    text = "import importlib\ndef make():\n    keras = importlib.import_module('keras')\n"
    text += "    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), len, {}"
    workload = find_workload(f"{write(text, 'hidden.py')}:make")
    with pytest.raises(UsageFault, match=r"a Sequential of keras, and nothing in the file says so"):
        in_torch.build(find_size(workload, None))


def test_a_function_of_both_frameworks_is_asked_about(write):
    target = write("import torch, equinox\ndef make(): return torch, equinox", "both.py") + ":make"
    with pytest.raises(UsageFault, match="reaches both torch and equinox"):
        find_workload(target)


def test_two_models_of_one_framework_are_no_pair():
    with pytest.raises(UsageFault, match="are both of JAX"):
        find_workload(f"{MLP}/in_nnx.py:make,{MLP}/in_linen.py:make")


def test_models_of_one_file_may_be_a_pair(write):
    text = "import torch\nfrom flax import nnx\ndef one(): return torch\ndef two(): return nnx\n"
    path = write(text, "one_file.py")
    assert find_size(find_workload(f"{path}:one,{path}:two"), None).functions == {
        "torch": f"{path}:one",
        "jax": f"{path}:two",
    }


def test_an_hf_name_with_commas_may_be_of_a_pair():
    pair = f"hf:gpt2?n_layer=2,n_embd=64,{MLP}/in_nnx.py:make"
    assert find_workload(pair).definitions.keys() == {"torch", "flax"}
