"""torch logs what it raises (the graph it could not export, the operator whose shapes it could not tell). Here it is
raised as a refusal, and said once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

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
    """No warnings and errors of torch's export in its log, unless ``TORCH_LOGS`` asks for it."""
    loggers = [] if os.environ.get("TORCH_LOGS") else [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_asked_for)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_asked_for)
