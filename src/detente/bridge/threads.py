"""Names of torch's that are another function for a while: in the thread that asks for it, and in no other.

A name in a module is one for all threads of a process. While one of them captures a program or makes a certificate,
another may train a second model in eager, or make batches: it goes on with torch's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


def only_here(ours: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is ``ours`` in the thread that calls this now, and ``plain`` in every other.

    >>> both, heard = only_here(lambda: "ours", lambda: "torch's"), []
    >>> other = threading.Thread(target=lambda: heard.append(both()))
    >>> other.start(), other.join()
    (None, None)
    >>> both(), heard
    ('ours', ["torch's"])
    """
    mine = threading.get_ident()

    @functools.wraps(plain)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (ours if threading.get_ident() == mine else plain)(*args, **kwargs)

    return chosen
