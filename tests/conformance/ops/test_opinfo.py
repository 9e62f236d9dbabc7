"""PyTorch's own samples for every operator: forward, gradient and jit in float64, and again in bfloat16.

The default run takes up to four samples of an operator (two in bfloat16); ``-m ops`` takes all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from known_gaps import GAPS, gaps_of
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


def _judged(bundle: Sequence[Sample], name: str, dtype: torch.dtype, gradient: bool) -> list[tuple[str, str]]:
    """(sample, problem) of every sample; the problem is empty where all is well."""
    try:
        references = [_reference(s, gradient and any(map(differentiable, s.tensors))) for s in bundle]
    except Exception as error:  # torch itself does not run these samples here
        return [(s.text, f"torch: {type(error).__name__}: {error}") for s in bundle]
    exact = [
        _exact(s, r) if dtype == torch.bfloat16 else None for s, r in zip(bundle, references, strict=True)
    ]
    tolerance = TOLERANCES.get(name, Tolerance())
    try:
        runs: list[Run | Exception] = list(in_jax(bundle, references))
    except Exception:  # one sample spoils the bundle: find which
        runs = []
        for sample, reference in zip(bundle, references, strict=True):
            try:
                runs += in_jax([sample], [reference])
            except Exception as error:
                runs.append(error)
    found = []
    for sample, run, reference, right in zip(bundle, runs, references, exact, strict=True):
        if isinstance(run, Exception):
            found.append((sample.text, f"{type(run).__name__}: {run}"))
        else:
            found.append((sample.text, problems(run, reference, right, tolerance)))
    return found


def _check(name: str, dtype: torch.dtype, limit: int | None) -> None:
    op = OPS[name]
    gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    bundle: list[Sample] = []
    try:
        bundle = samples(op, dtype, limit)
        found = _judged(bundle, name, dtype, gradient)
    except Exception as error:  # OpInfo cannot even make the samples here
        if bundle:
            raise
        found = [("", f"torch: {type(error).__name__}: {error}")]
    if not found:
        pytest.skip(f"OpInfo has no sample of {name} in {dtype}")
    bad = [(text, problem) for text, problem in found if problem]
    gaps = gaps_of(name, str(dtype).removeprefix("torch."))
    left = [(text, problem) for text, problem in bad if not any(gap.excuses(problem) for gap in gaps)]
    assert not left, "\n".join(f"{name}{text[:300]}\n    {problem[:1500]}" for text, problem in left)
    for gap in gaps:
        hits = sum(gap.excuses(problem) for _, problem in bad)
        if gap.every:
            assert hits == len(found), f"{name} is in known_gaps ({gap.reason}) and now passes: take it out"
        elif limit is None:
            assert hits, f"{name} is in known_gaps ({gap.reason}) and every sample now passes: take it out"
    if bad:
        pytest.xfail("; ".join(gap.reason for gap in gaps if any(gap.excuses(p) for _, p in bad)))


def _exactly(name: str, limit: int | None) -> None:
    dtype = _exact_dtype(name)
    if dtype is None:
        pytest.skip(f"{name} has none of {EXACT}")
    _check(name, dtype, limit)


def _roughly(name: str, limit: int | None) -> None:
    if torch.bfloat16 not in OPS[name].supported_dtypes("cpu"):
        pytest.skip(f"torch has no bfloat16 {name} on the CPU")
    _check(name, torch.bfloat16, limit)


@pytest.mark.parametrize("name", NAMES)
def test_exact(name: str) -> None:
    _exactly(name, 4)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name: str) -> None:
    _roughly(name, 2)


@pytest.mark.ops
@pytest.mark.parametrize("name", NAMES)
def test_exact_every_sample(name: str) -> None:
    _exactly(name, None)


@pytest.mark.ops
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_every_sample(name: str) -> None:
    _roughly(name, None)


def test_gaps_name_operators() -> None:
    """A row about an operator that does not exist would excuse nothing and hide a typing error."""
    unknown = sorted({op for gap in GAPS for op in gap.ops} - OPS.keys())
    assert not unknown
