"""How each rule is tried: by a benchmark that has its fault and really runs, by made-up records alone, or not at all.

python -m detente.judge.rules.planting    # the counts, as README and the rules' index print them
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from detente.judge.rules import RULES

Planting = Literal["live", "simulated", "not checked"]

# Rules whose fault stands in the museum (tests/museum), in a stack that runs through the real worker, the real probes
# and the real judge. A test holds this table against the exhibits themselves.
LIVE = frozenset(
    {
        "affinity-differs",
        "cache-state-differs",
        "clock-not-covering",
        "clock-patched",
        "clock-stops-early",
        "compile-in-window",
        "denormals-differ",
        "faster-than-physics",
        "graph-break",
        "handout-is-a-tell",
        "host-interruptions",
        "lazy-outputs",
        "machine-shared",
        "modes-differ",
        "more-cores-than-declared",
        "not-the-same-function",
        "optimizer-outside",
        "precision-differs",
        "priority-differs",
        "probe-failed",
        "product-dtypes-differ",
        "profiler-on",
        "recompiles",
        "reference-not-deterministic",
        "regions-differ",
        "remembered-results",
        "stale-inputs",
        "state-not-donated",
        "steps-fused",
        "survivors-only",
        "threads-differ",
        "told-out-of-order",
        "tuning-differs",
        "two-frameworks",
        "versions-drift",
        "wait-not-idle",
        "weights-baked-in",
        "weights-differ",
        "window-not-proved",
        "work-removed",
    }
)


def planting(code: str) -> Planting:
    """``live``, ``simulated`` (tests/judge plants it in records alone), or ``not checked``: nothing here can see it."""
    if RULES[code].check is None:
        return "not checked"
    return "live" if code in LIVE else "simulated"


def counts() -> str:
    """One sentence for README and the index.

    >>> counts().startswith(f"{len(RULES)} rules: ")
    True
    """
    kinds = Counter(planting(code) for code in RULES)
    return (
        f"{len(RULES)} rules: {kinds['live']} are planted live in the museum, {kinds['simulated']} are tried on "
        f"made-up records alone, {kinds['not checked']} are not checked"
    )


if __name__ == "__main__":
    print(counts())
