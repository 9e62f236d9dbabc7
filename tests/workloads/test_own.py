"""A user's own model: from a file, from a transformers configuration, from a checkpoint; and what is said when it is
wrong. The files and the checkpoint are written here and really loaded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from detente.records.fault import UsageFault
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.own import in_torch
from detente.workloads.own.form import Form
from detente.workloads.own.loaded import ZERO_START, starts_from_zero

PLAIN = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    def loss(model, batch):
        y = model(batch["x"])
        return (y - batch["y"]).square().mean() * batch["weight"], {"y": y}
    batch = {"x": torch.randn(6, 4), "y": torch.randn(6, 1, dtype=torch.float64), "weight": 2.0}
    return model, loss, batch
"""


@pytest.fixture
def write(tmp_path):
    def into(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return into


def opened(target: str):
    workload = find_workload(target)
    size = find_size(workload, None)
    module = in_torch.build(size)
    return workload, size, module


def step(workload, size, module, seed: int = 0):
    arrays = workload.batch(size, np.random.default_rng(seed))
    batch = {n: torch.from_numpy(a) for n, a in arrays.items()}
    loss, outputs = in_torch.loss(module, batch)
    loss.backward()
    return arrays, loss, outputs


def test_a_model_from_a_file_trains(write):
    workload, size, module = opened(write(PLAIN) + ":make")
    arrays, loss, outputs = step(workload, size, module)
    assert module.training
    assert {n: a.dtype.name for n, a in arrays.items()} == {"x": "float32", "y": "float32"}
    y = outputs["y"]
    assert loss.item() == pytest.approx(2 * (y - torch.from_numpy(arrays["y"])).square().mean().item())
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in module.named_parameters() if n[0] == "2"
    )
    assert "detente_own" not in str(module.state_dict().keys())
    assert in_torch.optimizer(module) is None


def test_random_batches_differ_and_follow_the_generator(write):
    workload, size, _ = opened(write(PLAIN) + ":make")
    first, second = (workload.batch(size, np.random.default_rng(i)) for i in (0, 1))
    again = workload.batch(size, np.random.default_rng(1))
    assert not np.array_equal(first["x"], second["x"])
    assert np.array_equal(second["x"], again["x"])


def test_an_optimizer_is_kept_and_updates_the_module(write):
    text = PLAIN.replace(
        "return model, loss, batch", "return model, loss, batch, torch.optim.RMSprop(model.parameters())"
    )
    workload, size, module = opened(write(text) + ":make")
    step(workload, size, module.double().float())  # a stack changes device and dtype in place
    optimizer = in_torch.optimizer(module)
    assert isinstance(optimizer, torch.optim.RMSprop)
    before = module[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, module[0].weight)


def test_an_optimizer_follows_parameters_that_a_device_replaced(write):
    text = PLAIN.replace(
        "return model, loss, batch", "return model, loss, batch, torch.optim.SGD(model.parameters(), lr=1)"
    )
    workload, size, module = opened(write(text) + ":make")
    for part in module:  # as Module.to does for a device whose tensors cannot take the place of the old ones
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, torch.nn.Parameter(parameter.detach().clone()))
    optimizer = in_torch.optimizer(module)
    assert optimizer is not None
    step(workload, size, module)
    before = module[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, module[0].weight)


def test_an_optimizer_of_something_else_is_refused(write):
    made = "torch.optim.SGD(torch.nn.Linear(1, 1).parameters())"
    text = PLAIN.replace("return model, loss, batch", f"return model, loss, batch, {made}")
    with pytest.raises(UsageFault, match="2 parameters that are not the module's"):
        opened(write(text) + ":make")


def descend(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        weight.copy_(torch.linspace(-1, 1, 5))
    for _ in range(3):
        weight.grad = weight.detach() ** 2 + 0.1
        optimizer.step()
    return weight.detach().clone()


@pytest.mark.parametrize(
    ("name", "settings", "zero"),
    [(name, {}, True) for name in ZERO_START]
    + [
        ("SGD", {"momentum": 0.9}, True),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}, False),
        ("Adagrad", {"initial_accumulator_value": 0.1}, False),
        ("NAdam", {}, False),
    ],
)
def test_which_optimizers_start_again_from_zeroed_state(name, settings, zero):
    weight = torch.nn.Parameter(torch.zeros(5))
    optimizer = getattr(torch.optim, name)([weight], lr=0.1, **settings)
    assert starts_from_zero(optimizer) == zero
    fresh = descend(optimizer, weight)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    assert torch.equal(descend(optimizer, weight), fresh) == zero


def test_an_optimizer_that_cannot_start_again_is_refused(write):
    made = "torch.optim.NAdam(model.parameters())"
    text = PLAIN.replace("return model, loss, batch", f"return model, loss, batch, {made}")
    with pytest.raises(UsageFault, match="NAdam with these settings does not start from zeros"):
        opened(write(text) + ":make")


def test_a_data_loader_is_a_stream_of_batches(write):
    text = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.functional import cross_entropy

def make():
    rows = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6) % 3)
    return torch.nn.Linear(2, 3), lambda m, b: cross_entropy(m(b[0]), b[1]), DataLoader(rows, batch_size=2)
"""
    workload, size, module = opened(write(text) + ":make")
    seen = [step(workload, size, module)[0] for _ in range(4)]
    assert [a["0"][0, 0] for a in seen] == [0, 4, 8, 0]  # in order, and from the start again
    assert seen[0]["1"].dtype == np.int64


def test_a_function_may_draw_the_batches(write):
    text = PLAIN.replace(
        "return model, loss, batch", "return model, loss, lambda: batch | {'x': torch.rand(6, 4)}"
    )
    workload, size, module = opened(write(text) + ":make")
    first, second = (step(workload, size, module, seed)[0] for seed in (0, 1))
    assert not np.array_equal(first["x"], second["x"])
    assert np.array_equal(first["y"], second["y"])


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(3),
        (torch.ones(2), torch.zeros(2, dtype=torch.bool)),
        [torch.ones(2), 7],
        {"a": np.ones(2, np.float32), "b": None},
    ],
)
def test_a_batch_is_taken_apart_and_put_together_again(batch):
    form = Form.of(batch)
    back = form.put_together({n: torch.from_numpy(a) for n, a in form.take_apart(batch).items()})
    assert type(back) is type(batch)
    one, two = (
        [x] if isinstance(x, torch.Tensor) else list(x.values() if isinstance(x, dict) else x)
        for x in (batch, back)
    )
    for ours, theirs in zip(one, two, strict=True):
        if isinstance(ours, torch.Tensor | np.ndarray):
            assert np.array_equal(np.asarray(ours), theirs.numpy())
        else:
            assert ours == theirs


WRONG = {
    "def make(): return 1, 2": "returned a tuple of 2",
    "def make(): return {}": "returned a dict",
    "def make(): return 3": "returned an int",
    "def make(): return 1, 2, 3": "module is a int, loss is a int",
    "def make():\n    x = 1\n    return x / 0": r"mine\.py:3 raised ZeroDivisionError",
    "import torch\ndef make(): return torch.nn.Linear(1, 1), print, {'a': [torch.ones(1)]}": "'a' .* is a list",
    "import torch\ndef make(): return torch.nn.Linear(1, 1), print, 5": "has no tensor",
    "raise SystemExit('usage: mine.py DATA')\ndef make(): pass": r"mine\.py:1 raised SystemExit: usage: mine.py DATA",
    "def make(x): return x": "missing 1 required positional argument",
    "raise OSError('no data here')\ndef make(): pass": r"mine\.py:1 raised OSError: no data here",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said(write, text):
    with pytest.raises(UsageFault, match=WRONG[text]):
        opened(write(text) + ":make")


def test_a_loss_that_is_not_one_number_is_refused(write):
    text = "import torch\ndef make(): return torch.nn.Linear(1, 1), lambda m, b: m(b), torch.ones(3, 1)"
    workload, size, module = opened(write(text) + ":make")
    with pytest.raises(UsageFault, match=r"shape \(3, 1\)"):
        step(workload, size, module)


def test_bad_names_are_refused_without_running_the_file(write, tmp_path):
    trap = write("raise SystemExit('it ran')\ndef make_model(): pass")
    with pytest.raises(UsageFault, match="did you mean 'make_model'"):
        find_workload(f"{trap}:make_modle")
    assert find_workload(f"{trap}:make_model").sizes["own"]
    with pytest.raises(UsageFault, match="no such file"):
        find_workload(f"{tmp_path}/none.py:make")
    with pytest.raises(UsageFault, match="is not Python"):
        find_workload(write("def make(:") + ":make")
    with pytest.raises(UsageFault, match="no such file or folder"):
        find_workload("hf:./nowhere")
    with pytest.raises(UsageFault, match="needs a name"):
        find_workload("hf:")
    with pytest.raises(UsageFault, match="batch=0"):
        find_workload("hf:gpt2?batch=0")


def test_the_parent_reads_it_without_a_framework(write):
    code = f"""
import sys
from detente.workloads.catalogue import find_workload
w = find_workload({write(PLAIN) + ":make"!r})
assert w.flops(w.sizes["own"], "gradient") == w.bytes(w.sizes["own"], "forward", 4, 4) == 0
print(sorted(set(sys.modules) & {{"torch", "jax", "transformers", "flax"}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "[]"


TINY = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,vocab_size=99"


@pytest.mark.parametrize(
    ("target", "logits"),
    [
        (f"hf:llama?{TINY},batch=3,sequence=8", (3, 8, 99)),
        (f"hf:bert?{TINY},sequence=8", (2, 8, 99)),
        (
            "hf:t5?d_model=32,d_kv=8,d_ff=64,num_layers=1,num_decoder_layers=1,num_heads=4,vocab_size=99,sequence=8",
            (2, 8, 99),
        ),
        (
            "hf:vit?hidden_size=32,intermediate_size=64,num_hidden_layers=1,num_attention_heads=4,image_size=32",
            (2, 2),
        ),
    ],
)
def test_a_model_type_of_transformers_trains(target, logits):
    workload, size, module = opened(target)
    _, loss, outputs = step(workload, size, module)
    assert outputs["logits"].shape == logits
    assert np.isfinite(loss.item())
    assert sum(p.grad is not None for p in module.parameters()) > 10
    # No dropout is left: the same batch gives the same loss.
    assert step(workload, size, module)[1].item() == loss.item()


def test_a_checkpoint_is_really_loaded(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(11)
    config = GPT2Config(
        vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    saved = GPT2LMHeadModel(config)
    saved.save_pretrained(tmp_path / "checkpoint")
    workload, size, module = opened(f"hf:{tmp_path}/checkpoint?sequence=8")
    assert type(module) is GPT2LMHeadModel
    for name, tensor in saved.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
    arrays, loss, _ = step(workload, size, module)
    ids = torch.from_numpy(arrays["input_ids"])
    wanted = saved.eval()(input_ids=ids, labels=ids).loss  # eval: its own dropout is 0.1
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    # The proof's float64 is not cut to float32 on the way to the loss.
    wide, _ = in_torch.loss(module.double(), {n: torch.from_numpy(a) for n, a in arrays.items()})
    assert wide.dtype == torch.float64


def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path):
    """Random weights in the place of those that are missing would be another model, and nobody would know."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "torn", max_shard_size="40KB")
    shards = sorted((tmp_path / "torn").glob("model-*.safetensors"))
    assert len(shards) > 2
    opened(f"hf:{tmp_path}/torn?sequence=8")
    whole = shards[1].read_bytes()
    shards[1].write_bytes(b"junk")
    with pytest.raises(UsageFault, match="cannot be read: SafetensorError"):
        opened(f"hf:{tmp_path}/torn?sequence=8")
    shards[1].unlink()
    with pytest.raises(UsageFault, match=f"1 of the {len(shards)} files .* are not there: {shards[1].name}"):
        opened(f"hf:{tmp_path}/torn?sequence=8")
    for shard in (tmp_path / "torn").glob("model-*"):
        shard.unlink()
    with pytest.raises(UsageFault, match="files of the checkpoint"):
        opened(f"hf:{tmp_path}/torn?sequence=8")
    shards[1].write_bytes(whole)
    (tmp_path / "torn/model.safetensors.index.json").write_text("[]")
    with pytest.raises(UsageFault, match="is no index of a checkpoint"):
        opened(f"hf:{tmp_path}/torn?sequence=8")


def test_a_config_file_without_weights_is_initialised(tmp_path):
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=99
    ).save_pretrained(tmp_path)
    _, _, module = opened(f"hf:{tmp_path}/config.json?sequence=8")
    assert type(module).__name__ == "LlamaForCausalLM"


def test_what_transformers_does_not_know_is_said():
    with pytest.raises(UsageFault, match="no model type of transformers"):
        opened("hf:gpt22")
    with pytest.raises(UsageFault, match="has no setting 'layers'"):
        opened("hf:llama?layers=2")
