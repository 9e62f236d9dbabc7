"""Rows under an arm run, are proved and are judged like any; an arm that does nothing is skipped with its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

IDLE = f"{Path(__file__).parent}/idle_arms.py:IdleFusion"
QUICK = ("--size", "tiny", "--blocks", "1", "--no-memory", "--no-aa", "--threads", "1", "--format", "json")


def rows_of(detente: Any, workload: str, contract: str, *stacks: str) -> dict[str, Any]:
    done = detente(
        "compare", workload, "--contract", contract, "--stacks", ",".join(stacks), *QUICK, timeout=600
    )
    assert done.stdout, done.stderr
    return {c["label"]: c for c in json.loads(done.stdout)["cells"]}


def assert_proved(row: dict[str, Any]) -> None:
    assert row["status"] == "ok", row["reason"]
    assert (row["parity"]["same_function"], row["parity"]["same_precision"]) == ("passed", "passed"), row[
        "parity"
    ]
    assert row["steady_s"]["median"] > 0


@pytest.mark.long
def test_arms_of_a_train_step_are_proved_and_their_checks_hold(detente: Any) -> None:
    arms = ("donation=off+fusion=off", "optimizer=outside", "library-kernels=off")
    rows = rows_of(detente, "ffn", "train-step", *(f"jax[{arm}]" for arm in arms))
    assert rows.keys() == {f"jax[{arm}]" for arm in arms}
    for label, row in rows.items():
        assert_proved(row)
        assert row["stack"] == "jax" and label == f"jax[{row['arm']}]"


@pytest.mark.long
def test_arms_of_a_transformer_are_proved(detente: Any) -> None:
    rows = rows_of(detente, "gpt2", "train-step", "jax[donation=off]", "jax[fusion=off]")
    for row in rows.values():
        assert_proved(row)


@pytest.mark.long
@pytest.mark.parametrize("stack", ["torch-eager", "torch-compile"])
def test_attention_of_pytorch_without_its_kernel_is_proved(detente: Any, stack: str) -> None:
    arm = f"{stack}[attention=decomposed]"
    rows = rows_of(detente, "gpt2", "train-step", arm, "torch-eager[layout=channels-last]")
    assert_proved(rows[arm])
    assert "decomposed" in rows[arm]["practice"]
    assert "no weight of this model" in rows["torch-eager[layout=channels-last]"]["reason"]


@pytest.mark.long
def test_images_with_channels_last_are_proved(detente: Any) -> None:
    rows = rows_of(
        detente,
        "resnet50",
        "train-step",
        "torch-eager[layout=channels-last]",
        "torch-compile[layout=channels-last]",
        "torch-eager[attention=decomposed]",
    )
    for row in ("torch-eager[layout=channels-last]", "torch-compile[layout=channels-last]"):
        assert_proved(rows[row])
        assert "channels last" in rows[row]["practice"]
    # It has no attention that could be taken apart.
    assert "must go from some to none: 0 before" in rows["torch-eager[attention=decomposed]"]["reason"]


@pytest.mark.long
def test_the_bridge_without_its_kernels_is_proved(detente: Any) -> None:
    rows = rows_of(detente, "ffn", "train-step", "detente[torch-kernels=off]", "jax[torch-kernels=off]")
    assert_proved(rows["detente[torch-kernels=off]"])
    # JAX's own rows have none to switch off.
    assert rows["jax[torch-kernels=off]"]["status"] == "skipped"


@pytest.mark.long
def test_an_arm_that_does_nothing_is_skipped_with_its_figures(detente: Any) -> None:
    rows = rows_of(detente, "gemm", "gradient", "jax[fusion=off]", f"{IDLE}[fusion=off]", "jax[donation=off]")
    assert_proved(rows["jax[fusion=off]"])
    idle = rows["IdleFusion[fusion=off]"]
    assert idle["status"] == "skipped" and idle["steady_s"] is None
    assert "fusion=off is not what it says: the number of kernels must grow" in idle["reason"]
    # A gradient has no state: nothing was donated that could be kept.
    undonated = rows["jax[donation=off]"]
    assert undonated["status"] == "skipped" and "must go from some to none: 0 before" in undonated["reason"]


@pytest.mark.long
def test_what_a_stack_cannot_be_built_under_is_skipped_with_the_reason(detente: Any) -> None:
    rows = rows_of(detente, "gemm", "gradient", "jax", "jax[optimizer=outside]", "torch-eager[fusion=off]")
    assert_proved(rows["jax"])
    assert rows["jax[optimizer=outside]"]["status"] == "skipped"
    assert "has no optimizer" in rows["jax[optimizer=outside]"]["reason"]
    assert "TorchEager cannot be built under fusion=off" in rows["torch-eager[fusion=off]"]["reason"]


def test_a_factor_that_there_is_not_is_a_usage_fault(detente: Any) -> None:
    done = detente("compare", "gemm", "--stacks", "jax[fusoin=off]", *QUICK)
    assert done.returncode == 2 and "did you mean 'fusion'" in done.stderr + done.stdout
