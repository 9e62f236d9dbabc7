"""The table of differences between two programs that might cost time: what a rule looks at, and the arm that tests it.

A rule looks at one aligned part, or at the programs as a whole, and says what is different, with the figures. It never
says that this costs anything: that is for an arm (findings.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detente.explain.align import Aligned
from detente.explain.match import opened
from detente.explain.side import Side
from detente.programs.hlo import BRIDGES
from detente.programs.module import Dot
from detente.programs.parts import Site, kernels, movers, transposes
from detente.programs.products import is_product
from detente.programs.scope import ROOT
from detente.programs.shown_operation import shown_operation

# By how much more of an operation one side must have: less is what any two texts differ by.
_MORE = 1.25
# Of reductions and functions, so many times: the same work, done again.
_REPEATED = 1.5
# Of all that a program writes, the share that is moved more on one side.
_MOVED = 0.01
# So many lines of each side are shown.
_LINES = 4


@dataclass(frozen=True)
class Pair:
    """An aligned part with the operations of either side."""

    aligned: Aligned
    a: Sequence[Site]
    b: Sequence[Site]

    def count(self, *opcodes: str) -> tuple[int, int]:
        mine, theirs = (sum(s.operation.opcode in opcodes for s in side) for side in (self.a, self.b))
        return mine, theirs

    def lines(self, wanted: Callable[[Site], bool]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        a, b = (
            tuple(shown_operation(s.operation, s.home) for s in side if wanted(s))[:_LINES]
            for side in (self.a, self.b)
        )
        return a, b


Found = tuple[str, Callable[[Site], bool]]


@dataclass(frozen=True)
class Rule:
    """``part``: looks at one aligned part; ``whole``: at the two sides. Each returns what is different, or None.
    ``of_text``: it counts over all of a program, and the one that is read must be all of a step."""

    code: str
    what: str
    why: str
    arm: str
    directions: tuple[str, ...] = ()
    part: Callable[[Pair], Found | None] | None = None
    whole: Callable[[Side, Side], str | None] | None = None
    of_text: bool = False


def _has(*opcodes: str) -> Callable[[Site], bool]:
    return lambda site: site.operation.opcode in opcodes


def _one_sided(numbers: tuple[int, int]) -> bool:
    return (numbers[0] == 0) != (numbers[1] == 0)


def _layer_norm(pair: Pair) -> Found | None:
    norms = ("batch-norm-training", "batch-norm-grad", "batch-norm-inference")
    found = pair.count(*norms)
    if not _one_sided(found):
        return None
    return f"{found[0]} and {found[1]} batch norms", _has(*norms, "rsqrt")


def _position_ids(pair: Pair) -> Found | None:
    found = pair.count("iota")
    looks = pair.count("gather", "dynamic-slice", "slice")
    if not _one_sided(found) or not any(looks) or not any(pair.count("gather")):
        return None
    return f"indices from {found[0]} and {found[1]} iotas: one side has them as a constant", _has(
        "iota", "gather"
    )


def _gather_form(pair: Pair) -> Found | None:
    if not all(pair.count("gather")):
        return None
    guards = [_guards(side) for side in (pair.a, pair.b)]
    a, b = (len(found) for found in guards)
    if a == b:
        return None
    mine = guards[0] | guards[1]
    return (
        f"a lookup with {a} and {b} operations that keep its indices within the table",
        lambda s: s.operation.opcode == "gather" or id(s.operation) in mine,
    )


def _guards(side: Sequence[Site]) -> set[int]:
    """What keeps the indices of the part's gathers within their tables: the comparisons, selections and sums of
    integers that the indices come from, by the identity of each operation."""
    here = {id(s.operation) for s in side}
    found: set[int] = set()
    for site in side:
        if site.operation.opcode != "gather":
            continue
        waiting, seen = list(site.operation.operands[1:]), set[int]()
        while waiting:
            at = waiting.pop()
            one = site.home.instructions[at]
            if at in seen or id(one) not in here or one.shape.dtype[0] not in "sup":
                continue
            seen.add(at)
            waiting += one.operands
            if one.opcode in ("compare", "select", "clamp", "add", "and", "or", "maximum", "minimum"):
                found.add(id(one))
    return found


def _wide_indices(pair: Pair) -> Found | None:
    a, b = (sum(s.operation.shape.dtype in ("s64", "u64") for s in side) for side in (pair.a, pair.b))
    if not _one_sided((a, b)):
        return None
    return f"{a} and {b} operations on 64-bit integers", lambda s: s.operation.shape.dtype in ("s64", "u64")


def _ranks(side: Sequence[Site]) -> Counter[int]:
    """Dimensions of the results of products, batch dimensions left out."""
    return Counter(
        len(s.operation.shape.dims) - len(s.operation.detail.batch)
        for s in side
        if isinstance(s.operation.detail, Dot)
    )


def _flattened(pair: Pair) -> Found | None:
    a, b = _ranks(pair.a), _ranks(pair.b)
    if not a or not b or set(a) == set(b):
        return None
    said = [", ".join(f"{n} of rank {r}" for r, n in sorted(c.items())) for c in (a, b)]
    return f"products: {said[0]} and {said[1]}: one side flattens rows first", lambda s: is_product(
        s.operation
    )


def _products(side: Sequence[Site]) -> int:
    return sum(is_product(s.operation) for s in side)


def _split(pair: Pair) -> Found | None:
    a, b = _products(pair.a), _products(pair.b)
    if not a or not b or a == b:
        return None
    return f"{a} and {b} products for the same weights", lambda s: is_product(s.operation)


def _mask(pair: Pair) -> Found | None:
    if not all((_products(pair.a), _products(pair.b))):
        return None
    kinds = ("select", "compare", "and", "iota")
    a, b = pair.count(*kinds)
    if max(a, b) < _MORE * max(min(a, b), 1):
        return None
    return f"{a} and {b} operations that make or apply a mask", _has(*kinds)


def _softmax_loss(pair: Pair) -> Found | None:
    if pair.aligned.path != ROOT:
        return None
    kinds = ("exponential", "log", "gather", "scatter", "iota", "compare")
    a, b = (
        {k: n for k in kinds if (n := sum(s.operation.opcode == k for s in side))}
        for side in (pair.a, pair.b)
    )
    if not (a.get("exponential") or b.get("exponential")) or a == b:
        return None
    said = [", ".join(f"{n} {k}" for k, n in c.items()) or "none" for c in (a, b)]
    return f"the loss is {said[0]}; and {said[1]}", _has(*kinds)


def _optimizer_converts(pair: Pair) -> Found | None:
    a, b = pair.count("broadcast", "convert")
    if max(a, b) < _MORE * max(min(a, b), 1):
        return None
    return f"{a} and {b} broadcasts and converts", _has("broadcast", "convert")


def _repeated(pair: Pair) -> Found | None:
    kinds = ("reduce", "exponential", "tanh", "erf", "rsqrt", "logistic", "sort")
    if _layer_norm(pair) is not None:
        return (
            None  # what the one operation is expanded to stands in no text, and its finding is another rule's
        )
    # A batch norm is opened: it is as many reductions as a norm that is written out.
    a, b = (sum(o in kinds for s in side for o in opened(s.operation.opcode)) for side in (pair.a, pair.b))
    if min(a, b) == 0 or max(a, b) < _REPEATED * min(a, b):
        return None
    return f"{a} and {b} reductions and functions of the same part", _has(*kinds)


def _moved(a: Side, b: Side) -> str | None:
    if a.compiled is None or b.compiled is None:
        return None
    alone = [movers(side.compiled) for side in (a, b) if side.compiled is not None]
    inside = [transposes(side.compiled) for side in (a, b) if side.compiled is not None]
    ours, theirs = (alone[k][1] + inside[k][1] for k in (0, 1))
    if max(ours, theirs) < _MORE * max(min(ours, theirs), 1) or abs(ours - theirs) < _MOVED * _results(a, b):
        return None
    (many, size), (fewer, less) = alone
    (across, much), (along, little) = inside
    return (
        f"{many} and {fewer} kernels that only move data, {size:,} and {less:,} bytes; {across} and {along} transposes "
        f"inside of others, {much:,} and {little:,} bytes"
    )


def _results(a: Side, b: Side) -> int:
    """Bytes that the smaller program writes, as its text has it."""
    return min(sum(s.runs * sum(r.bytes for r in s.operation.results) for s in side.sites) for side in (a, b))


def _apart(a: Side, b: Side) -> str | None:
    ours, theirs = ((_written(s, "opt-barrier"), _written(s, "conditional")) for s in (a, b))
    if ours == theirs:
        return None
    said = f"{ours[0]} and {theirs[0]} barriers, {ours[1]} and {theirs[1]} conditionals"
    if a.compiled is None or b.compiled is None:
        return said
    return f"{said}; {len(kernels(a.compiled))} and {len(kernels(b.compiled))} kernels"


def _written(side: Side, opcode: str) -> int:
    """How often an operation stands in the program as it was handed over."""
    return sum(i.opcode == opcode for c in side.handed.computations.values() for i in c.instructions)


def _executables(a: Side, b: Side) -> str | None:
    ours, theirs = (_built(s, "executables") for s in (a, b))
    if min(ours, theirs) < 1 or ours == theirs:
        return None
    return f"a step is {ours} and {theirs} executables"


def _built(side: Side, what: str) -> int:
    """A figure of what the compiler made; -1 where it is not known."""
    found = side.built.get(what)
    return found if isinstance(found, int) else -1


def _planned(side: Side, what: str) -> int:
    """The largest such figure of its programs; -1 where none has it."""
    facts = (p.facts.get(what) for p in side.evidence.programs if p.form == "hlo")
    return max((int(f) for f in facts if f is not None), default=-1)


def _donation(a: Side, b: Side) -> str | None:
    ours, theirs = (max(_built(s, "alias_bytes"), _planned(s, "alias_bytes")) for s in (a, b))
    if min(ours, theirs) < 0 or max(ours, theirs) < _MORE * max(min(ours, theirs), 1):
        return None
    return f"{ours:,} and {theirs:,} bytes of arguments whose memory results take over"


def _host(a: Side, b: Side) -> str | None:
    said = []
    for side in (a, b):
        seconds = side.seconds
        if "busy" not in seconds or not seconds.get("profiled"):
            return None
        said.append(max(0.0, 1 - seconds["busy"] / seconds["profiled"]))
    if abs(said[0] - said[1]) < 0.1:
        return None
    return f"{100 * said[0]:.0f} and {100 * said[1]:.0f} % of a profiled step in which no operation runs"


def _loops(a: Side, b: Side) -> str | None:
    ours, theirs = (_written(side, "while") for side in (a, b))
    return f"{ours} and {theirs} loops" if _one_sided((ours, theirs)) else None


def _library(a: Side, b: Side) -> str | None:
    if a.compiled is None or b.compiled is None:
        return None
    said = []
    for side in (a.compiled, b.compiled):
        calls = Counter(
            i.target
            for c in side.computations.values()
            for i in c.instructions
            if i.opcode == "custom-call" and i.target not in BRIDGES
        )
        said.append(calls)
    if not _one_sided((said[0].total(), said[1].total())):
        return None  # its arm switches all of B's off, and says nothing of a few more
    words = [", ".join(f"{n} {t}" for t, n in c.most_common(3)) or "none" for c in said]
    return f"calls of libraries: {words[0]}; and {words[1]}"


def _bridges_kernels(a: Side, b: Side) -> str | None:
    mine, theirs = (_built(side, "bridge_calls") for side in (a, b))
    if min(mine, theirs) < 0 or mine == theirs:
        return None
    return f"{mine} and {theirs} calls of PyTorch's products and of loops that the bridge brings"


RULES: tuple[Rule, ...] = (
    Rule(
        "layernorm-as-batch-norm",
        "a LayerNorm is written as a batch norm",
        "an operation that a compiler expands in its own way, and fuses in another",
        "program",
        part=_layer_norm,
    ),
    Rule(
        "position-ids-constant",
        "positions are a constant, or computed",
        "a constant is folded ahead of the run; an iota is free",
        "program",
        ("forward",),
        part=_position_ids,
    ),
    Rule(
        "gather-form",
        "a lookup is guarded in another way",
        "what keeps indices within the table runs at every step",
        "program",
        part=_gather_form,
    ),
    Rule(
        "wide-indices",
        "integers have 64 bits",
        "twice the memory of indices, and slower vector code",
        "program",
        part=_wide_indices,
    ),
    Rule(
        "flattened-products",
        "products have other ranks",
        "reshapes around them, and another loop in the library",
        "program",
        part=_flattened,
    ),
    Rule(
        "qkv-split",
        "the same weights in another number of products",
        "fewer, larger products run nearer to the peak",
        "program",
        part=_split,
    ),
    Rule(
        "mask-materialised",
        "a mask is made in another way",
        "an array of every pair of positions is written and read",
        "program",
        ("forward",),
        part=_mask,
    ),
    Rule(
        "softmax-loss-form",
        "the loss is written in another way",
        "another pass over the logits, the largest array of a language model",
        "program",
        ("forward", "backward"),
        part=_softmax_loss,
    ),
    Rule(
        "optimizer-broadcast-convert",
        "the update has other broadcasts and converts",
        "a scalar in another dtype is converted for each parameter; fused, it is free",
        "program",
        ("optimizer",),
        part=_optimizer_converts,
    ),
    Rule(
        "work-repeated",
        "reductions and functions of one part are more",
        "the same values are computed again",
        "program",
        part=_repeated,
    ),
    Rule(
        "data-moved",
        "more data is only moved",
        "a transpose or a copy that no other kernel took in reads and writes memory once more; one that a kernel took "
        "in reads or writes across rows",
        "program",
        whole=_moved,
        of_text=True,
    ),
    Rule(
        "fusion-barrier",
        "barriers and conditionals in the program",
        "no kernel reaches across a conditional, so that what lies between goes through memory; nor across a barrier, "
        "but XLA's compiler for CPUs drops barriers before it fuses",
        "program",
        whole=_apart,
        of_text=True,
    ),
    Rule(
        "optimizer-outside",
        "a step is several executables",
        "what one leaves for the next goes through memory, and each is dispatched",
        "optimizer",
        whole=_executables,
    ),
    Rule(
        "missing-donation",
        "one side's results take over less memory, or none",
        "new memory at every step, and twice the state at its end",
        "donation",
        whole=_donation,
    ),
    Rule(
        "host-tracing",
        "the processor waits for the host",
        "tracing and dispatch run in Python between the operations",
        "runtime",
        whole=_host,
    ),
    Rule(
        "loop-or-unrolled",
        "layers are a loop on one side",
        "a loop compiles once, and hides what could be fused across layers",
        "loop",
        whole=_loops,
        of_text=True,
    ),
    Rule(
        "library-call-or-codegen",
        "products are a library's on one side",
        "a library's kernel, or the compiler's own code",
        "library-kernels",
        whole=_library,
        of_text=True,
    ),
    Rule(
        "bridges-kernels",
        "kernels that are not XLA's",
        "PyTorch's BLAS multiplies faster on some processors, and an update in one loop passes over memory once",
        "torch-kernels",
        whole=_bridges_kernels,
    ),
)
