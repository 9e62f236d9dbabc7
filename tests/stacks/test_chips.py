"""Chips that are not here: what their compilers are told and say; with the plug-ins (`detente stacks add chips`, named
by DETENTE_TEST_ENVIRONMENTS), real programs compiled for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detente.environments.place import packages_of
from detente.records.chip import CHIPS, find_chip
from detente.records.fault import UsageFault
from detente.stacks.chips import refused_for_size, target_config

REFUSED = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (52.00G) exceeds "
    "available HBM (31.25G)."
)
OLDER = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 40.5G of 31.25G hbm. Exceeded by 9.25G."
)


def test_a_compiler_that_refuses_says_how_much_it_would_be() -> None:
    assert refused_for_size(REFUSED) == 52 * 2**30
    assert refused_for_size(OLDER) == int(40.5 * 2**30)
    assert refused_for_size("INTERNAL: a kernel of 3.00G elements") is None


def test_a_gpu_is_described_to_its_compiler() -> None:
    for chip in CHIPS.values():
        if chip.platform == "cuda":
            text = target_config(chip)
            assert f"device_memory_size: {chip.memory}" in text and text.count("{") == text.count("}")
    assert "ACCELERATED_FEATURES" in target_config(CHIPS["h100"])
    assert "ACCELERATED_FEATURES" not in target_config(CHIPS["a100"])


def test_an_unknown_chip_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageFault, match="did you mean 'tpu-v6e'"):
        find_chip("tpu-v6")


def test_what_is_asked_wrongly_is_said(detente: Any) -> None:
    done = detente("fits", "gpt2", "--chip", "h10")
    assert done.returncode == 2 and "did you mean 'h100'" in done.stderr and "Traceback" not in done.stderr
    done = detente("fits", "gpt2", "--chip", "h100", "--device", "cpu")
    assert done.returncode == 2 and "--device cpu and --chip h100" in done.stderr
    if packages_of("chips") is None:
        done = detente("fits", "gpt2", "--chip", "h100")
        assert done.returncode == 3 and "detente stacks add chips" in done.stderr


def test_what_a_module_ties_is_planned_once() -> None:
    """GPT-2's head is its embedding; a plan that held it twice told 17.1 GB of GPT-Neo's 15.8."""
    import torch

    from detente.stacks.detente_on_chip import _unwritten
    from detente.workloads.catalogue import find_size, find_workload
    from detente.workloads.gpt2.in_torch import build

    with torch.device("meta"):
        module = build(find_size(find_workload("gpt2"), "tiny"))
    before = [n for n, _ in module.named_parameters()]
    held = _unwritten(module)
    assert [n for n, _ in held.named_parameters()] == before
    assert len(before) < len(list(held.named_parameters(remove_duplicate=False)))
    assert all(t.device.type == "cpu" for t in (*held.parameters(), *held.buffers()))


@pytest.mark.matrix
def test_programs_are_compiled_for_chips_that_are_not_here(detente: Any) -> None:
    """bf16 needs less than fp32 of the bridge, too; and what is larger than a chip does not fit it."""
    if packages_of("chips") is None:
        pytest.skip(
            "the compilers are not installed: detente stacks add chips, and DETENTE_TEST_ENVIRONMENTS"
        )

    def rows(*more: str, workload: str = "ffn") -> dict[str, Any]:
        done = detente(
            *("fits", workload, "--chip", "h100", "--stacks", "jax,detente", "--format", "json", *more),
            timeout=600,
        )
        assert done.stdout, done.stderr
        return {f"{r['stack']} {r['form']}".strip(): r for r in json.loads(done.stdout)["rows"]}

    plain, narrow = rows(), rows("--precision", "bf16")
    assert set(plain) == {"jax", "detente unrolled"} and all(r["fits"] for r in plain.values())
    for name, row in plain.items():
        # 4.7 M parameters of four bytes, gradients made and used up inside.
        assert row["plan"]["arguments"] >= 4 * 4_722_432, row
        assert narrow[name]["plan"]["temporary"] < row["plan"]["temporary"], (name, row, narrow[name])
    # Weights and moments of 8 billion parameters are 96 GB.
    large = rows("--stacks", "jax-scan", workload="llama")["jax-scan"]
    assert large["fits"] is False and large["plan"]["arguments"] > 96e9, large
