"""What was freed goes back to the system."""

from __future__ import annotations

from detente.bridge.state.glibc import glibc


def give_back() -> None:
    """The C library keeps what was freed in pieces of up to 32 MB for whoever asks next; XLA asks for whole stacks of
    layers and gets new memory. Of GPT-Neo's weights the rows that were stacked are 1.5 GiB. Nothing where the library
    has no such call."""
    library = glibc()
    if library is not None:
        library.malloc_trim(0)
