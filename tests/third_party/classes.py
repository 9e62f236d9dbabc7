"""What a refusal is worth, by its code and its words alone: the rules know no package and no model.

``justified``: eager PyTorch does something that no fixed program can, or that nobody should compile. ``missing``: the
bridge could run it and does not. ``wrong line``: the reason is right or wrong, but the place or the words send the
reader elsewhere. The first rule that fits decides; what no rule fits is *missing*, so that it is looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """``code`` of the refusal, a pattern of its words, the class and why."""

    code: str
    words: str
    kind: str
    why: str


JUSTIFIED, MISSING, WRONG_LINE = "justified", "missing", "wrong line"
KINDS = (JUSTIFIED, MISSING, WRONG_LINE)
# Codes whose reason is of the call and has no line in the model.
WITHOUT_PLACE = {"batch", "optimizer", "device", "meta", "weights", "threads", "checkpoint", "form"}

RULES = (
    Rule(
        "control-flow",
        r"global|numpy|Python's (random|generator)",
        JUSTIFIED,
        "Python's or numpy's generator decides: another program each step",
    ),
    Rule(
        "dynamic-shape",
        r"",
        JUSTIFIED,
        "the size of a result depends on values; XLA's programs have fixed sizes",
    ),
    # Words of records of before 2026-11-24: the first question was shown, whichever of them stood in the way.
    Rule(
        "control-flow",
        r"^\[control-flow\] GuardOnDataDependentSymNode",
        WRONG_LINE,
        "an older record: the first question is shown, whichever of them stands in the way",
    ),
    Rule(
        "control-flow",
        r"extract specialized integer",
        JUSTIFIED,
        "the size of a result, or an index into Python's own list, depends on values",
    ),
    Rule(
        "control-flow",
        r"what is asked here|asks for a value|data-dependent expression|\b(bool|item|tolist|int|float)\b",
        JUSTIFIED,
        "Python asks for a value that the step computes",
    ),
    Rule("generator", r"", JUSTIFIED, "Python's or numpy's generator is drawn in the step"),
    Rule("op", r"", MISSING, "an operator has no lowering"),
    Rule("export", r"", MISSING, "torch.export or tracing fails where eager does not"),
    Rule("held-tensor", r"", MISSING, "a tensor kept on the module from step to step"),
    Rule("parameter", r"", MISSING, "forward replaces or writes a parameter"),
    Rule("no-grad-inplace", r"", MISSING, "a write under no_grad of what is differentiated"),
    Rule("leaf-inplace", r"", JUSTIFIED, "eager refuses the write, too, outside of no_grad"),
    Rule("function", r"", MISSING, "an autograd.Function that keeps or reads more than its arguments"),
    Rule("hook", r"", MISSING, "a hook of the module or of a gradient"),
    Rule("loss", r"", JUSTIFIED, "the loss is no number"),
)


def classed(record: dict[str, Any]) -> tuple[str, str]:
    """(class, why) of a refused record."""
    code, detail = record.get("code", ""), record.get("detail", "")
    if not record.get("where") and code not in WITHOUT_PLACE:
        return WRONG_LINE, "no line is told"
    for rule in RULES:
        if rule.code == code and re.search(rule.words, detail):
            return rule.kind, rule.why
    return MISSING, "no rule says why"
