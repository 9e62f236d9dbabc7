"""Parts of two programs of one model find each other by the parameters below them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from detente.explain.align import Match, align, read_matches, unmatched
from detente.programs.operators import origin_of
from detente.programs.parts import Part, parts
from detente.programs.scope import read_scope
from detente.records.fault import UsageFault
from tests.explain.golden import side


def found(a, b, anchors_a, anchors_b, by_hand=()):
    def part(path):
        return Part(path, "forward")

    rows = align(map(part, a), map(part, b), anchors_a, anchors_b, by_hand)
    return {r.path: ([p.path for p in r.a], [p.path for p in r.b]) for r in rows}


TORCH = {f"bert.layer.{i}.{m}.weight": f"bert.layer.{i}.{m}" for i in (0, 1) for m in ("q", "k", "out")}


def test_other_names_and_layers_are_one_part() -> None:
    flax = {n: p.replace("bert.layer", "layers") for n, p in TORCH.items()}
    table = found(flax.values(), TORCH.values(), flax, TORCH)
    assert table["bert.layer.*.q"] == (["layers.0.q", "layers.1.q"], ["bert.layer.0.q", "bert.layer.1.q"])
    assert len(table) == 3


def test_a_loop_over_layers_meets_the_layers_that_it_is() -> None:
    scan = {n: "layers." + p.rpartition(".")[2] for n, p in TORCH.items()}
    table = found(["layers.q", "layers"], ["bert.layer.0.q", "bert.layer.1", "bert.layer.1.q"], scan, TORCH)
    assert table["bert.layer.*.q"] == (["layers.q"], ["bert.layer.0.q", "bert.layer.1.q"])
    # All of the model's parameters lie in its layers: the layer is the model.
    assert table["root"] == (["layers"], ["bert.layer.1"])


def test_what_holds_no_parameter_goes_to_what_is_around_it() -> None:
    torch = {"mlp.up.weight": "mlp.up", "mlp.down.weight": "mlp.down", "head.weight": "head"}
    flax = {"mlp.up.weight": "mlp.up", "mlp.down.weight": "mlp.down", "head.weight": "head"}
    table = found(["mlp", "head"], ["mlp.act", "head", "root"], flax, torch)
    assert table == {"mlp": (["mlp"], ["mlp.act"]), "head": (["head"], ["head"]), "root": ([], ["root"])}


def test_one_tensor_for_three_modules_meets_them_all() -> None:
    torch = {"attn.in_proj": "attn", "attn.out.weight": "attn.out", "head.weight": "head"}
    flax = {"attn.in_proj": "attention", "attn.out.weight": "attention.out", "head.weight": "head"}
    table = found(["attention.query", "attention.out"], ["attn", "attn.out"], flax, torch)
    assert table["attn"] == (["attention.query"], ["attn"])


def test_a_reader_may_say_what_belongs_together(tmp_path: Path) -> None:
    torch = {"mlp.up.weight": "mlp.up", "head.weight": "head"}
    file = tmp_path / "align.toml"
    file.write_text('[[match]]\na = "gelu"\nb = "mlp.act"\n')
    table = found(["gelu"], ["mlp.act"], torch, torch, read_matches(file))
    assert table == {"mlp.act": (["gelu"], ["mlp.act"])}


@pytest.mark.parametrize(
    "text",
    [
        "[[match]\n",
        '[[match]]\na = "x"\n',
        '[[match]]\na = 1\nb = "x"\n',
        "match = 3\n",
        '[[match]]\na = "x"\nb = "y"\n' * 2,
    ],
)
def test_a_file_that_is_none_says_what_it_holds(tmp_path: Path, text: str) -> None:
    file = tmp_path / "align.toml"
    file.write_text(text)
    with pytest.raises(UsageFault, match=r"align\.toml"):
        read_matches(file)


def test_a_path_that_nobody_has_is_told() -> None:
    def part(path: str) -> Part:
        return Part(path, "forward")

    a, b = [part("h.0.mlp.act"), part("h.1.mlp.act")], [part("mlp.gelu")]
    assert unmatched(a, b, [Match("h.*.mlp.act", "mlp.gelu")]) == ()
    wrong = [Match("h.*.mpl.act", "mlp.gelu"), Match("h.*.mlp.act", "mlp.glu")]
    assert unmatched(a, b, wrong) == (("a", "h.*.mpl.act"), ("b", "mlp.glu"))


def test_a_model_meets_itself_part_by_part(tmp_path: Path) -> None:
    one = side(tmp_path, "jax")
    table = parts(one.sites)
    rows = align(table, table, one.anchors, one.anchors)
    assert all(r.a == r.b for r in rows)


def test_two_frameworks_meet_in_every_module(tmp_path: Path) -> None:
    """All of GPT-2's modules, forward and backward, and nothing that only one side has."""
    a, b = side(tmp_path, "jax"), side(tmp_path, "torch-xla")
    begun = time.perf_counter()
    rows = align(parts(a.sites), parts(b.sites), a.anchors, b.anchors)
    assert time.perf_counter() - begun < 60
    names = {(r.path, r.direction) for r in rows if r.a and r.b}
    for direction in ("forward", "backward"):
        assert ("transformer.h.*.attn.c_attn", direction) in names
        assert ("transformer.h.*.ln_2", direction) in names
        assert ("transformer.wte", direction) in names
    assert ("", "optimizer") in names
    assert not [r for r in rows if not r.a or not r.b]


def test_by_hand_wins_over_what_is_found() -> None:
    table = found(["h.0"], ["h.0"], {"h.0.weight": "h.0"}, {"h.0.weight": "h.0"}, [Match("h.*", "elsewhere")])
    assert table == {"elsewhere": (["h.0"], []), "root": ([], ["h.0"])}


def modules(*names: str, leaves: tuple[str, ...] = ("weight", "bias")) -> dict[str, str]:
    return {f"{name}.{leaf}": name for name in names for leaf in leaves}


def test_the_pieces_of_a_sequential_are_parts_of_their_own() -> None:
    """A name that is a number was always a layer's: of Sequential(Embedding, LayerNorm, Linear, SiLU, Linear) all five
    were one part, and so were VGG's ``features``."""
    held = modules("0", "1", "2", "4")
    pieces = [str(k) for k in range(5)]
    table = found(pieces, pieces, held, held)
    assert table == {
        **{k: ([k], [k]) for k in ("0", "1", "2", "4")},
        "root": (["3"], ["3"]),  # the activation holds nothing
    }
    vgg = modules("features.0", "features.2", "features.5", "classifier.0")
    table = found([f"features.{k}" for k in range(6)], ["features.2", "classifier.0"], vgg, vgg)
    assert table["features.2"] == (["features.2"], ["features.2"])
    assert table["features"] == (["features.1", "features.3", "features.4"], [])


def test_layers_that_a_program_has_rolled_up_meet_those_that_it_has_not() -> None:
    """The bridge rolls layers into a loop and calls them ``h.*``; its parameters are those of each."""
    held = modules(*(f"h.{k}.{m}" for k in range(3) for m in ("q", "out")), "head")
    table = found(["h.0.q", "h.*.q", "h.*.drop", "head"], ["h.0.q", "h.1.q", "h.2.q", "head"], held, held)
    assert table["h.*.q"] == (["h.0.q", "h.*.q"], ["h.0.q", "h.1.q", "h.2.q"])
    assert table["h.*"] == (["h.*.drop"], [])


def test_a_layer_with_other_modules_stands_apart_on_both_sides() -> None:
    """The first block of a stage has a shortcut."""
    held = modules("s.0.conv", "s.0.short", "s.1.conv", "s.2.conv", "head")
    table = found(["s.0.conv", "s.1.conv", "s.2.conv"], ["s.0.conv", "s.2.conv"], held, held)
    assert table["s.0.conv"] == (["s.0.conv"], ["s.0.conv"])
    assert table["s.*.conv"] == (["s.1.conv", "s.2.conv"], ["s.2.conv"])


def test_a_module_called_body_meets_itself() -> None:
    """EDSR is head, body and tail: its body was lost out of JAX's names, and with it the whole net in ``root``."""
    held = modules("head", "body.0.conv1", "body.1.conv1", "tail", leaves=("weight",))
    written = [origin_of(path, "forward") for path in held.values()]
    eager = [scope.path for name in written if (scope := read_scope(name)) is not None]
    jax = ("jvp(head)", "jvp(body)/0/conv1", "jvp(body)/1/conv1", "jvp(tail)")
    traced = [scope.path for name in jax if (scope := read_scope(f"jit(step)/{name}/conv")) is not None]
    table = found(eager, traced, held, held)
    assert table["body.*.conv1"] == (["body.0.conv1", "body.1.conv1"], ["body.0.conv1", "body.1.conv1"])
    assert "root" not in table
