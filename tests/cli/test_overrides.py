"""``--batch``, ``--seq``, ``--layers`` and ``--set``: the row, the store, history and every cache say what was set."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detente.records.folders import cache_folder
from detente.session.layout import lay_out
from detente.session.prepared import prepared_folder
from detente.session.proofs import proof_file
from detente.session.proving import proof_cell
from detente.session.request import Request

PLAIN = ("compare", "ffn", "--stacks", "torch-eager", "--size", "tiny")
QUICK = ("--blocks", "1", "--no-aa", "--no-memory", "--format", "json")


@pytest.fixture(scope="module")
def measured(detente: Any) -> dict[str, dict[str, Any]]:
    """ffn at tiny, and at tiny with another batch, in one home."""
    found = {}
    for name, extra in (("plain", ()), ("set", ("--batch", "3", "--set", "inner=48"))):
        done = detente(*PLAIN, *extra, *QUICK)
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(done.stdout)
    return found


def test_the_row_says_so_and_is_proved(measured: dict[str, Any]) -> None:
    (plain,), (row,) = (m["cells"] for m in (measured["plain"], measured["set"]))
    assert (plain["size"], row["size"]) == ("tiny", "tiny,batch=3,inner=48")
    assert (
        row["status"] == "ok"
        and row["parity"]["same_function"] == row["parity"]["same_precision"] == "passed"
    )


def test_the_work_is_that_of_what_ran(measured: dict[str, Any]) -> None:
    (costs,) = measured["set"]["session"]["fingerprint"]["settings"]["workloads"].values()
    assert costs["dims"] == {"hidden": 32, "inner": 48, "batch": 3, "sequence": 8}
    # ``gradient``: two products, each with both gradients.
    assert costs["flops"] == 6 * 2 * (3 * 8) * 32 * 48


def test_history_does_not_mix_them(detente: Any, measured: dict[str, Any]) -> None:
    done = detente("history", "--format", "json")
    assert done.returncode == 0, done.stderr
    points = {series["cell"]: len(series["points"]) for series in json.loads(done.stdout)["series"]}
    rest = "gradient/fp32/auto/torch-eager"
    assert points[f"ffn/tiny,batch=3,inner=48/{rest}"] == 1
    # The home is that of the whole run, and other tests measure the plain row: the session's one point is there, too.
    assert points[f"ffn/tiny/{rest}"] >= 1


def test_neither_meets_the_others_weights(measured: dict[str, Any]) -> None:
    made = {p.name.rpartition("-")[0] for p in (cache_folder() / "prepared").glob("ffn-*")}
    assert {"ffn-tiny", "ffn-tiny,batch=3,inner=48"} <= made


def cells_of(size: str) -> Any:
    return lay_out(Request(("gpt2",), ("torch-eager",), size, aa=False)).cells[0]


def test_keys_differ_and_the_proof_at_tiny_is_of_tiny() -> None:
    cells = [cells_of(size) for size in ("tiny", "tiny,layers=3", "tiny,layers=4")]
    assert len({c.key for c in cells}) == len({c.group for c in cells}) == 3
    assert len({prepared_folder(c, 0, 4) for c in cells}) == 3
    # The function is proved at tiny, of whatever size the row is; a proof at another size would have a name of its own.
    assert len({proof_file(proof_cell(c)) for c in cells}) == 1
    assert len({proof_file(c) for c in cells}) == 3


def test_two_ways_to_say_it_are_one_row() -> None:
    assert cells_of("tiny,sequence=8,batch=4").key == cells_of("tiny,batch=4,sequence=08").key
    assert cells_of("tiny,batch=2").key == cells_of("tiny").key


def test_a_layer_less_has_nothing_to_scan() -> None:
    layout = lay_out(Request(("gpt2",), ("jax-scan",), "tiny,layers=1", aa=False))
    assert list(layout.skipped.values()) == ["gpt2 has no repeated layers to scan"]


def test_a_plan_shows_every_workload_with_its_own_size(detente: Any) -> None:
    done = detente(
        "compare",
        "gpt2",
        "ffn",
        "--stacks",
        "torch-eager",
        "--seq",
        "12",
        "--dry-run",
        "--no-aa",
        "--format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    sizes = [cell["size"] for cell in json.loads(done.stdout)["cells"]]
    assert sizes == ["paper,sequence=12", "paper,sequence=12"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "haeds=2"), "did you mean 'heads'?"),
        (("--batch", "0"), "batch=0 is not a positive whole number"),
        (("--layers", "2", "--set", "layers=3"), "layers is given twice"),
        (("--seq", "2000"), "sequence must be at most positions"),
    ],
)
def test_what_cannot_be_is_one_error_with_exit_code_2(
    detente: Any, arguments: tuple[str, ...], says: str
) -> None:
    done = detente("compare", "gpt2", *arguments, "--dry-run")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_many_overrides_are_no_longer_than_a_file_name() -> None:
    dims = ("layers", "hidden", "heads", "vocab", "positions", "batch", "sequence")
    values = (123, 64, 4, 987654, 987654321, 12, 12345)
    cell = cells_of(",".join(["paper", *(f"{d}={v}" for d, v in zip(dims, values, strict=True))]))
    assert len(prepared_folder(cell, 0, 4).name) < 200
