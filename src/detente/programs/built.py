"""What a compiler made of a step, in the numbers that an arm's check reads: whether a cause was really switched."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from detente.programs.count import live, read_program
from detente.programs.hlo import BRIDGES, calls_back
from detente.programs.module import Instruction, Module
from detente.programs.operators import operator_facts
from detente.programs.parts import FREE, running, sites
from detente.programs.products import is_product, product_flops


def built_facts(captures: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
    """The facts of a step's programs, given as (form, bytes); those of optimised programs are absent where a stack
    gives none away.

    executables  optimised programs that a step runs
    kernels      what they call one by one: fusions, calls of libraries, copies and operations of their own; the body of
                 a loop counts once
    products     dots and convolutions among the kernels: those that neither a fusion nor a library took in
    loops        of the optimised programs
    alias_bytes  of arguments whose buffer a result takes over
    bridge_calls kernels that the bridge brings: another library's products, loops of its own
    program      the hash of what was handed to the compiler; absent where it calls Python functions of its process, of
                 which nobody else knows what they compute
    attention_calls, convolutions, channels_last
                 of PyTorch's operators (programs/operators.py)
    compiler     the release of the compiler, of a stack that says it (the capture adds it)
    traced       operations that a step traces anew, of a stack that does (the capture adds it)
    work         its heavy operations by opcode and dtype, calls opened, and their FLOPs: the same for a program that is
                 called by another, or that was written down and read again, whatever is folded on the way

    Raises ProgramError for unreadable bytes.
    """
    captures = tuple(captures)
    optimised = [read_program(data, form) for form, data in captures if form == "hlo-optimised"]
    before = [read_program(data, form) for form, data in captures if form == "hlo"]
    facts: dict[str, Any] = {}
    for data in (data for form, data in captures if form == "operators"):
        facts |= operator_facts(data)
    if before:
        facts["work"] = _work(before)
        if not any(_calls_back(module) for module in before):
            facts["program"] = "+".join(m.sha256 for m in before)
    if not optimised:
        return facts
    found = [kind for module in optimised for kind in _kernels(module)]
    return {
        "executables": len(optimised),
        "kernels": len(found),
        "products": found.count("product"),
        "loops": sum(_count(module, lambda one: one.opcode == "while") for module in optimised),
        "alias_bytes": sum(module.aliased for module in optimised),
        "bridge_calls": sum(_count(module, lambda one: one.target in BRIDGES) for module in optimised),
        **facts,
    }


# What no compiler folds, merges or moves away on its way in.
_HEAVY = frozenset(
    {
        "dot", "convolution", "reduce", "reduce-window", "select-and-scatter", "batch-norm-training", "batch-norm-grad",
        "batch-norm-inference", "gather", "scatter", "exponential", "log", "tanh", "logistic", "erf", "rsqrt", "sort",
        "rng", "rng-bit-generator", "custom-call", "cholesky", "triangular-solve", "fft", "cosine", "sine",
    }
)  # fmt: skip


def _work(modules: Iterable[Module]) -> str:
    """How many there are, and a hash of which."""
    found: Counter[str] = Counter()
    for module in modules:
        for site in sites(module):
            one = site.operation
            if one.opcode in _HEAVY:
                found[f"{one.opcode} {one.shape.dtype}"] += site.runs
            found["flops"] += site.runs * product_flops(one, site.home)
    count = sum(n for what, n in found.items() if what != "flops")
    return f"{count}:{hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:12]}"


def _calls_back(module: Module) -> bool:
    every = (one for home in module.computations.values() for one in home.instructions)
    return any(one.opcode == "custom-call" and calls_back(one.target) for one in every)


def _kernels(module: Module) -> list[str]:
    """A word for each kernel."""
    return [
        "product" if is_product(one) else "other"
        for home, _ in running(module)
        for at in sorted(live(home))
        if (one := home.instructions[at]).opcode not in FREE and one.opcode != "call"
    ]


def _count(module: Module, wanted: Callable[[Instruction], bool]) -> int:
    return sum(wanted(home.instructions[at]) for home, _ in running(module) for at in live(home))
