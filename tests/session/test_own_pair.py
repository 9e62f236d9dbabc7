"""A user's own model in sessions: a pair of torch and JAX, JAX alone, and what a failed proof names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sampled import sampled

MLP = Path(__file__).parents[2] / "examples/mlp"
QUICK = ("--blocks", "1", "--no-memory", "--no-aa", "--threads", "1", "--batch", "8", "--format", "json")


def rows_of(done: Any) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return {c["label"]: c for c in json.loads(done.stdout)["cells"]}


def test_a_pair_is_proved_and_compared(detente: Any) -> None:
    pair = f"{MLP}/in_torch.py:make,{MLP}/in_equinox.py:make"
    rows = rows_of(detente("compare", pair, "--stacks", "torch-eager,jax", *QUICK, timeout=600))
    for row in rows.values():
        assert row["status"] == "ok", row["reason"]
        assert row["size"] == "own,batch=8"
        assert (row["parity"]["same_function"], row["parity"]["same_precision"]) == ("passed", "passed")
        assert row["parity"]["function_at"] == "own,batch=8"
        # 8 rows through 32 x 64, 64 x 64 and 64 x 10; the first product has no gradient of the data.
        assert row["floor"] is not None, row
        assert not [f for f in row["findings"] if f["severity"] == "void"]


KERAS_WITH_ADAM = """
import optax
import sys
sys.path.append("{folder}")
import in_keras

def loss(model, batch):
    return in_keras.loss(model, {{"x": batch[0], "y": batch[1]}})

def make(batch=64):
    model, _, rows = in_keras.make(batch)
    return model, loss, (rows["x"], rows["y"]), optax.adam(1e-3)
"""


@pytest.mark.long
def test_a_lightning_module_beside_a_keras_model_is_one_command(detente: Any, tmp_path: Path) -> None:
    file = tmp_path / "keras_side.py"
    file.write_text(KERAS_WITH_ADAM.format(folder=MLP))
    pair = f"{MLP}/in_lightning.py:make,{file}:make"
    rows = rows_of(detente("compare", pair, "--stacks", "torch-eager,jax", *QUICK, timeout=600))
    assert rows.keys() == {"torch-eager", "jax"}
    for row in rows.values():
        assert row["status"] == "ok", row["reason"]
        assert (row["parity"]["same_function"], row["parity"]["same_precision"]) == ("passed", "passed")


@pytest.mark.long
def test_a_model_of_jax_alone_is_held_against_itself(detente: Any) -> None:
    done = detente("compare", f"{MLP}/in_nnx.py:make", *QUICK, timeout=600)
    rows = rows_of(done)
    assert list(rows) == ["jax"] and rows["jax"]["status"] == "ok", rows
    # Nothing was held against another framework, and nothing says so.
    assert rows["jax"]["parity"]["same_function"] == "not checked"
    assert rows["jax"]["parity"]["same_precision"] == "passed"


# The other files of examples/mlp; in_nnx.py is above. Keras counts its layers over the process, and a worker makes the
# model more than once; a torch model alone meets the bridge. What goes the way of in_nnx.py is for the long run.
ALONE = {
    "in_keras": {"jax"},
    "in_torch": {"torch-eager"},
}
ALONE_IN_THE_LONG_RUN = {
    "in_equinox": {"jax"},
    "in_haiku": {"jax"},
    "in_lightning": {"torch-eager", "detente"},
    "in_linen": {"jax"},
}


def test_every_library_has_a_file_that_is_compared_alone() -> None:
    assert {file.stem for file in MLP.glob("in_*.py")} == {*ALONE, *ALONE_IN_THE_LONG_RUN, "in_nnx"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "stacks"),
    [
        *ALONE.items(),
        *(pytest.param(*one, marks=pytest.mark.matrix) for one in ALONE_IN_THE_LONG_RUN.items()),
    ],
)
def test_a_model_of_any_library_is_compared_alone(detente: Any, file: str, stacks: set[str]) -> None:
    asked = ",".join(sorted(stacks))
    rows = rows_of(detente("compare", f"{MLP}/{file}.py:make", "--stacks", asked, *QUICK, timeout=600))
    assert rows.keys() == stacks
    for row in rows.values():
        assert row["status"] == "ok", row["reason"]
        assert row["parity"]["same_precision"] == "passed"
        assert not [f for f in row["findings"] if f["severity"] == "void"]


FAULTS = {
    "a bias that is never added": (
        "        return self.third(nnx.relu(self.second(nnx.relu(self.first(x)))))",
        "        y = nnx.relu(x @ self.first.kernel.get_value())\n"
        "        return self.third(nnx.relu(self.second(y)))",
        "0.bias",
    ),
    "another activation": (
        "nnx.relu(self.second(nnx.relu(self.first(x))))",
        "nnx.relu(self.second(nnx.leaky_relu(self.first(x))))",
        "2.weight",
    ),
}


@pytest.mark.parametrize("fault", sampled(FAULTS, 2))
def test_a_planted_difference_is_named_with_its_layer(detente: Any, tmp_path: Path, fault: str) -> None:
    right, wrong, layer = FAULTS[fault]
    text = (MLP / "in_nnx.py").read_text()
    assert right in text
    file = tmp_path / "wrong.py"
    file.write_text(text.replace(right, wrong))
    pair = f"{MLP}/in_torch.py:make,{file}:make"
    done = detente("compare", pair, "--stacks", "jax", *QUICK, timeout=600)
    row = rows_of(done)["jax"]
    assert row["status"] == "void" and row["parity"]["same_function"] == "failed", row
    named = row["parity"]["layer"]
    assert layer.partition(".")[0] in named and done.returncode == 1, named


@pytest.mark.long
def test_a_model_that_drops_out_is_refused_and_runs_without(detente: Any, tmp_path: Path) -> None:
    text = (
        (MLP / "in_torch.py")
        .read_text()
        .replace("torch.nn.ReLU(),", "torch.nn.ReLU(), torch.nn.Dropout(0.1),")
    )
    file = tmp_path / "drops.py"
    file.write_text(text)
    command = ("compare", f"{file}:make", "--stacks", "torch-eager", *QUICK)
    done = detente(*command, timeout=600)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "asked again" in said and "2.p 0.1" in said and "--no-dropout" in said, said
    rows = rows_of(detente(*command, "--no-dropout", timeout=600))
    assert rows["torch-eager"]["status"] == "ok" and rows["torch-eager"]["size"] == "own,batch=8,dropout=0"


@pytest.mark.long
def test_weights_that_do_not_map_are_one_clear_reason(detente: Any, tmp_path: Path) -> None:
    file = tmp_path / "wide.py"
    file.write_text((MLP / "in_nnx.py").read_text().replace("nnx.Linear(64, 10,", "nnx.Linear(64, 12,"))
    done = detente("compare", f"{MLP}/in_torch.py:make,{file}:make", "--stacks", "jax", *QUICK, timeout=600)
    row = rows_of(done)["jax"]
    assert row["status"] == "failed" and "third.kernel" in row["reason"] and "Traceback" not in done.stderr, (
        row
    )
