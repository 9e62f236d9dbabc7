"""The end of a message about a name that there is not."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.4) -> str:
    """``; did you mean 'gpt2'?``, of the nearest name that there is; empty where none is near. ``cutoff``: difflib's,
    how near it has to be.

    >>> did_you_mean("gtp2", ["gemm", "gpt2"])
    "; did you mean 'gpt2'?"
    >>> did_you_mean("GPT2", ["gemm", "gpt2"])
    "; did you mean 'gpt2'?"
    >>> did_you_mean("x", ["gemm", "gpt2"])
    ''
    """
    import difflib  # by whoever is wrong, and by no start of the command

    # Who writes GPT2 or JAX means what is written small.
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=cutoff)
    return f"; did you mean {names[near[0]]!r}?" if near else ""
