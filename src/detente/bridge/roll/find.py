"""The search: which runs of nodes become loops. Pure, deterministic, no framework.

Largest saving first; what is left of a run on either side is searched again, so an encoder and a decoder, or the
stages of a ResNet, give a loop each, and layers that do not match (T5's first, a dense layer before sparse ones)
are peeled. Repeats inside a block are found by searching the block itself (``fold``).
"""

from __future__ import annotations

from dataclasses import dataclass

from detente.bridge.roll.repeats import Stretch, stretches
from detente.bridge.roll.tape import Tape
from detente.bridge.roll.wiring import Wiring, wire


@dataclass(frozen=True)
class Least:
    """What is worth a loop. A block of fewer nodes is no layer (three projections of one tensor, a chain of
    additions): a loop over it would only serialise what XLA does well. The same holds of a loop that saves little.
    The exception is a *thin* layer (``Linear, Tanh``): few nodes, but weights of its own in each of many iterations,
    and a value that goes from one to the next. Its loop saves no compile time and a lot of memory."""

    nodes: int = 5  # in the block
    count: int = 2  # iterations
    saved: int = 24  # (iterations - 1) * nodes
    thin: int = 8  # iterations of a block of fewer nodes


LAYERS = Least()


def find(tape: Tape, least: Least = LAYERS) -> list[Wiring]:
    """Disjoint loops of the graph, in program order."""
    found: list[Wiring] = []
    open_spans = [(0, len(tape.token))]
    while open_spans:
        low, high = open_spans.pop()
        best = _best(tape, low, high, least)
        if best is not None:
            found.append(best)
            open_spans += [(low, best.start), (best.stop, high)]
    return sorted(found, key=lambda w: w.start)


def _best(tape: Tape, low: int, high: int, least: Least) -> Wiring | None:
    thick = _saving(tape, stretches(tape.token, low, high, least.nodes, least.count), least)
    few = Least(nodes=1, count=least.thin, saved=least.thin - 1)
    thin = _saving(tape, stretches(tape.token, low, high, 1, least.thin, least.nodes - 1), few)
    found = [w for w in (thick, thin) if w is not None and (w is thick or _is_layer(tape, w))]
    return min(found, key=lambda w: w.rank, default=None)


def _is_layer(tape: Tape, wiring: Wiring) -> bool:
    """Whether each iteration hands something on and reads parameters that no other iteration reads."""
    kinds = [i.kind for i in tape.graph.inputs]
    for slot, (kind, _, _) in enumerate(wiring.reads):
        mine = set(wiring.sources[:, slot].tolist())
        own = kind == "external" and len(mine) == wiring.count
        if own and all(v < len(kinds) and kinds[v] == "parameter" for v in mine):
            return wiring.carries > 0
    return False


def _saving(tape: Tape, candidates: list[Stretch], least: Least) -> Wiring | None:
    """The loop that saves most nodes."""
    best: Wiring | None = None
    for stretch in candidates:
        if stretch.saved < (least.saved if best is None else best.saved):
            break
        candidate = _rotations(tape, stretch, least)
        if candidate is not None and (best is None or candidate.rank < best.rank):
            best = candidate
    return best


def _rotations(tape: Tape, stretch: Stretch, least: Least) -> Wiring | None:
    """The best loop inside a stretch: every border of the block, then fewer iterations where the wiring breaks."""
    best: Wiring | None = None
    end, period = stretch.start + stretch.length, stretch.period
    # three blocks far at most: whoever peels more than two layers is found in the stretch that they leave
    last = min(end - least.count * period, stretch.start + 3 * period)
    for start in range(stretch.start, last + 1):
        count = (end - start) // period
        enough = least.saved if best is None else best.saved
        if (count - 1) * period < enough:
            break  # starts only move right, so counts only fall
        while count >= least.count and (count - 1) * period >= enough:
            wiring = wire(tape, start, period, count)
            if isinstance(wiring, Wiring):
                if best is None or wiring.rank < best.rank:
                    best = wiring
                break
            count = wiring
    return best
