"""What the values of a session may be: one table of fields, one walk over the records. Standard library only.

The codec checks types; this checks ids, ranges and sizes. Every line of every file passes here before anything is
stored or judged, because a file may be a stranger's, and because a broken disk writes strange values too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_args

from detente.records.cell import Cell
from detente.records.codec import SchemaError, shown
from detente.records.contract import Contract
from detente.records.evidence import CompileRecord, Evidence
from detente.records.job import JobKind
from detente.records.precision import PRECISIONS
from detente.records.program import Program
from detente.records.sample import Sample
from detente.records.session import Fingerprint, Process, Session
from detente.records.tensor_error import TensorError
from detente.records.window import HandOut, Replay, Window

# The end of the year 9999, less a day for time zones, in seconds since the epoch: later ones are no dates to Python.
LAST_MOMENT = 253_402_200_000.0
# Three years: longer than any process or session lives.
LONGEST_S = 1e8
LONGEST_NS = 10**17
# What SQLite and every other reader can hold.
LARGEST = 2**63 - 1
NAME, TEXT, ENTRIES, SAMPLES, DEPTH, NODES = 1_000, 20_000, 10_000, 1_000_000, 24, 200_000
# Bytes of a line of a session file, which holds one process: one of GPT-2 with all that the probes bring back is 100
# KB.
LONGEST_LINE = 16 * 2**20
# What a worker may bring back: a line besides holds how its process ran.
LONGEST_EVIDENCE = LONGEST_LINE - 2**20

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LATEST = "latest"

# A check says what is wrong with a value, or nothing.
Check = Callable[[Any], str]


def wrong_id(id: str) -> str:
    """Why this cannot be a session's id; empty when it can. An id names a file, so it may hold nothing that leaves a
    folder, and it is typed, so it is not a word of ours.

    >>> wrong_id("20261122-101500-ab12"), wrong_id("../../evil") != ""
    ('', True)
    """
    if not _ID.fullmatch(id):
        return (
            "an id has up to 80 letters, digits, dots, dashes, underscores, and begins with a letter or digit"
        )
    if id == _LATEST or id.endswith(".jsonl"):
        return "`latest` and names of .jsonl files mean something else on the command line"
    return ""


def check_record(record: Any, path: str) -> None:
    """Raise SchemaError naming the first field of ``record``, or of a record inside it, that is out of its limits."""
    for where, value, why in _wrong(record, path):
        raise SchemaError(f"{where} is {shown(value)}: {why}")


def _wrong(record: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    kind = type(record)
    table = FIELDS.get(kind)
    if table is None:
        return
    for f in fields(record):
        value = getattr(record, f.name)
        check = table.get(f.name)
        if check is not None and (why := check(value)):
            yield f"{path}.{f.name}", value, why
        if type(value) in FIELDS:
            yield from _wrong(value, f"{path}.{f.name}")
        elif f.name in _INSIDE and isinstance(value, tuple):
            for i, inner in enumerate(value):
                if type(inner) is Sample and _sound(inner):
                    continue  # a million of them: nothing is called for one that is as it should be
                yield from _wrong(inner, f"{path}.{f.name}[{i}]")
    whole = WHOLE.get(kind)
    if whole is not None:
        yield from whole(record, path)


# Fields that hold records.
_INSIDE = frozenset({"planned", "processes", "samples", "errors", "programs", "hand_outs", "seen"})


def _sound(s: Sample) -> bool:
    return (
        0 < s.wall_ns <= LONGEST_NS
        and 0 < s.steps <= 10**9
        and 0 <= s.cpu_ns <= LONGEST_NS
        and 0 <= s.compile_events <= 10**9
    )


# -- checks of one value ------------------------------------------------------------------------------------------


def _between(low: float, high: float) -> Check:
    # Not a number is not between anything.
    return lambda value: "" if low <= value <= high else f"it must lie between {low:g} and {high:g}"


def _optional(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def _measured(value: Any) -> str:
    """An error or a size in floating point: nan and inf are results."""
    return "it cannot be negative" if value < 0 else ""


def _name(value: Any) -> str:
    if not value or len(value) > NAME:
        return f"a name has 1 to {NAME} characters"
    return "" if value.isprintable() else "a name has no control characters"


def _label(value: Any) -> str:
    return "a label has no slash" if "/" in value else _name(value)


def _text(value: Any) -> str:
    return "" if len(value) <= TEXT else f"a text has up to {TEXT} characters"


def _texts(value: Any) -> str:
    pairs = [x for pair in value.items() for x in pair] if isinstance(value, dict) else list(value)
    if len(pairs) > 2 * ENTRIES:
        return f"there may be up to {ENTRIES} entries"
    return next(filter(None, map(_text, pairs)), "")


def _few(most: int) -> Check:
    return lambda value: "" if len(value) <= most else f"there may be up to {most:,} of them"


def _numbers(low: float, high: float) -> Check:
    inner = _between(low, high)

    def check(value: Any) -> str:
        values = value.values() if isinstance(value, dict) else value
        return _few(ENTRIES)(value) or next(filter(None, map(inner, values)), "")

    return check


def _losses(value: Any) -> str:
    return _few(ENTRIES)(value)  # a loss that is not a number is a result


def _facts(value: Any) -> str:
    return _few(ENTRIES)(value) or next((_name(k) for k in value if _name(k)), "")


def _precision(value: Any) -> str:
    return "" if value in PRECISIONS else f"there are {', '.join(PRECISIONS)}"


def _kind(value: Any) -> str:
    return "" if value in get_args(JobKind) else f"there are {', '.join(get_args(JobKind))}"


def _sha256(value: Any) -> str:
    return "" if _SHA256.fullmatch(value) else "it is no SHA-256"


def _free(value: Any) -> str:
    """Free-form JSON: not too deep, not too much of it, and no number that a reader could not hold."""
    waiting, nodes = [(value, 0)], 0
    while waiting:
        inner, depth = waiting.pop()
        nodes += 1
        if depth > DEPTH:
            return f"it is nested deeper than {DEPTH}"
        if nodes > NODES:
            return f"it has more than {NODES:,} values"
        if isinstance(inner, dict):
            long = next((k for k in inner if len(k) > NAME), None)
            if long is not None:
                return f"a key has {len(long)} characters, and may have {NAME}"
            waiting += [(v, depth + 1) for v in inner.values()]
        elif isinstance(inner, list | tuple):
            waiting += [(v, depth + 1) for v in inner]
        elif isinstance(inner, str) and len(inner) > TEXT:
            return f"a text in it has {len(inner)} characters, and may have {TEXT}"
        elif isinstance(inner, int) and abs(inner) > LARGEST:
            return f"a number in it has {inner.bit_length()} bits"
    return ""


def _workloads(value: Any) -> str:
    """``settings["workloads"]``: what the judge computes the floor from."""
    if not isinstance(value, dict):
        return "it is no object"
    for name, costs in value.items():
        if not isinstance(costs, dict):
            return f"{shown(name)} is no object"
        for key in ("flops", "bytes", *({"least_flops"} & costs.keys())):
            number = costs.get(key)
            if type(number) is not int or not 0 <= number <= LARGEST:
                return f"{key} of {shown(name)} is {shown(number)}, not a whole number of at least 0"
    return ""


def _settings(value: Any) -> str:
    blocks = value.get("blocks")
    if blocks is not None and (type(blocks) is not int or not 1 <= blocks <= ENTRIES):
        return f"`blocks` is {shown(blocks)}"
    costs = value.get("workloads")
    # A request names its workloads in a list; the session puts their costs in the place of it.
    wrong = "" if costs is None else _workloads(costs)
    return f"`workloads`: {wrong}" if wrong else _free(value)


def _moment(value: Any) -> str:
    return "" if 0 <= value <= LAST_MOMENT else "it must be seconds since 1970, before the year 10000"


# A reading of the parent's that came too late is negative, and harmless.
_SPAN = _between(-LONGEST_NS, LONGEST_NS)
_COUNT, _SIZE = _between(0, 10**9), _between(0, LARGEST)
_SECONDS, _SECONDS_OR_NONE = _between(0, LONGEST_S), _optional(_between(0, LONGEST_S))

FIELDS: dict[type, dict[str, Check]] = {
    Session: {
        "id": wrong_id,
        "started": _moment,
        "ended": _optional(_moment),
        "imported": _optional(_moment),
        "command": _texts,
        "planned": _few(ENTRIES),
        "skipped": _texts,
        "aa": lambda value: "" if value is None else next(filter(None, map(_label, value)), ""),
        "note": _text,
        "rested": _texts,
        "looked": _between(0, ENTRIES),
    },
    Fingerprint: {"machine": _free, "settings": _settings, "source": _text},
    Process: {
        "kind": _kind,
        "block": _between(-1, 10**6),
        "order": _between(0, 10**6),
        "started": _moment,
        "wall_s": _SECONDS,
        "foreign": _between(0, 1),
        "environment": _texts,
        "phases": _numbers(0, LONGEST_S),
    },
    Cell: {
        "workload": _name,
        "size": _label,
        "stack": _name,
        "device": _label,
        "label": _label,
    },
    Contract: {"name": _label, "precision": _precision},
    Evidence: {
        "phase": _text,
        "reason": _text,
        **dict.fromkeys(("import_s", "build_s", "first_s", "second_s", "third_s"), _SECONDS_OR_NONE),
        "losses": _losses,
        "samples": _few(SAMPLES),
        "errors": _few(SAMPLES),
        "memory": _numbers(0, LARGEST),
        "programs": _few(ENTRIES),
        "versions": _texts,
        "probes": _free,
        "killed": _text,
        "left": _text,
    },
    CompileRecord: {"events": _COUNT, "seconds": _SECONDS, "steady_events": _COUNT},
    Sample: {
        "wall_ns": _between(1, LONGEST_NS),
        "steps": _between(1, 10**9),
        "cpu_ns": _between(0, LONGEST_NS),
        "compile_events": _COUNT,
    },
    Window: {
        "proved": _COUNT,
        **dict.fromkeys(("warm_ns", "warm_cpu_ns", "parent_wall_ns", "parent_cpu_ns"), _SPAN),
        **dict.fromkeys(
            ("fresh_place_ns", "seen_place_ns", "fresh_place_cpu_ns", "seen_place_cpu_ns"), _SPAN
        ),
        **dict.fromkeys(("placing_ns", "placing_cpu_ns"), _SPAN),
        "errors": _few(SAMPLES),
        "hand_outs": _few(ENTRIES),
        "seen": _few(ENTRIES),
        "disorder": _text,
        "kept": _texts,
    },
    HandOut: {"at": _COUNT, "wall_ns": _SPAN, "cpu_ns": _SPAN, "copy_ns": _SPAN, "tensors": _COUNT},
    Replay: {
        "first": _COUNT,
        "steps": _COUNT,
        "errors": _few(SAMPLES),
        "reason": _text,
        "refused": _text,
    },
    TensorError: {
        "name": _text,
        "err": _measured,
        "err_ref": _measured,
        "rms": _measured,
        "elements": _SIZE,
    },
    Program: {"form": _name, "name": _text, "sha256": _sha256, "bytes": _SIZE, "facts": _facts},
}


# -- checks of a whole record ---------------------------------------------------------------------------------------


def _program(p: Program, path: str) -> Iterator[tuple[str, Any, str]]:
    # The path is joined to a folder: it can be nothing but the place that the hash names.
    if p.path and p.path != f"{p.sha256[:2]}/{p.sha256}":
        yield f"{path}.path", p.path, "a program lies where its hash says"
    bad = next((k for k, v in p.facts.items() if not math.isfinite(v)), None)
    if bad is not None:
        yield f"{path}.facts.{bad}", p.facts[bad], "it must be finite"


def _session(s: Session, path: str) -> Iterator[tuple[str, Any, str]]:
    twice = [key for key, times in Counter(c.key for c in s.planned).items() if times > 1]
    if twice:
        yield f"{path}.planned", twice[0], "the same cell is planned twice"


WHOLE: dict[type, Callable[[Any, str], Iterator[tuple[str, Any, str]]]] = {
    Program: _program,
    Session: _session,
}
