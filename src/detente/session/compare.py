"""``detente.compare``: the main job as a function."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from detente.records.folders import data_folder
from detente.records.result import Result
from detente.session.progress import Sink
from detente.session.request import Request
from detente.session.run import run_session


def compare(
    *workloads: str, stacks: Iterable[str] = (), progress: Sink | None = None, **options: Any
) -> Result:
    """Measure workloads on stacks, prove them equal, and judge.

    Arguments are those of ``detente compare`` (see session/request.py): ``size``, ``contract``, ``precision``,
    ``device``, ``budget_s``, ``blocks``, ``seed``, ``threads``, ``memory``, ``aa``. Times in the result are seconds,
    memory is bytes. Raises detente.records.fault.Fault with what to do next. Needs the ``judge`` extra.

    >>> import detente
    >>> result = detente.compare("gemm", stacks=["torch-eager"], size="tiny", blocks=1, memory=False)  # doctest: +SKIP
    >>> result.cells[0].steady_s.median  # doctest: +SKIP
    """
    from detente.judge import judge

    recorder = None
    if importlib.util.find_spec("sqlalchemy") is not None:
        from detente.store.sessions import open_store

        recorder = open_store(data_folder())
    request = Request(
        workloads=workloads, stacks=tuple(stacks), command=("detente.compare", *workloads), **options
    )
    return judge(run_session(request, progress or (lambda event: None), recorder))
