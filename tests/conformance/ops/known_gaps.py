"""What the table does not do, or does differently: every row is checked, and a row that no longer fails is an error.

``match`` is a regular expression that the failure must contain, so that another failure is not excused by it.
``every`` says that every sample of the operator fails; other rows excuse only the samples that match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    ops: tuple[str, ...]
    match: str
    reason: str
    every: bool = False
    dtypes: tuple[str, ...] = ("float64", "bfloat16", "int64", "bool", "complex128")

    def excuses(self, problem: str) -> bool:
        return re.search(self.match, problem) is not None


_DATA = r"data-dependent|DataDependent|DynamicOutputShape|unbacked|dynamic-shape"
_ABSENT = r"NotLoweredError"

GAPS: tuple[Gap, ...] = (
    Gap(
        ("argwhere", "nonzero", "unique", "unique_consecutive", "bincount", "masked_select", "combinations"),
        _DATA,
        "the result's shape depends on data: refused by design (XLA has static shapes)",
        every=True,
    ),
    Gap(
        ("repeat_interleave", "tensor_split", "narrow", "index_put", "nn.functional.ctc_loss", "__getitem__"),
        _DATA,
        "with a tensor of counts, offsets or a boolean mask the shape depends on data: refused by design",
    ),
    Gap(
        ("allclose", "equal", "nn.functional.gaussian_nll_loss", "cov", "corrcoef"),
        _DATA,
        "Python branches on a tensor's value, so torch.export refuses it",
        every=True,
    ),
    Gap(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
        r"output 0: \d+ of",
        "uninitialised memory: torch gives what lies there, the bridge gives zeros",
    ),
    Gap(
        ("nn.functional.instance_norm",),
        r"tracks running statistics",
        "instance_norm hides the write to its running statistics from torch.export: refused in training",
    ),
    Gap(
        ("nn.functional.embedding",),
        r"gradient",
        "max_norm renormalises the weight in place under no_grad, which capture refuses (no-grad-inplace)",
    ),
    Gap(
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        r"gradient|output",
        "OpInfo repeats indices here: which of the values that share a place wins is undefined (the .grad variants pass)",
    ),
    Gap(
        ("argsort", "sort", "msort"),
        r"output [01]: \d+ of",
        "the order of equal elements of an unstable sort is undefined; ours is stable",
        dtypes=("bfloat16",),
    ),
    Gap(("as_strided.partial_views",), r".", "reads memory outside of its input", every=True),
    Gap(("chalf",), r".", "XLA has no complex32", every=True),
    Gap(
        (
            "hash_tensor",
            "to_sparse",
            "resize_as_",
            "resize_",
            "max_pool2d_with_indices_backward",
            "histogram",
            "histogramdd",
            "istft",
            "qr",
            "svd",
            "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d",
            "nn.functional.linear_cross_entropy.chunked",
            "nn.functional.linear_cross_entropy.chunked_none",
        ),
        _ABSENT,
        "no lowering yet: no model of the coverage run uses it",
        every=True,
    ),
)


def gaps_of(op: str, dtype: str) -> list[Gap]:
    """The rows for this operator and dtype."""
    return [gap for gap in GAPS if op in gap.ops and dtype in gap.dtypes]
