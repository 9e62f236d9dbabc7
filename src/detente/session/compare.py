"""``detente.compare``: the main job as a function."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from detente.records.fault import UsageFault
from detente.records.job import Sampling
from detente.records.nearest import did_you_mean
from detente.records.result import Result
from detente.session.progress import Sink
from detente.session.request import Request
from detente.session.run import run_session
from detente.store.recorder import open_recorder


class Options(TypedDict, total=False):
    """The options of ``compare`` beside stacks and progress; session/request.py says what each means."""

    size: str | None
    contract: str | None
    precision: str
    feed: str
    loader_workers: int
    device: str
    budget_s: float | None
    blocks: int | None
    seed: int
    threads: int | None
    aa: bool
    memory: bool
    memory_cap: int | None
    smallest_memory: bool
    sampling: Sampling
    options: dict[str, Any]
    limits: dict[str, float]


def compare(
    *workloads: str | Callable[[], Any],
    stacks: str | Iterable[str] = (),
    progress: Sink | None = None,
    **options: Unpack[Options],
) -> Result:
    """Measure workloads on stacks, prove them equal, and judge.

    A workload is a name, or a function of a file that returns (module, loss, batch) or (module, loss, batch,
    optimizer). Options are those of ``detente compare`` (see session/request.py): ``size`` (``"paper,batch=4"`` with an
    override), ``contract``, ``precision``, ``feed``, ``loader_workers``, ``device``, ``budget_s``, ``blocks``,
    ``seed``, ``threads``, ``memory``, ``aa``. Times in the result are seconds, memory is bytes. Raises
    detente.records.fault.Fault with what to do next. Needs the ``judge`` extra.

    >>> import detente
    >>> result = detente.compare("gemm", stacks=["torch-eager"], size="tiny", blocks=1, memory=False, aa=False)
    >>> result.cells[0].steady_s.median > 0
    True
    """
    _checked(options)
    names = tuple(named(w) for w in workloads)
    rows = _stacks(stacks)
    from detente.judge import judge

    request = Request(workloads=names, stacks=rows, command=("detente.compare", *names), **options)
    return judge(run_session(request, progress or (lambda event: None), open_recorder()))


def named(workload: str | Callable[[], Any]) -> str:
    """A workload as the command line names it: a function as ``path/to/file.py:function``.

    Raises UsageFault for a function that a worker, another process, cannot find by that name.
    """
    if isinstance(workload, str):
        return workload
    hint = (
        "give the function of a file, by its name there: detente.compare(build), or 'path/to/file.py:build'"
    )
    if not isinstance(workload, types.FunctionType):
        raise UsageFault(f"a workload is a name or a function, and this is a {type(workload).__name__}", hint)
    file, name = workload.__code__.co_filename, workload.__qualname__
    if not file.endswith(".py") or not Path(file).is_file():
        raise UsageFault(f"{name} is not in a file ({file}), and every worker reads it again", hint)
    if name != workload.__name__ or name == "<lambda>":
        raise UsageFault(f"{name} is not at the top level of {file}", hint)
    return f"{file}:{name}"


def _stacks(stacks: str | Iterable[Any]) -> tuple[str, ...]:
    """``"torch-eager,jax"`` and ``["torch-eager", "jax"]`` mean the same."""
    if isinstance(stacks, str):
        names = tuple(s.strip() for s in stacks.split(",") if s.strip())
        if not names:
            raise UsageFault(f"stacks={stacks!r} holds no name", "leave it out for those that are installed")
        return names
    found: tuple[object, ...] = tuple(stacks)
    wrong = next((s for s in found if not isinstance(s, str)), None)
    if wrong is not None:
        raise UsageFault(
            f"stacks holds a {type(wrong).__name__}, {wrong!r}",
            "stacks are names: stacks=['torch-eager', 'jax']; your own is 'path/to/file.py:ClassName'",
        )
    return tuple(str(s) for s in found)


def _checked(options: typing.Mapping[str, Any]) -> None:
    """Raises UsageFault for an option that there is not, or a value of another type than it has."""
    known = typing.get_type_hints(Options)
    for name, value in options.items():
        if name not in known:
            raise UsageFault(
                f"compare has no option {name!r}"
                + did_you_mean(name, ["stacks", "progress", *known], cutoff=0.5),
                f"there are stacks, progress, {', '.join(known)}",
            )
        if not _fits(value, known[name]):
            raise UsageFault(
                f"{name}={value!r} is a {type(value).__name__}, and {name} says {_said(known[name])}",
                "see help(detente.compare)",
            )


def _alternatives(kind: Any) -> Sequence[Any]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; True and False are no numbers, and a whole number is a float."""
    for one in _alternatives(kind):
        plain = typing.get_origin(one) or one
        if isinstance(value, bool):
            if plain is bool:
                return True
        elif isinstance(value, plain) or (plain is float and isinstance(value, int)):
            return True
    return False


def _said(kind: Any) -> str:
    names = (
        "None" if one is type(None) else getattr(one, "__name__", str(one)) for one in _alternatives(kind)
    )
    return " or ".join(names)
