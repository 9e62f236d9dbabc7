"""The code of one part: as it was handed over, as it runs, and what Inductor wrote for it."""

from __future__ import annotations

import json

from detente.explain.part_code import part_code, parts_named
from detente.programs.operators import SCHEMA
from detente.report.code_page import WIDTH, code_lines
from tests.explain.golden import side

WRITTEN = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in, float* out)
{
    out[0] = in[0];
}
''')

def call(args):
    # [Provenance debug handles] cpp_fused_add_0:1
    cpp_fused_add_0(args[0], buf)
    # Topologically Sorted Source Nodes: [mm], Original ATen: [aten.mm]
    # [Provenance debug handles] extern_kernels.mm:2
    extern_kernels.mm(buf, args[1], out=buf1)
"""


def row(op: str, path: str, operands: list[int]) -> dict[str, object]:
    return {
        "op": op, "results": [["float32", [2]]], "operands": operands, "path": path, "direction": "forward",
        "flops": 0, "seconds": None,
    }  # fmt: skip


def compiled(folder):
    document = {
        "schema": SCHEMA,
        "name": "step",
        "operations": [row("aten.add.Tensor", "h.0.ln", [-1]), row("aten.mm.default", "h.0.mlp", [0])],
        "kernels": [
            {"name": "0.cpp_fused_add_0:1", "operations": [0], "seconds": 1.0},
            {"name": "0.extern_kernels.mm:2", "operations": [1], "seconds": 2.0},
        ],
    }
    made = side(
        folder, "torch-compile", {"operators": json.dumps(document).encode(), "inductor": WRITTEN.encode()}
    )
    # Inductor's code is named by its place among a step's.
    made.__dict__["inductor"] = {"kernels-0": WRITTEN}
    return made


def test_a_part_is_named_with_a_star_a_number_or_a_direction(tmp_path) -> None:
    jax = side(tmp_path, "jax")
    every, one = parts_named(jax, "h.*.ln_1"), parts_named(jax, "h.0.ln_1")
    assert {p.path for p in every} == {"h.0.ln_1", "h.1.ln_1"} and {p.path for p in one} == {"h.0.ln_1"}
    assert {p.direction for p in parts_named(jax, "h.*.ln_1 backward")} == {"backward"}
    assert parts_named(jax, "h.*.nothing") == () == parts_named(jax, "h.*.ln_1 sideways")


def test_what_was_handed_over_and_what_runs(tmp_path) -> None:
    jax = side(tmp_path, "jax")
    found = part_code(jax, "h.*.mlp.c_fc forward")
    assert set(found) == {"hlo", "hlo-optimised"}
    assert any(" dot(" in line for line in found["hlo"])
    # Of two equal layers one is shown.
    assert sum(" dot(" in line for line in found["hlo"]) == 1
    assert part_code(jax, "h.*.nothing") == {}


def test_inductors_kernels_are_those_of_the_part(tmp_path) -> None:
    made = compiled(tmp_path)
    norm, product = part_code(made, "h.0.ln"), part_code(made, "h.0.mlp")
    assert norm["inductor"][0] == "// cpp_fused_add_0:1" and "    out[0] = in[0];" in norm["inductor"]
    assert product["inductor"] == ["extern_kernels.mm(buf, args[1], out=buf1)"]
    assert len(norm["operators"]) == len(product["operators"]) == 1


def test_two_stand_side_by_side_and_a_third_below() -> None:
    found = [
        ("jax", {"hlo": ["a" * 200], "hlo-optimised": ["b"]}),
        ("torch-compile", {"operators": ["c"], "inductor": ["d", "e"]}),
        ("detente", {"hlo": ["f"]}),
        ("torch-eager", {}),
    ]
    lines = code_lines("h.*.mlp", found, "text")
    assert any("torch-eager: no part of its program is called that" in line for line in lines)
    assert f"{'a' * (WIDTH - 3)}...  c" in lines
    assert any(line.startswith("b ") and line.endswith("  d") for line in lines)
    assert lines[-1] == "f" and max(map(len, lines)) <= 2 * WIDTH + 2
    md = code_lines("h.*.mlp", found, "md")
    assert md.count("```") == 10 and "a" * 200 in md


def test_a_layer_of_another_size_is_shown_beside_the_first(tmp_path) -> None:
    """Norms have no product: of a net's stages the first alone was shown for all of them."""
    sizes = (64, 64, 2048)
    rows = [
        row("aten.tanh.default", f"h.{k}.ln", [-1]) | {"results": [["float32", [n]]]}
        for k, n in enumerate(sizes)
    ]
    document = {"schema": SCHEMA, "name": "step", "operations": rows}
    made = side(tmp_path, "torch-eager", {"operators": json.dumps(document).encode()})
    lines = part_code(made, "h.*.ln")["operators"]
    assert len(lines) == 2 and "[64]" in lines[0] and "[2048]" in lines[1]
    assert len(part_code(made, "h.1.ln")["operators"]) == 1
