"""Records to JSON and back, with a schema name and a version on everything that leaves the process.

The codec reads the type hints of the dataclass, so a record that is stored by one version and read by another
fails loudly on a wrong type, ignores unknown keys (a newer minor writer) and fills absent ones from defaults.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class SchemaError(ValueError):
    """JSON that is not the record it claims to be. The message names the path, the value and what was expected."""


def to_json(value: Any) -> Any:
    """A record, or nested tuples, lists, dicts of them, as plain JSON values.

    Floats that JSON cannot hold (nan, inf) become the strings ``"nan"``, ``"inf"``, ``"-inf"``: a NaN loss is a
    result and must survive the trip.

    >>> from detente.records.sample import Sample
    >>> to_json(Sample(wall_ns=5, steps=1))["wall_ns"]
    5
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise SchemaError(f"a {type(value).__name__} cannot be written as JSON: {value!r}")


def dumps(value: Any, schema: str | None = None) -> str:
    """One line of JSON; ``schema`` (``detente/process/1``) becomes its first key."""
    data = to_json(value)
    if schema is not None:
        data = {"schema": schema, **data}
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def from_json(cls: type[T], data: Any, path: str = "") -> T:
    """The record of class ``cls`` that ``data`` describes. Raises SchemaError naming the path that does not fit."""
    return _read(cls, data, path or cls.__name__)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(kind: Any, data: Any, path: str) -> Any:
    if kind is Any:
        return _revived(data)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, data, path)
    if origin is typing.Literal:
        if data in args:
            return data
        raise SchemaError(f"{path}: {shown(data)} is not one of {', '.join(map(repr, args))}")
    if dataclasses.is_dataclass(kind):
        return _read_record(typing.cast(type, kind), data, path)
    if origin in (tuple, list, frozenset, set):
        if not isinstance(data, list):
            raise SchemaError(f"{path}: expected a list, got {shown(data)}")
        if origin is tuple and args and args[-1] is not Ellipsis:
            if len(data) != len(args):
                raise SchemaError(f"{path}: expected a list of {len(args)}, got one of {len(data)}")
            return tuple(_read(a, d, f"{path}[{i}]") for i, (a, d) in enumerate(zip(args, data, strict=True)))
        return origin(_read(args[0] if args else Any, d, f"{path}[{i}]") for i, d in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            raise SchemaError(f"{path}: expected an object, got {shown(data)}")
        return {k: _read(args[1], v, f"{path}.{k}") for k, v in data.items()}
    return _read_plain(kind, data, path)


def _revived(data: Any) -> Any:
    """Free-form JSON with its non-finite floats back; see ``to_json``."""
    if isinstance(data, str):
        return _SPECIAL.get(data, data)
    if isinstance(data, list):
        return [_revived(item) for item in data]
    if isinstance(data, dict):
        return {key: _revived(value) for key, value in data.items()}
    return data


def _read_union(args: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in args:
        return None
    last: SchemaError | None = None
    for arg in args:
        if arg is not type(None):
            try:
                return _read(arg, data, path)
            except SchemaError as error:
                last = error
    raise last or SchemaError(f"{path}: unexpected {shown(data)}")


def _read_record(cls: type, data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise SchemaError(f"{path}: expected an object, got {shown(data)}")
    hints = _hints(cls)
    found = {
        f.name: _read(hints[f.name], data[f.name], f"{path}.{f.name}")
        for f in dataclasses.fields(cls)
        if f.name in data
    }
    try:
        return cls(**found)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{path}: {error}") from None


def shown(data: Any) -> str:
    """A value as an error shows it: whoever wrote it may have written a megabyte.

    >>> shown("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (1000 characters)"
    """
    if isinstance(data, int) and data.bit_length() > 128:
        return f"a whole number of {data.bit_length()} bits"
    if isinstance(data, str):
        return repr(data) if len(data) <= 80 else f"{repr(data[:64])[:64]}... ({len(data)} characters)"
    if isinstance(data, list | dict) and len(data) > 4:
        return f"{'a list' if isinstance(data, list) else 'an object'} of {len(data)}"
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:64]}..."


_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _read_plain(kind: type, data: Any, path: str) -> Any:
    if kind is float:
        if isinstance(data, str) and data in _SPECIAL:
            return _SPECIAL[data]
        if isinstance(data, int | float) and not isinstance(data, bool):
            try:
                return float(data)
            except OverflowError:
                raise SchemaError(f"{path}: {shown(data)} is larger than any float") from None
    elif kind is int:
        if isinstance(data, int) and not isinstance(data, bool):
            return data
    elif isinstance(data, kind):
        return data
    raise SchemaError(f"{path}: expected {kind.__name__}, got {shown(data)}")
