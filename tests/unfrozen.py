"""torch's flags, writable again: importing torch's own tests freezes them for the rest of the process, also for the
tests of other files. Called behind such an import."""

from __future__ import annotations

import torch


def unfreeze() -> None:
    """Let ``torch.backends`` be assigned to."""
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
