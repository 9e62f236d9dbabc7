"""Code that holds an object's own class against a tensor's: ``type(x) is torch.Tensor``.

While a program is captured a tensor is one of torch.export's, whose class is another, and nobody hears the question:
the branch would be the wrong one, for good. So code that ran and may have asked is refused, with its line. A table by
class (``{torch.Tensor: f}[type(x)]``) is not seen; the certificate of its first step finds it.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from types import CodeType

from detente.bridge.graph import Where
from detente.bridge.live.instructions import holds_classes
from detente.bridge.refusal import Reason, Refused


def refuse_classes(codes: Iterable[CodeType]) -> None:
    """Raises Refused, with every place among ``codes``, which are those of the user's that ran."""
    places = sorted({(c.co_filename, line) for c in codes if (line := holds_classes(c))})
    if places:
        raise Refused(
            Reason(
                "control-flow",
                "the class of what may be a tensor is asked of the object itself, and in a capture a tensor is of "
                "another class than in eager",
                Where(file, line, linecache.getline(file, line).strip()),
                "write isinstance(x, torch.Tensor), which is true in both",
            )
            for file, line in places
        )
