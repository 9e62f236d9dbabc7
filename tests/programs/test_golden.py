"""Real programs: tiny GPT-2's train step as jax and torch_xla gave it away, and what is in it.

The files are made by tests/golden/programs/strip_metadata.py; reading them needs neither framework.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from detente.programs.count import count_program
from detente.programs.difference import difference, side_by_side
from detente.programs.probe import program_probe
from detente.records.codec import from_json, to_json
from detente.records.counts import Counts
from detente.workloads.catalogue import find_workload

GOLDEN = Path(__file__).parent.parent / "golden" / "programs"
FORMS = {"hlo": "hlo.pb", "stablehlo": "mlir"}


def golden(stack: str, form: str, workload: str = "gpt2") -> bytes:
    return gzip.decompress((GOLDEN / f"{workload}-tiny-{stack}.{FORMS[form]}.gz").read_bytes())


def counts(stack: str, form: str = "hlo", workload: str = "gpt2") -> Counts:
    return count_program(golden(stack, form, workload), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stack", ["jax", "torch-xla", "jax-scan"])
def test_flops_are_the_workloads_own(stack: str, form: str) -> None:
    gpt2 = find_workload("gpt2")
    assert counts(stack, form).flops == gpt2.flops(gpt2.sizes["tiny"], "train-step")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stack", ["jax", "torch-xla"])
def test_flops_of_convolutions(stack: str, form: str) -> None:
    resnet = find_workload("resnet")
    assert counts(stack, form, "resnet").flops == resnet.flops(resnet.sizes["tiny"], "train-step")


def test_an_optimised_loop_tells_its_trips_itself() -> None:
    """XLA has rewritten condition and body by then; its own note is what is left."""
    data = gzip.decompress((GOLDEN / "gpt2-tiny-jax-scan.optimised.hlo.pb.gz").read_bytes())
    c = count_program(data, "hlo-optimised")
    assert [loop.trips for loop in c.loops] == [2, 2]
    assert c.flops == counts("jax-scan").flops


def test_a_module_inside_an_hlo_proto_is_unwrapped() -> None:
    """XLA's dumps wrap the module in field 1 of an HloProto, beside its buffer assignment."""
    data = golden("jax", "hlo")
    size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80, len(data) >> 14])
    assert count_program(b"\x0a" + size + data, "hlo") == counts("jax")


def test_the_census_of_jax() -> None:
    c = counts("jax")
    assert (c.instructions, c.operations, c.lines, c.dead) == (1732, 1278, 1986, 0)
    assert (c.products, c.product_dtypes) == (39, {"f32": 39})
    assert c.dtypes == {"f32": 1217, "s32": 34, "pred": 27}
    assert c.norms == {"expanded": 5}
    assert (c.argument_bytes, c.output_bytes, c.alias_bytes) == (1422468, 1422344, 1422340)
    assert (c.constants_bytes, c.large_constants, c.rng_ops, c.custom_calls) == (409, (), 0, {})


def test_the_census_of_torch_xla() -> None:
    c = counts("torch-xla")
    assert (c.instructions, c.operations, c.lines, c.dead) == (2027, 1536, 2137, 81)
    assert (c.products, c.product_dtypes) == (39, {"f32": 39})
    assert c.dtypes == {"f32": 1427, "pred": 54, "s64": 41, "s32": 12, "u32": 2}
    # Four LayerNorms in the layers and the last one, each direction.
    assert c.norms == {"batch-norm-grad": 5, "batch-norm-training": 5}
    assert (c.argument_bytes, c.output_bytes) == (1422664, 1422340)
    assert c.alias_bytes == 0, "torch_xla decides on donation when it dispatches; the capture has none"


def test_a_scan_counts_its_layers_as_often_as_they_run() -> None:
    unrolled, scanned = counts("jax"), counts("jax-scan")
    assert [loop.trips for loop in scanned.loops] == [2, 2]
    assert scanned.unknown_loops == 0
    assert scanned.products < unrolled.products
    assert scanned.flops == unrolled.flops
    assert scanned.norms == unrolled.norms


@pytest.mark.parametrize("stack", ["jax", "torch-xla", "jax-scan"])
def test_both_readers_see_the_same_program(stack: str) -> None:
    """The proto and the text of one program differ in what their writers simplify, not in what is computed."""
    hlo, text = counts(stack), counts(stack, "stablehlo")
    for same in (
        "flops",
        "products",
        "product_dtypes",
        "argument_bytes",
        "output_bytes",
        "norms",
        "alias_bytes",
    ):
        assert getattr(hlo, same) == getattr(text, same), same
    assert [loop.trips for loop in hlo.loops] == [loop.trips for loop in text.loops]


def test_the_difference_of_jax_and_torch_xla() -> None:
    found = {d.what: (d.a, d.b) for d in difference(counts("jax"), counts("torch-xla"))}
    assert found["norms.expanded"] == (5, 0)
    assert found["norms.batch-norm-training"] == (0, 5)
    assert found["dtypes.s64"] == (0, 41)
    assert found["alias_bytes"] == (1422340, 0)
    assert "flops" not in found and "products" not in found


def test_side_by_side_puts_the_widest_difference_first() -> None:
    sections = {s.title: s.rows for s in side_by_side([counts("jax"), counts("torch-xla")])}
    assert sections["operations by opcode"][0] == ("broadcast", (280, 447))
    assert ("s64", (0, 41)) in sections["operations by dtype"]
    assert dict(sections[""])["loops x trips"] == ("none", "none")


@pytest.mark.parametrize("stack", ["jax", "torch-xla", "jax-scan"])
def test_the_record_survives_json(stack: str) -> None:
    c = counts(stack)
    assert from_json(Counts, to_json(c)) == c


def test_the_probe_has_the_keys_that_the_audit_reads() -> None:
    found = program_probe(golden("jax", "hlo"), "hlo")
    wanted = {"flops", "products", "constants_bytes", "argument_bytes", "alias_bytes", "output_bytes", "dtypes",
              "product_dtypes", "rng_ops", "hash"}  # fmt: skip
    assert wanted <= found.keys()
