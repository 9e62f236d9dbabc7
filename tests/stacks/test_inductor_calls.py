"""The time of each kernel that Inductor's code calls, by the line of the call."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from detente.stacks.inductor_calls import STEPS, kernel_lines, seconds_of_calls

CODE = """
import time


def call(args):
    a = len(args)
    # [Provenance debug handles] cpp_fused_add_0:1
    time.sleep(args[0])
    # [Provenance debug handles] extern_kernels.mm:2
    time.sleep(
        args[1],
    )
    del args
    time.sleep(0.004)
"""


def loaded(tmp_path, text: str):
    file = tmp_path / "written.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("written", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lines_of_a_kernel_are_those_of_its_call() -> None:
    found = kernel_lines(CODE)
    assert found == {8: "cpp_fused_add_0:1", **dict.fromkeys((10, 11, 12), "extern_kernels.mm:2")}
    assert kernel_lines("x = 1\n") == {} and kernel_lines("# [Provenance debug handles] mm:1\n") == {}


def test_each_kernel_has_its_own_time_and_what_lies_between_has_none(tmp_path) -> None:
    module = loaded(tmp_path, CODE)
    found = seconds_of_calls(lambda: module.call([0.001, 0.003]), ["# another", CODE])
    assert set(found) == {1} and set(found[1]) == {"cpp_fused_add_0:1", "extern_kernels.mm:2"}
    # A sleep is at least as long as asked, and the one that belongs to nobody is counted nowhere.
    assert 0.001 <= found[1]["cpp_fused_add_0:1"] <= found[1]["extern_kernels.mm:2"]


def test_code_that_does_not_run_in_every_step_is_of_no_step(tmp_path) -> None:
    module = loaded(tmp_path, CODE)
    turns = iter(range(STEPS))

    def step() -> None:
        if next(turns):
            module.call([0.0, 0.0])

    assert seconds_of_calls(step, [CODE]) == {}


def test_a_step_that_raises_leaves_no_profiler_behind(tmp_path) -> None:
    module = loaded(tmp_path, CODE)
    with pytest.raises(ValueError):
        seconds_of_calls(lambda: module.call([-1.0, 0.0]), [CODE])
    assert sys.getprofile() is None
