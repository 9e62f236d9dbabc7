"""Sums that a row's program adds in half precision: in words, for a finding and beside a proof that failed."""

from __future__ import annotations

from detente.judge.rules.rule import Row

# Terms. Shorter sums are a value's few readers, whose gradients torch adds in the same dtype.
LONG_SUM = 32
_NAMES = {"bf16": "bfloat16", "f16": "float16"}


def long_sums(row: Row) -> dict[str, int]:
    """Terms of the longest such sum by dtype, where there are enough to tell; empty for a row without a program."""
    found = row.get("program.narrow_sums", {})
    return {dtype: terms for dtype, terms in found.items() if terms >= LONG_SUM}


def told(sums: dict[str, int]) -> str:
    """``its program adds up to 4,096 terms in bfloat16``."""
    longest = max(sums, key=lambda dtype: sums[dtype])
    return f"its program adds up to {sums[longest]:,} terms in {_NAMES.get(longest, longest)}"
