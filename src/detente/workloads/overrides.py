"""A size with overrides: ``paper,batch=4,sequence=128``, the size ``paper`` with two of its dimensions set.

The name carries them, so that whatever knows a size by its name (a row, the store, history, every cache) tells it from
the plain one. It is read here and nowhere else, and what was overridden is written in one way: in alphabetical order,
and without what the size has anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from detente.records.fault import UsageFault
from detente.records.limits import LARGEST
from detente.records.nearest import did_you_mean
from detente.workloads.workload import Size, Workload

# Of a user's model, whether it drops anything out: 1 as it is written, 0 not at all (`--no-dropout`).
DROPOUT = "dropout"
# Nine digits: more is no size that anybody can hold.
_VALUE = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


def split_name(name: str) -> tuple[str, dict[str, int]]:
    """The plain name, empty for the workload's largest size, and what is overridden.

    Raises UsageFault for what is not key=value with a positive whole number, or names a dimension twice.

    >>> split_name("paper,batch=4"), split_name(",layers=2")
    (('paper', {'batch': 4}), ('', {'layers': 2}))
    """
    plain, *pairs = (part.strip() for part in name.split(","))
    given: dict[str, int] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise UsageFault(
                f"{pair!r} is not key=value", "for example --set batch=4, or --size paper,batch=4"
            )
        if not _VALUE.fullmatch(value) and not (key == DROPOUT and value == "0"):
            raise UsageFault(
                f"{key}={value} is not a positive whole number of up to nine digits",
                "a dimension of a size counts something: --set batch=4",
            )
        if key in given:
            raise UsageFault(f"{key} is given twice, as {given[key]} and {value}", "name it once")
        given[key] = int(value)
    return plain, given


def override(workload: Workload, size: Size, given: Mapping[str, int]) -> Size:
    """``size`` with the dimensions ``given``, under a name that says which differ; itself where none does.

    Raises UsageFault for a dimension that it has not, and for dimensions that do not go together.
    """
    for key in given:
        if key not in size.dims:
            raise _unknown(workload, size, key)
    changed = {key: value for key, value in sorted(given.items()) if size.dims[key] != value}
    if not changed:
        return size
    dims = {**size.dims, **changed}
    for constraint in workload.constraints:
        if not constraint.holds(dims):
            shown = ", ".join(f"{key}={value}" for key, value in changed.items())
            raise UsageFault(
                f"{workload.name} at {size.name} with {shown}: {constraint.says}",
                f"its dimensions would be {_shown(dims)}",
            )
    name = ",".join((size.name, *(f"{key}={value}" for key, value in changed.items())))
    found = replace(size, name=name, dims=dims)
    # What a session writes down of a workload must be a number to whoever reads it.
    if max(workload.flops(found, "gradient"), workload.bytes(found, "gradient", 4, 4)) > LARGEST:
        raise UsageFault(f"{workload.name} at {name} is larger than any machine", "set smaller dimensions")
    return found


def with_layers(layers: int) -> Callable[[Size], str]:
    """size -> the name of that size with so many layers; empty for one that has no more anyway.

    >>> with_layers(2)(Size("paper,batch=4", {"layers": 24, "batch": 4}))
    'paper,batch=4,layers=2'
    """

    def cut(size: Size) -> str:
        if size["layers"] <= layers:
            return ""
        plain, given = split_name(size.name)
        return ",".join((plain, *(f"{k}={v}" for k, v in sorted({**given, "layers": layers}.items()))))

    return cut


def _unknown(workload: Workload, size: Size, key: str) -> UsageFault:
    own = {name: value for name, value in size.dims.items() if name != DROPOUT}
    return UsageFault(
        f"{workload.name} has no dimension {key!r}" + did_you_mean(key, own),
        f"those of its size {size.name} are {_shown(own)}"
        if own
        else "it has none: a model of your own is as large as your function makes it",
    )


def _shown(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{key}={value}" for key, value in dims.items())
