"""`detente.compare` from Python: a function is a workload, options are checked, a result can be looked at."""

from __future__ import annotations

import subprocess
import sys
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import detente
from detente.records.fault import MachineFault, UsageFault
from detente.records.result import CellResult, Result, SessionHead
from detente.records.session import Fingerprint
from detente.records.shown import as_record
from detente.session.compare import Options, named
from detente.session.request import Request


def build() -> Any:
    import torch

    module = torch.nn.Linear(4, 3)
    return module, lambda m, b: m(b["x"]).mean(), {"x": torch.randn(2, 4)}


def test_a_function_of_a_file_is_its_path_and_name() -> None:
    assert named(build) == f"{__file__}:build"


def test_what_no_worker_can_find_is_refused() -> None:
    def inner() -> Any: ...

    for bad, says in ((inner, "not at the top level"), (lambda: 1, "not at the top level"), (3, "is a int")):
        with pytest.raises(UsageFault, match=says):
            named(bad)  # type: ignore[arg-type]
    typed = eval(compile("lambda: 1", "<stdin>", "eval"))
    with pytest.raises(UsageFault, match="not in a file"):
        named(typed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stack": "jax"}, "no option 'stack'; did you mean 'stacks'"),
        ({"blocks": "1"}, "blocks='1' is a str, and blocks says int or None"),
        ({"blocks_at_most": 15}, "no option 'blocks_at_most'"),
        ({"blocks": True}, "blocks=True is a bool"),
        ({"budget": 3}, "did you mean 'budget_s'"),
        ({"aa": 1}, "aa says bool"),
        ({"stacks": ["jax", 3]}, "stacks holds a int"),
        ({"size": "huge"}, "has no size 'huge'"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_should_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageFault, match=says):
        detente.compare("gemm", **options)


def test_the_typed_options_are_the_request() -> None:
    assert set(typing.get_type_hints(Options)) == {f.name for f in fields(Request)} - {
        "workloads",
        "stacks",
        "command",
        "blocks_at_most",  # of an explanation: a comparison has no one question that could be open
        "left_out",  # of an explanation, too
    }


def test_a_function_is_measured_and_its_result_shows_itself() -> None:
    result = detente.compare(build, stacks="torch-eager", blocks=1, aa=False, memory=False, budget_s=300)
    (cell,) = result.cells
    assert cell.status == "ok", cell.reason
    assert f"{cell.steady_s.median:.3g} s per step" in repr(result) and len(repr(result)) < 1000
    page = result._repr_html_()
    assert page.count("<tr>") == 3 and "build" in page
    hostile = replace(result, cells=(replace(cell, label="<script>alert(1)</script>"),))
    assert "<script>" not in hostile._repr_html_()


def test_a_data_frame_or_what_is_missing() -> None:
    fingerprint = Fingerprint({}, {}, "")
    cell = CellResult(
        "gemm", "tiny", "jax", "jax", "gradient", "fp32", "cpu", "ok", memory={"process_peak": 7}
    )
    result = Result(SessionHead("x", 0.0, 1.0, (), "", "whole", 5, fingerprint), (cell,), ())
    assert as_record(cell)["memory_process_peak"] == 7
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(MachineFault, match="needs pandas"):
            result.to_dataframe()
        return
    frame = result.to_dataframe()
    assert list(frame["label"]) == [c.label for c in result.cells]


def test_public_names_are_seen_without_importing_a_framework() -> None:
    code = (
        "import sys, detente; names = dir(detente);"
        "assert {'compare', 'compile', 'functional', 'extend'} <= set(names), names;"
        "assert not {'torch', 'jax', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    text = Path(detente.__file__).read_text()
    block = text.partition("if TYPE_CHECKING:")[2].partition("_PUBLIC")[0]
    for name, (module, attribute) in detente._PUBLIC.items():
        assert f"from {module} import {attribute} as {name}" in block, name
