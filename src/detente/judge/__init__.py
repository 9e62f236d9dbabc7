"""The judge: audit rules, statistics, verdicts. Pure functions over records; scipy is imported when a quantile is
needed, frameworks never."""

from __future__ import annotations

from detente.judge.judgement import judge, more_blocks
from detente.judge.rules import RULES, find_rule

__all__ = ["RULES", "find_rule", "judge", "more_blocks"]
