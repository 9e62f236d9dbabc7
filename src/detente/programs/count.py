"""A Module to its Counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from detente.programs.calls import Budget, check_depth
from detente.programs.draws import draws
from detente.programs.hlo import ELEMENTWISE_CALLS, read_hlo
from detente.programs.layer_norm import norm_form
from detente.programs.loops import trip_count
from detente.programs.module import Computation, Module, ProgramError
from detente.programs.operators import read_operators
from detente.programs.products import is_product, operand_dtypes, product_flops
from detente.programs.stablehlo import read_stablehlo
from detente.programs.sums import narrow_terms
from detente.records.counts import Counts, Loop

READERS = {
    "hlo": read_hlo,
    "hlo-optimised": read_hlo,
    "stablehlo": lambda data: read_stablehlo(data.decode("utf-8", "replace")),
    "operators": read_operators,
}
PLUMBING = frozenset({"parameter", "constant", "tuple", "get-tuple-element"})
LARGE = 1_000_000
# Their computations are entered as part of the program; every other ``called`` is the scalar body of a reduction,
# scatter, sort or collective.
ENTERED = frozenset(
    {"call", "while", "conditional", "fusion", "async-start", "composite", "optimization-barrier"}
)
# What happens even if nobody reads the result.
_EFFECTS = frozenset(
    {
        "infeed",
        "outfeed",
        "send",
        "recv",
        "send-done",
        "recv-done",
        "custom-call",
        "while",
        "call",
        "conditional",
    }
)


def read_program(data: bytes, form: str) -> Module:
    """A captured program of any form in READERS. Raises ProgramError for another form or for broken bytes."""
    if form not in READERS:
        raise ProgramError(f"a program of form {form!r} cannot be counted; these can: {', '.join(READERS)}")
    return READERS[form](data)


def count_program(data: bytes, form: str) -> Counts:
    """``count`` of a captured program."""
    return count(read_program(data, form), form)


@dataclass
class _Tally:
    opcodes: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    product_dtypes: Counter[str] = field(default_factory=Counter)
    product_flops: Counter[str] = field(default_factory=Counter)
    custom_calls: Counter[str] = field(default_factory=Counter)
    norms: Counter[str] = field(default_factory=Counter)
    narrow_sums: dict[str, int] = field(default_factory=dict)
    constants: list[int] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    flops: int = 0
    rng: int = 0
    dead: int = 0
    seen: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)


def count(module: Module, form: str = "hlo") -> Counts:
    """The Counts of a program."""
    tally = _Tally()
    _walk(module, module.computations[module.entry], 1, tally, ())
    return Counts(
        form=form,
        name=module.name,
        lines=module.lines,
        dead=tally.dead,
        instructions=sum(len(c.instructions) for c in module.computations.values()),
        operations=sum(n for op, n in tally.opcodes.items() if op not in PLUMBING),
        opcodes=_sorted(tally.opcodes),
        dtypes=_sorted(tally.dtypes),
        products=sum(tally.product_dtypes.values()),
        product_dtypes=_sorted(tally.product_dtypes),
        flops=tally.flops,
        constants_bytes=sum(tally.constants),
        large_constants=tuple(sorted((b for b in tally.constants if b > LARGE), reverse=True)),
        argument_bytes=sum(s.bytes for p in module.parameters for s in p.results),
        output_bytes=sum(s.bytes for s in module.root.results),
        alias_bytes=module.aliased,
        rng_ops=tally.rng,
        loops=tuple(tally.loops),
        unknown_loops=sum(loop.trips is None for loop in tally.loops),
        custom_calls=_sorted(tally.custom_calls),
        norms=_sorted(tally.norms),
        narrow_sums=dict(sorted(tally.narrow_sums.items())),
        hash=module.sha256,
        product_flops=_sorted(tally.product_flops),
    )


def _walk(module: Module, home: Computation, runs: int, tally: _Tally, above: tuple[str, ...]) -> None:
    """Count ``home`` as one site; ``runs`` is how often it runs in one step."""
    check_depth(home, above)
    tally.budget.spend(1 + len(home.instructions))
    first = home.name not in tally.seen
    alive = live(home)
    tally.seen.add(home.name)
    for at, one in enumerate(home.instructions):
        if at not in alive:
            tally.dead += 1
            continue
        if one.opcode not in ("call", "fusion"):
            tally.opcodes[one.opcode] += 1
            if one.opcode not in PLUMBING:
                tally.dtypes[one.shape.dtype] += 1
        if one.opcode == "constant" and first:
            whole = sum(s.bytes for s in one.results)
            tally.constants.append(whole // max(1, one.shape.elements) if one.splat else whole)
        _count_one(module, home, at, runs, tally)
        if one.opcode == "while":
            trips = trip_count(one, home, module)
            tally.loops.append(Loop(one.called[1], trips))
            condition, body = (module.computations[c] for c in one.called)
            known = 1 if trips is None else trips
            _walk(module, condition, runs * (known + 1), tally, (*above, home.name))
            _walk(module, body, runs * known, tally, (*above, home.name))
        elif one.opcode in ENTERED:
            for name in one.called:
                _walk(module, module.computations[name], runs, tally, (*above, home.name))


def live(home: Computation) -> set[int]:
    """Positions whose value the root needs, and parameters. torch_xla hands over operations that nothing reads (the
    gradient of an input, say), and every compiler drops them before anything else: they are not part of the work."""
    wanted = [home.root]
    wanted += [
        k for k, one in enumerate(home.instructions) if one.opcode in _EFFECTS or one.opcode == "parameter"
    ]
    alive: set[int] = set()
    while wanted:
        at = wanted.pop()
        if at not in alive:
            alive.add(at)
            wanted += home.instructions[at].operands
    return alive


def _count_one(module: Module, home: Computation, at: int, runs: int, tally: _Tally) -> None:
    one = home.instructions[at]
    if is_product(one):
        dtypes, flops = operand_dtypes(one, home), runs * product_flops(one, home)
        tally.product_dtypes[dtypes] += 1
        tally.product_flops[dtypes] += flops
        tally.flops += flops
    elif one.opcode == "custom-call" and one.target not in ELEMENTWISE_CALLS:
        tally.custom_calls[one.target or "?"] += 1
    if terms := narrow_terms(one, home, module):
        dtype = one.shape.dtype
        tally.narrow_sums[dtype] = max(terms, tally.narrow_sums.get(dtype, 0))
    form = norm_form(one, at, home, module)
    if form is not None:
        tally.norms[form] += runs
    if draws(one):
        tally.rng += 1


def _sorted(counter: Counter[str]) -> dict[str, int]:
    """Most frequent first, then by name: the same program always prints the same census."""
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))
