"""What a step freed stays with the process for the next step.

XLA's CPU client asks the C library for what a step computes with, and frees it behind the step; glibc returns blocks of
that size to the system, so that every step touches fresh pages: 145,000 faults in each of BERT-Base's, a fifth of its
time. Two settings of glibc's keep them: no block is a mapping of its own (which ends with the block), and nothing at
the heap's end is given back. Only the main arena can hold such blocks, and a thread of XLA's is given another one when
it first asks, so that there must be no other before there are such threads.

A step that asks for its block before the last one's was freed takes a second one, and from then on there are two.
Where a loop ran ahead of the device there were three more (ResNet-50 without a look at the loss: 4.4 GB for 2.4), so a
step of more than ``ALONE`` bytes waits for the one before (on a CPU nothing is won by running ahead) and for its place
(hole.py). There must be room for ``ROOM`` blocks. Giving back before every step costs the faults again.

It is a setting of the whole process, of whatever else runs in it: the heap stays as large as it ever was, and
``State.arrange`` and nobody else gives its holes back. Where the user has said anything of the allocator (``MALLOC_*``,
``GLIBC_TUNABLES``, a preloaded one), or ``DETENTE_KEEP_MEMORY=0``, nothing is set.

How it can fail: in a process whose JAX had a client before, XLA's threads have arenas already, and their blocks stay
mappings: nothing is gained, nothing lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax

from detente.bridge.state.freed import give_back
from detente.bridge.state.glibc import glibc
from detente.bridge.state.ground import Ground

# malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
VARIABLE = "DETENTE_KEEP_MEMORY"
# Bytes that a step computes with from which on steps go one at a time: it takes milliseconds, its host none of them.
ALONE = 32 << 20
# Blocks of a step that must find room, or nothing is kept.
ROOM = 8


def one_arena() -> bool:
    """Threads that come from now on share the main arena. Called before JAX's client is made. Whether it was set."""
    libc = _glibc()
    return libc is not None and bool(libc.mallopt(_ARENA_MAX, 1))


def settle_down(temporary: int, available: int) -> bool:
    """From now on what is freed is kept. Called when all that is large and passes (captures, compilers, a certificate)
    has passed, and is given back first, or its blocks would leave holes that no step fills. Whether it was set; not
    where the steps run on another device than the CPU, nor where ``available`` bytes are less than ``ROOM`` times the
    ``temporary`` ones of a step."""
    libc = _glibc() if jax.default_backend() == "cpu" and available >= ROOM * temporary else None
    if libc is None:
        return False
    give_back()
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, -1))


@cache
def ground() -> Ground:
    """The process's: its steps compute in one place."""
    return Ground()


def decided(environ: Mapping[str, str]) -> str:
    """What of the environment says how memory is allocated; empty where nothing does.

    >>> decided({"MALLOC_ARENA_MAX": "2"}), decided({"LD_PRELOAD": "/lib/libtcmalloc.so.4"}), decided({})
    ('MALLOC_ARENA_MAX', 'LD_PRELOAD', '')
    """
    if environ.get(VARIABLE) == "0":
        return VARIABLE
    for name, value in environ.items():
        if name.startswith("MALLOC_"):
            return name
        if name in ("GLIBC_TUNABLES", "LD_PRELOAD") and "malloc" in value:
            return name
    return ""


def _glibc() -> Any:
    """glibc's own functions; None where another C library or another allocator answers, or the user has decided."""
    return None if decided(os.environ) else glibc()
