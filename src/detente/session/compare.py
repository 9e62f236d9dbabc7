"""``detente.compare``: the main job as a function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from detente.records.result import Result
from detente.session.progress import Sink
from detente.session.request import Request
from detente.session.run import run_session
from detente.store.recorder import open_recorder


def compare(
    *workloads: str, stacks: Iterable[str] = (), progress: Sink | None = None, **options: Any
) -> Result:
    """Measure workloads on stacks, prove them equal, and judge.

    Arguments are those of ``detente compare`` (see session/request.py): ``size``, ``contract``, ``precision``,
    ``device``, ``budget_s``, ``blocks``, ``seed``, ``threads``, ``memory``, ``aa``. Times in the result are seconds,
    memory is bytes. Raises detente.records.fault.Fault with what to do next. Needs the ``judge`` extra.

    >>> import detente
    >>> result = detente.compare("gemm", stacks=["torch-eager"], size="tiny", blocks=1, memory=False, aa=False)
    >>> result.cells[0].steady_s.median > 0
    True
    """
    from detente.judge import judge

    request = Request(
        workloads=workloads, stacks=tuple(stacks), command=("detente.compare", *workloads), **options
    )
    return judge(run_session(request, progress or (lambda event: None), open_recorder()))
