"""``python -m suite --subject torchax "BatchNorm in eval"``: one case on one subject, the outcome as a line of JSON.

``--list`` prints the names of all cases. With PYTHONPATH=src:tests/bridge/semantics.
"""

from __future__ import annotations

import argparse
import json
import sys

from suite.judge import outcome
from suite.subjects import SUBJECTS, subject
from suite.table import BY_NAME, CASES


def main() -> int:
    """The exit code is 0 for every outcome: the outcome is in the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--subject", choices=sorted(SUBJECTS), default="detente")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list or given.name is None:
        print("\n".join(case.name for case in CASES))
        return 0
    case = BY_NAME[given.name]
    theirs = [subject("torch")(case, run) for run in case.runs]
    ours = [subject(given.subject)(case, run) for run in case.runs]
    found = outcome(case, theirs, ours)
    print(json.dumps({"case": case.name, "subject": given.subject, "kind": found.kind, "why": found.why}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
