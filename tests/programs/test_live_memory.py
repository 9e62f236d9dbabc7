"""What a program holds from operation to operation: of programs that XLA compiled, against its own plan."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from detente.programs.hlo import read_hlo
from detente.programs.live_memory import _Covered, read_live_memory
from detente.programs.module import ProgramError
from detente.programs.wire import written

GOLDEN = Path(__file__).parent.parent / "golden/programs"


def golden(name: str) -> bytes:
    return gzip.decompress((GOLDEN / f"{name}.buffers.hlo.pb.gz").read_bytes())


@pytest.mark.parametrize("name", ["chain", "scan"])
def test_the_peak_is_what_the_compiler_set_aside(name: str) -> None:
    """Nothing is counted twice, and nothing that is there is left out: but for gaps, the two are one number."""
    live = read_live_memory(golden(name))
    plan = json.loads((GOLDEN / "buffers.json").read_text())[name]
    assert live is not None and live.reserved == plan["temp_bytes"]
    assert 0.999 * live.reserved < live.peak_bytes <= live.reserved
    assert sum(live.at_peak.values()) == live.peak_bytes
    assert live.held >= plan["argument_bytes"]
    assert len(live.operations) == len(live.temporary)


def test_activations_of_a_chain_grow_and_go() -> None:
    """Five layers of 64 kB each are kept for the backward pass, and are gone behind it."""
    live = read_live_memory(golden("chain"))
    assert live is not None
    assert [live.at_peak[n] for n in ("wrapped_tanh", "wrapped_tanh.1", "wrapped_tanh.2")] == [65536] * 3
    assert live.temporary[0] == live.temporary[-1] == 0
    at = live.peak
    assert list(live.temporary[:at]) == sorted(live.temporary[:at])


def test_what_a_loop_carries_is_there_as_long_as_it_runs() -> None:
    live = read_live_memory(golden("scan"))
    assert live is not None
    inside = [live.operations.index(n) for n in ("copy.10", "wrapped_tanh")]
    # The stacks that the loop fills, three of 5 x 256 x 64 floats.
    assert all(live.temporary[at] > 3 * 327_680 for at in inside)


def test_a_bare_module_tells_no_memory() -> None:
    whole = golden("chain")
    assert read_hlo(whole).computations
    assert read_live_memory(gzip.decompress((GOLDEN / "gpt2-tiny-jax.hlo.pb.gz").read_bytes())) is None


@pytest.mark.parametrize("data", [b"", b"nothing", written(1, b"\xff\xff") + written(3, b"\xff")])
def test_what_is_no_program_is_refused_or_tells_nothing(data: bytes) -> None:
    try:
        assert read_live_memory(data) is None
    except ProgramError as error:
        assert "no HloProto" in str(error)


def test_a_cut_program_is_refused() -> None:
    whole = golden("scan")
    with pytest.raises(ProgramError, match="no HloProto"):
        read_live_memory(whole[: len(whole) // 2])


def test_places_that_lie_over_each_other_are_counted_once() -> None:
    covered = _Covered()
    covered.add((0, 0, 10))
    covered.add((0, 0, 10))
    covered.add((0, 5, 20))
    covered.add((1, 0, 7))
    assert covered.bytes == 27
    covered.add((0, 2, 4))
    assert covered.bytes == 27
    covered.remove((0, 0, 10))
    assert covered.bytes == 27
    covered.remove((0, 0, 10))
    assert covered.bytes == 24
    covered.remove((0, 2, 4))
    covered.remove((0, 5, 20))
    assert covered.bytes == 7
