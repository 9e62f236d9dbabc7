"""The table of differences between two programs that might cost time: what a rule looks at, and the arm that tests it.

A rule looks at one aligned part, or at the programs as a whole, and says what is different, with the figures. It never
says that this costs anything: that is for an arm (findings.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detente.explain import whole_differences
from detente.explain.align import Aligned
from detente.explain.match import opened
from detente.explain.side import Side
from detente.explain.whole_differences import MORE, one_sided
from detente.programs.module import Dot, Work
from detente.programs.parts import Site
from detente.programs.products import is_product
from detente.programs.scope import ROOT
from detente.programs.shown_operation import shown_operation
from detente.programs.sources import sources

# Of reductions and functions, so many times: the same work, done again.
_REPEATED = 1.5
# So many lines of each side are shown.
_LINES = 4


@dataclass(frozen=True)
class Pair:
    """An aligned part with the operations of either side."""

    aligned: Aligned
    a: Sequence[Site]
    b: Sequence[Site]

    @property
    def counted(self) -> bool:
        """Whether it is known how often each operation runs: of a loop without trips no number says anything."""
        return all(s.counted for s in (*self.a, *self.b))

    def count(self, *opcodes: str) -> tuple[int, int]:
        return _runs(self.a, _has(*opcodes)), _runs(self.b, _has(*opcodes))

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
    ``of_text``: it counts over all of a program, and the one that is read must be all of a step. ``counts``: it
    compares numbers of a part's operations, and says nothing where those are not known."""

    code: str
    what: str
    why: str
    arm: str
    directions: tuple[str, ...] = ()
    part: Callable[[Pair], Found | None] | None = None
    whole: Callable[[Side, Side], str | None] | None = None
    of_text: bool = False
    counts: bool = False


def _runs(side: Sequence[Site], wanted: Callable[[Site], bool]) -> int:
    """How many of these operations a step runs: a loop over layers runs its body for each of them."""
    return sum(s.runs for s in side if wanted(s))


def _has(*opcodes: str) -> Callable[[Site], bool]:
    return lambda site: site.operation.opcode in opcodes


# One operation, which a compiler takes apart.
_NORMS = ("batch-norm-training", "batch-norm-grad", "batch-norm-inference")


def _is_of_rows(site: Site) -> bool:
    """Whether a batch norm is the norm of each row (LayerNorm, GroupNorm): PyTorch hands it over as a batch of one,
    whose channels are the rows, and which no weight scales."""
    one = site.operation
    if one.opcode not in _NORMS or len(one.operands) < 2:
        return False
    dims = site.home.instructions[one.operands[0]].shape.dims
    return dims[:1] == (1,) and sources(site, one.operands[1]) == {"constant"}


def _layer_norm(pair: Pair) -> Found | None:
    return _one_norm(pair, of_rows=True)


def _batch_norm(pair: Pair) -> Found | None:
    return _one_norm(pair, of_rows=False)


def _one_norm(pair: Pair, of_rows: bool) -> Found | None:
    found = pair.count(*_NORMS)
    if not one_sided(found) or any(_is_of_rows(s) for s in (*pair.a, *pair.b)) != of_rows:
        return None
    return f"{found[0]} and {found[1]} batch norms", _has(*_NORMS, "rsqrt")


def _position_ids(pair: Pair) -> Found | None:
    (a_counts, a_holds), (b_counts, b_holds) = _positions(pair.a), _positions(pair.b)
    if bool(a_counts) == bool(a_holds) or bool(b_counts) == bool(b_holds) or bool(a_counts) == bool(b_counts):
        return None
    said = f"{a_counts} and {b_counts} lookups by an iota, {a_holds} and {b_holds} by a constant"
    return said, _has("iota", "gather")


def _positions(side: Sequence[Site]) -> tuple[int, int]:
    """How many lookups are at places that the program counts, and how many at places that it has as a constant. What is
    looked up by data, tokens or labels, is at no position."""
    made_of = [
        (s.runs, sources(s, s.operation.operands[1]))
        for s in side
        if s.operation.opcode == "gather" and len(s.operation.operands) > 1
    ]
    counted = sum(n for n, found in made_of if "iota" in found and found <= {"iota", "constant"})
    return counted, sum(n for n, found in made_of if found == {"constant"})


def _gather_form(pair: Pair) -> Found | None:
    if not all(pair.count("gather")):
        return None
    mine = _guards(pair.a) | _guards(pair.b)
    a, b = (_runs(side, lambda s: id(s.operation) in mine) for side in (pair.a, pair.b))
    if a == b:
        return None
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
    a, b = _runs(pair.a, _is_wide), _runs(pair.b, _is_wide)
    if not one_sided((a, b)):
        return None
    return f"{a} and {b} operations on 64-bit integers", _is_wide


def _is_wide(site: Site) -> bool:
    return site.operation.shape.dtype in ("s64", "u64")


def _ranks(side: Sequence[Site]) -> Counter[int]:
    """Dimensions of the results of products, batch dimensions left out."""
    found: Counter[int] = Counter()
    for s in side:
        if isinstance(s.operation.detail, Dot):
            found[len(s.operation.shape.dims) - len(s.operation.detail.batch)] += s.runs
    return found


def _flattened(pair: Pair) -> Found | None:
    a, b = _ranks(pair.a), _ranks(pair.b)
    if not a or not b or set(a) == set(b):
        return None
    said = [", ".join(f"{n} of rank {r}" for r, n in sorted(c.items())) for c in (a, b)]
    return f"products: {said[0]} and {said[1]}: one side flattens rows first", lambda s: is_product(
        s.operation
    )


def _products(side: Sequence[Site]) -> int:
    return _runs(side, lambda s: is_product(s.operation))


def _split(pair: Pair) -> Found | None:
    a, b = _products(pair.a), _products(pair.b)
    if not a or not b or a == b:
        return None
    return f"{a} and {b} products for the same weights", lambda s: is_product(s.operation)


def _of_pairs(site: Site) -> bool:
    """Whether a product is of every row with every row, head by head, or a call that says what it multiplies."""
    detail = site.operation.detail
    return isinstance(detail, Work) or (isinstance(detail, Dot) and bool(detail.batch))


def _mask(pair: Pair) -> Found | None:
    # A mask is of every pair of positions, before their softmax: what a ReLU selects is none, nor is a loss's label.
    if not (_runs(pair.a, _of_pairs) and _runs(pair.b, _of_pairs) and any(pair.count("exponential"))):
        return None
    kinds = ("select", "compare", "and", "iota")
    a, b = pair.count(*kinds)
    if max(a, b) < MORE * max(min(a, b), 1):
        return None
    return f"{a} and {b} operations that make or apply a mask", _has(*kinds)


def _softmax_loss(pair: Pair) -> Found | None:
    if pair.aligned.path != ROOT:
        return None
    kinds = ("exponential", "log", "gather", "scatter", "iota", "compare")
    # A loop over layers is of the model itself, too: what it compares is a number of turns.
    arrays = [[s for s in side if s.operation.shape.dims] for side in (pair.a, pair.b)]
    a, b = ({k: n for k in kinds if (n := _runs(side, _has(k)))} for side in arrays)
    # What else lies in the model itself may be an activation: of a loss there is a logarithm, and in its gradient what
    # picks the label out.
    of_loss = {"log"} if pair.aligned.direction == "forward" else {"gather", "scatter", "iota", "compare"}
    if "exponential" not in {*a, *b} or not of_loss & {*a, *b} or a == b:
        return None
    said = [", ".join(f"{n} {k}" for k, n in c.items()) or "none" for c in (a, b)]
    return f"the loss is {said[0]}; and {said[1]}", _has(*kinds)


def _optimizer_converts(pair: Pair) -> Found | None:
    a, b = pair.count("broadcast", "convert")
    if max(a, b) < MORE * max(min(a, b), 1):
        return None
    return f"{a} and {b} broadcasts and converts", _has("broadcast", "convert")


def _repeated(pair: Pair) -> Found | None:
    kinds = ("reduce", "exponential", "tanh", "erf", "rsqrt", "logistic", "sort")
    if one_sided(pair.count(*_NORMS)):
        return (
            None  # what the one operation is expanded to stands in no text, and its finding is another rule's
        )
    # A batch norm is opened: it is as many reductions as a norm that is written out.
    a, b = (
        sum(s.runs for s in side for o in opened(s.operation.opcode) if o in kinds)
        for side in (pair.a, pair.b)
    )
    if min(a, b) == 0 or max(a, b) < _REPEATED * min(a, b):
        return None
    return f"{a} and {b} reductions and functions of the same part", _has(*kinds)


RULES: tuple[Rule, ...] = (
    Rule(
        "layernorm-as-batch-norm",
        "a norm of rows (LayerNorm, GroupNorm) is written as a batch norm",
        "an operation that a compiler expands in its own way, and fuses in another",
        "program",
        part=_layer_norm,
    ),
    Rule(
        "batch-norm-written-out",
        "a batch norm is one operation, or written out",
        "an operation that a compiler expands in its own way, and fuses in another",
        "program",
        part=_batch_norm,
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
        counts=True,
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
        counts=True,
    ),
    Rule(
        "mask-materialised",
        "a mask is made in another way",
        "an array of every pair of positions is written and read",
        "program",
        ("forward",),
        part=_mask,
        counts=True,
    ),
    Rule(
        "softmax-loss-form",
        "the loss is written in another way",
        "another pass over the logits, the largest array of a language model",
        "program",
        ("forward", "backward"),
        part=_softmax_loss,
        counts=True,
    ),
    Rule(
        "optimizer-broadcast-convert",
        "the update has other broadcasts and converts",
        "a scalar in another dtype is converted for each parameter; fused, it is free",
        "program",
        ("optimizer",),
        part=_optimizer_converts,
        counts=True,
    ),
    Rule(
        "work-repeated",
        "reductions and functions of one part are more",
        "the same values are computed again",
        "program",
        part=_repeated,
        counts=True,
    ),
    Rule(
        "data-moved",
        "more data is only moved",
        "a transpose or a copy that no other kernel took in reads and writes memory once more; one that a kernel took "
        "in reads or writes across rows",
        "program",
        whole=whole_differences.moved,
        of_text=True,
    ),
    Rule(
        "fusion-barrier",
        "barriers and conditionals in the program",
        "no kernel reaches across a conditional, so that what lies between goes through memory; nor across a barrier, "
        "but XLA's compiler for CPUs drops barriers before it fuses",
        "program",
        whole=whole_differences.apart,
        of_text=True,
    ),
    Rule(
        "optimizer-outside",
        "a step is several executables",
        "what one leaves for the next goes through memory, and each is dispatched",
        "optimizer",
        whole=whole_differences.executables,
    ),
    Rule(
        "missing-donation",
        "one side's results take over less memory, or none",
        "new memory at every step, and twice the state at its end",
        "donation",
        whole=whole_differences.donation,
    ),
    Rule(
        "host-tracing",
        "the processor waits for the host",
        "tracing and dispatch run in Python between the operations",
        "runtime",
        whole=whole_differences.host,
    ),
    Rule(
        "loop-or-unrolled",
        "layers are a loop on one side",
        "a loop compiles once, and hides what could be fused across layers",
        "loop",
        whole=whole_differences.loops,
        of_text=True,
    ),
    Rule(
        "library-call-or-codegen",
        "products are a library's on one side",
        "a library's kernel, or the compiler's own code",
        "library-kernels",
        whole=whole_differences.library,
        of_text=True,
    ),
    Rule(
        "bridges-kernels",
        "kernels that are not XLA's",
        "PyTorch's BLAS multiplies faster on some processors, and an update in one loop passes over memory once",
        "torch-kernels",
        whole=whole_differences.bridges_kernels,
    ),
)
