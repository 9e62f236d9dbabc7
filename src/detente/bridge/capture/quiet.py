"""torch logs or prints what it raises (the graph it could not export, the operator whose shapes it could not tell).
Here it is raised as a refusal, and said once."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, TextIO

# the loggers that warn before they raise; torch gives each its own handler, so their parents decide nothing
_LOGGERS = (
    "torch.export",
    "torch.export._trace",
    "torch._export",
    "torch._export.non_strict_utils",
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.experimental.symbolic_shapes",
)


def _asked_for(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


@contextmanager
def without_torchs_log() -> Iterator[None]:
    """No warnings and errors of torch's export in its log, unless ``TORCH_LOGS`` asks for it; and no half graph."""
    loggers = [] if os.environ.get("TORCH_LOGS") else [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_asked_for)
    try:
        with redirect_stderr(_WithoutGraphs(sys.stderr)):  # type: ignore[type-var]
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_asked_for)


class _WithoutGraphs:
    """Standard error without what ``torch.export._trace`` itself prints there: the graph as far as it came, thousands
    of lines of a large model. What the user's own code prints meanwhile comes through."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if sys._getframe(1).f_globals.get("__name__") == "torch.export._trace":
            return len(text)
        return self._stream.write(text)
