"""One operator's samples through torch and through the bridge, and what is said of the difference."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from known_gaps import gaps_of
from torch.utils._python_dispatch import TorchDispatchMode

from opinfo.judging import Tolerance, problems
from opinfo.samples import OPS, Run, Sample, differentiable, in_jax, in_torch, samples
from opinfo.tolerances import TOLERANCES

NAMES = sorted(OPS)
# The first of these that an operator has is the one that stands for exactness.
EXACT = (torch.float64, torch.int64, torch.bool, torch.complex128)


def _exact_dtype(name: str) -> torch.dtype | None:
    have = OPS[name].supported_dtypes("cpu")
    return next((dtype for dtype in EXACT if dtype in have), None)


def _reference(sample: Sample, gradient: bool) -> Run:
    """torch's run; without gradients where torch has none for this sample."""
    if gradient:
        try:
            return in_torch(sample, True)
        except RuntimeError:
            pass
    return in_torch(sample, False)


def _doubled(sample: Sample) -> Sample:
    up = {torch.bfloat16: torch.float64}
    return Sample(sample.function, tuple(t.to(up.get(t.dtype, t.dtype)) for t in sample.tensors), sample.text)


def _exact(sample: Sample, reference: Run) -> Run:
    try:
        return in_torch(_doubled(sample), bool(reference.gradients))
    except RuntimeError:
        # The sample names bfloat16 in its arguments and cannot run in float64: torch's own result stands.
        return reference


# Operators that are exported and compiled together in the default run: one export costs more than its samples. A group
# goes once through the alphabet, so that some groups are a sample of all.
_TOGETHER = 24
GROUPS = [NAMES[first :: -(-len(NAMES) // _TOGETHER)] for first in range(-(-len(NAMES) // _TOGETHER))]


def every(share: int, first: int = 0) -> list[str]:
    """The operators of each ``share``-th group: what is compiled together is run together, or nothing is saved."""
    return [name for group in GROUPS[first::share] for name in group]


@cache
def _prepared(name: str, dtype: torch.dtype, limit: int | None) -> tuple[list[Sample], list[Run]]:
    """The samples and torch's runs of them."""
    op = OPS[name]
    gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    bundle = samples(op, dtype, limit)
    return bundle, [_reference(s, gradient and any(map(differentiable, s.tensors))) for s in bundle]


def _dtype_of(name: str, rough: bool) -> torch.dtype | None:
    if not rough:
        return _exact_dtype(name)
    return torch.bfloat16 if torch.bfloat16 in OPS[name].supported_dtypes("cpu") else None


class _Drawing(TorchDispatchMode):
    """Whether an operator that draws was called."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _draws(sample: Sample) -> bool:
    with _Drawing() as drawing:
        in_torch(sample, False)
    return drawing.seen


Member = tuple[str, list[Sample], list[Run]]


def _one_program(members: list[Member]) -> dict[str, list[Run]]:
    """Our runs of all members' samples by operator. Where one of them spoils the program (it raises, draws or faults,
    and the last two are said of all) each half by itself; without the operators that spoil it alone."""
    if not members:
        return {}
    try:
        runs = in_jax(
            [s for _, bundle, _ in members for s in bundle], [r for *_, refs in members for r in refs]
        )
    except Exception:
        runs = []
    if runs and not any(run.random or run.fault for run in runs):
        rest = iter(runs)
        return {name: [next(rest) for _ in bundle] for name, bundle, _ in members}
    if len(members) == 1:
        return {}
    half = len(members) // 2
    return _one_program(members[:half]) | _one_program(members[half:])


@cache
def _group(number: int, rough: bool, limit: int) -> dict[str, list[Run]]:
    """Our runs of a group of operators; one that is missing runs by itself, where its own test tells why."""
    members = []
    for name in GROUPS[number]:
        dtype = _dtype_of(name, rough)
        if dtype is None or gaps_of(name, str(dtype).removeprefix("torch.")):
            continue
        try:
            bundle, references = _prepared(name, dtype, limit)
        except Exception:  # told by the operator's own test
            continue
        if not any(map(_draws, bundle)):  # it would spoil the program for the others
            members.append((name, bundle, references))
    return _one_program(members)


def _runs(name: str, dtype: torch.dtype, limit: int | None) -> list[Run | Exception]:
    """Our run of every sample, or what it raised."""
    if limit is not None:
        together = _group(NAMES.index(name) % len(GROUPS), dtype == torch.bfloat16, limit).get(name)
        if together is not None:
            return list(together)
    bundle, references = _prepared(name, dtype, limit)
    alone = any(gap.every for gap in gaps_of(name, str(dtype).removeprefix("torch.")))
    return _divided(bundle, references, alone)


def _divided(bundle: list[Sample], references: list[Run], alone: bool) -> list[Run | Exception]:
    """One program, and where a sample spoils it two of half the size, down to the sample; or (``alone``) every sample
    by itself, where all are known to fail."""
    if not bundle:
        return []
    if alone and len(bundle) > 1:
        return [
            run
            for pair in zip(bundle, references, strict=True)
            for run in _divided(*([x] for x in pair), True)
        ]
    try:
        return list(in_jax(bundle, references))
    except Exception as error:
        if len(bundle) == 1:
            return [error]
    half = len(bundle) // 2
    return _divided(bundle[:half], references[:half], alone) + _divided(
        bundle[half:], references[half:], alone
    )


def _judged(name: str, dtype: torch.dtype, limit: int | None) -> list[tuple[str, str]]:
    """(sample, problem) of every sample; the problem is empty where all is well."""
    try:
        bundle, references = _prepared(name, dtype, limit)
    except Exception as error:  # OpInfo cannot make the samples here, or torch cannot run them
        return [("", f"torch: {type(error).__name__}: {error}")]
    tolerance = TOLERANCES.get(name, Tolerance())
    found = []
    for sample, run, reference in zip(bundle, _runs(name, dtype, limit), references, strict=True):
        if isinstance(run, Exception):
            found.append((sample.text, f"{type(run).__name__}: {run}"))
        else:
            right = _exact(sample, reference) if dtype == torch.bfloat16 else None
            found.append((sample.text, problems(run, reference, right, tolerance)))
    return found


def _check(name: str, dtype: torch.dtype, limit: int | None) -> None:
    gaps = gaps_of(name, str(dtype).removeprefix("torch."))
    if limit is not None and any(gap.every for gap in gaps):
        limit = 1  # each sample of it fails by itself: one says so
    found = _judged(name, dtype, limit)
    if not found:
        pytest.skip(f"OpInfo has no sample of {name} in {dtype}")
    bad = [(text, problem) for text, problem in found if problem]
    left = [(text, problem) for text, problem in bad if not any(gap.excuses(problem) for gap in gaps)]
    assert not left, "\n".join(f"{name}{text[:300]}\n    {problem[:1500]}" for text, problem in left)
    for gap in gaps:
        hits = sum(gap.excuses(problem) for _, problem in bad)
        if gap.every:
            assert hits == len(found), f"{name} is in known_gaps ({gap.reason}) and now passes: take it out"
        elif limit is None and not gap.chance:
            assert hits, f"{name} is in known_gaps ({gap.reason}) and every sample now passes: take it out"
    if bad:
        pytest.xfail("; ".join(gap.reason for gap in gaps if any(gap.excuses(p) for _, p in bad)))


def exactly(name: str, limit: int | None) -> None:
    dtype = _exact_dtype(name)
    if dtype is None:
        pytest.skip(f"{name} has none of {EXACT}")
    _check(name, dtype, limit)


def roughly(name: str, limit: int | None) -> None:
    if torch.bfloat16 not in OPS[name].supported_dtypes("cpu"):
        pytest.skip(f"torch has no bfloat16 {name} on the CPU")
    _check(name, torch.bfloat16, limit)
