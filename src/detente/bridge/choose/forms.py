"""The forms of one program. All compute the same numbers; they differ in compile time, memory and speed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from detente.bridge.graph import Graph
from detente.bridge.passes.connected import connected
from detente.bridge.roll.at_once import at_once
from detente.bridge.roll.backward import loops_updated
from detente.bridge.roll.find import LAYERS
from detente.bridge.roll.fold import ROLL, roll
from detente.bridge.roll.lower import with_remat
from detente.bridge.roll.stacks import Stacks, stacked


@dataclass(frozen=True)
class Form:
    """``policy`` is a name in ``roll.lower.REMATS``, or None; ``inside`` updates in the backward loop."""

    name: str
    rolled: bool
    policy: str | None = None
    inside: bool = False
    note: str = ""


# In the order in which memory is sought: each needs less than the one before, as a rule.
FORMS: dict[str, Form] = {
    f.name: f
    for f in (
        Form(
            "unrolled",
            False,
            note="every layer written out; XLA fuses across layers, compile time grows with depth",
        ),
        Form(
            "rolled",
            True,
            note="one loop; compile time constant in depth, keeps all that the backward pass reads",
        ),
        Form(
            "rolled+products",
            True,
            "products",
            note="a loop that keeps matrix products and recomputes the rest",
        ),
        Form(
            "rolled+dots",
            True,
            "dots",
            note="a loop that keeps products with weights and recomputes the rest",
        ),
        Form(
            "rolled+full",
            True,
            "full",
            note="a loop that keeps the stream between layers and recomputes layers",
        ),
        Form(
            "inside", True, "full", True, note="as rolled+full, updating each layer inside the backward loop"
        ),
    )
}


NO_LAYERS = (
    f"no layers that repeat were found (a layer is {LAYERS.nodes} operators or more, {LAYERS.count} times or more, "
    f"and its repeats save {LAYERS.saved} operators; or fewer, with weights of its own, {LAYERS.thin} times or more)"
)


@dataclass(frozen=True)
class Shaped:
    """A program's graph in one form. ``stacks`` says which names of torch each stacked input holds."""

    form: Form
    graph: Graph
    stacks: Stacks


def shape(
    graph: Graph,
    form: Form,
    alike: Callable[[str], Hashable] = lambda name: None,
    rolled: Graph | None = None,
) -> Shaped:
    """``graph`` in ``form``. ``alike(name)`` is equal for parameters that one optimizer rule may update as a stack.
    ``rolled`` is ``roll(graph)``, where the caller has it.

    Parameters that torch leaves without a gradient are never stacked with others, so that an optimizer leaves
    them alone in every form. Pure; a few milliseconds per hundred nodes.
    """
    if not form.rolled:
        return Shaped(form, graph, Stacks())
    reached = connected(graph)
    looped = roll(graph) if rolled is None else rolled
    slim, stacks = stacked(at_once(looped), lambda name: (alike(name), name in reached))
    return Shaped(form, with_remat(slim, None if form.inside else form.policy), stacks)


def loops(graph: Graph) -> tuple[int, ...]:
    """Iterations of the loops of a rolled graph, each followed by those of the loops inside it."""
    return tuple(count for n in graph.nodes if n.op == ROLL for count in (n.args[1], *loops(n.args[0])))


def available(graph: Graph, whole: str = "", rolled: Graph | None = None) -> dict[str, str]:
    """Form name -> empty, or why this program cannot run in it. ``whole``: why all gradients must exist before the
    first update (clipping by their global norm), if they must. ``rolled`` as in ``shape``."""
    slim, _ = stacked(roll(graph) if rolled is None else rolled)
    without = "" if loops(slim) else NO_LAYERS
    inside = without
    if not without and not loops_updated(slim):
        inside = "no loop owns trainable parameters of its own outside torch.utils.checkpoint"
    inside = inside or whole
    return {n: (inside if f.inside else without if f.rolled else "") for n, f in FORMS.items()}
