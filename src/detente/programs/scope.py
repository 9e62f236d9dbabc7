"""Where an operation comes from, as its metadata says: a module's path and a direction.

JAX writes the path of a trace into ``op_name``: functions that were compiled (``jit(step)``), transformations around
the scope in which they were applied (``transpose(jvp(h.0))``), names of scopes, control flow, and at the end the
primitive. The scopes are what is looked for: Flax and the bridge name them after modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward", "remat", "optimizer"]

# Names that compiling and control flow leave in a path wherever they stand.
_CONTROL = frozenset(
    {
        "body_fun", "body_pred", "checkpoint", "closed_call", "cond_fun", "core_call", "custom_jvp_call",
        "custom_vjp_call", "custom_vjp_call_jaxpr", "eval_jaxpr", "named_call", "pjit", "remat", "remat2",
        "rematted_computation", "run_state", "shard_map", "while", "xla_call",
    }
)  # fmt: skip
# And those that modules are called as well (EDSR's ``body``, a diffusion model's ``cond``).
_PIECES = frozenset({"body", "cond"})
_BRANCH = re.compile(r"branch_\d+_fun")
_WRAPPED = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)
# Functions that were compiled by themselves: their own name is no scope.
_COMPILED = frozenset({"jit", "pjit", "xla_pmap", "jit_shmap"})
OPTIMIZER = "optimizer"
# What belongs to no module below the model itself: its own operations, and the loss that is computed of its outputs.
ROOT = "root"
# What stands behind a module's name that would mean something else without it.
_MARK = "#"
# What our scopes in a lazy program of torch_xla end in, before the number that it gives each
# (stacks/torch_xla_names.py).
NUMBERED = "@"
_NUMBER = re.compile(r"@\.\d+$")
# Scopes that torch_xla opens for the pieces of an operation that it takes apart.
_LOWERED = re.compile(r"(aten|xla|prim)__\w+(\.\d+)?")
# JAX's own random numbers: what stands behind is the name of the Python function that first asked for them.
_DRAWN = "jit(_threefry"
# Scopes that a library opens for what it computes, and that are no module's: jnp.einsum opens one of its formula.
_FORMULA = re.compile(r"[^\w.*#\-/]")


@dataclass(frozen=True, slots=True)
class Scope:
    """``path`` is a module's, dotted, outermost first; empty for what lies in none."""

    path: str
    direction: Direction


def scope_name(path: str) -> str:
    """What to call the scope that is opened for a module, so that it is read as one whatever the module is called.

    >>> scope_name("h.0.attn"), scope_name("checkpoint")
    ('h.0.attn', 'checkpoint#')
    """
    taken = path in _CONTROL or path in _PIECES or path in (ROOT, OPTIMIZER, "scan")
    return f"{path}{_MARK}" if taken else path


def read_scope(op_name: str) -> Scope | None:
    """The scope in an operation's ``op_name``; None where it names nothing.

    >>> read_scope("jit(step)/transpose(jvp(GPT))/h_0/ln_1/mul")
    Scope(path='GPT.h_0.ln_1', direction='backward')
    >>> read_scope("jit(step)/jvp(h.0.drop)/jit(_threefry_fold_in)/step_key/while")
    Scope(path='h.0.drop', direction='forward')
    >>> read_scope("jit(step)/transpose(jvp(GPT))/h_0/jvp(GPT)/h_0/mul")
    Scope(path='GPT.h_0', direction='backward')
    >>> read_scope("jit(step)/optimizer/sqrt")
    Scope(path='', direction='optimizer')
    """
    if not op_name:
        return None
    seen: set[str] = set()
    words: list[str] = []
    again: set[int] = set()
    *tokens, primitive = _split(op_name)
    for token in tokens:
        if token.startswith(_DRAWN):
            break
        around: set[str] = set()
        word = _unwrapped(_NUMBER.sub("", token), around)
        seen |= around
        if word and words[:1] == [word] and "jvp" in around:
            again.add(len(words))
        words += filter(None, [word])
    names: list[str] = []
    for at, (before, name, behind) in enumerate(
        zip(("", *words), words, (*words[1:], primitive), strict=False)
    ):
        # What has a derivative of its own is told within its scope once more, from the outermost on.
        names = [] if at in again else names
        if _is_control(before, name, behind):
            seen.add(name)
        elif not _FORMULA.search(name) and not _LOWERED.fullmatch(name):
            names.append(name)
    rooted = names[:1] == [ROOT]
    names = [n for n in names if n != ROOT] or names[:1]
    # The bridge writes whole paths: of two, the inner one is where the operation is.
    begun = max((k for k, n in enumerate(names) if k and is_whole(n, names[0])), default=0)
    names = names[begun:]
    # Below the model's own scope it is a module that somebody called so.
    updates = names[:1] == [OPTIMIZER] and not rooted
    path = ".".join(name.removesuffix(_MARK) for name in names[updates:])
    if updates:
        return Scope(path, "optimizer")
    if "rematted_computation" in seen:
        return Scope(path, "remat")
    return Scope(path, "backward" if "transpose" in seen else "forward")


def _is_control(before: str, name: str, behind: str) -> bool:
    """Whether a name is control flow's, by what stands on either side of it: ``while/body``, ``while/cond``,
    ``cond/branch_0_fun``, ``scan/while``. Anywhere else it is a module's."""
    if name in _PIECES:
        return before == "while" or (name == "cond" and _BRANCH.fullmatch(behind) is not None)
    if name == "scan":
        return behind == "while"
    return name in _CONTROL or (before == "cond" and _BRANCH.fullmatch(name) is not None)


def is_whole(name: str, around: str) -> bool:
    """Whether a name within the scope of another is a path from the model on, not from there: it begins as that does.

    >>> is_whole("transformer.h.0.attn", "transformer.h.0"), is_whole("attn.h", "transformer.h.0")
    (True, False)
    """
    ours, theirs = name.split("."), around.split(".")
    return len(ours) > 1 and ours[:2] == theirs[:2]


def _unwrapped(token: str, seen: set[str]) -> str:
    """What transformations were wrapped around; they are added to ``seen``. Empty for a function that was compiled."""
    while (found := _WRAPPED.fullmatch(token)) is not None:
        name, token = found[1], found[2]
        seen.add(name)
        if name in _COMPILED:
            return ""
    return token.strip()


def _split(op_name: str) -> Iterator[str]:
    """At the slashes that no parenthesis is around."""
    depth = begun = 0
    for at, letter in enumerate(op_name):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth = max(depth - 1, 0)
        elif letter == "/" and not depth:
            yield op_name[begun:at]
            begun = at + 1
    yield op_name[begun:]
