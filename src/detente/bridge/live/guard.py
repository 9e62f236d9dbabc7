"""Who reads or writes the live module while a step trains copies of its tensors on the device?

A parameter that anybody may touch is given a subclass of its own class, which sees every operation on it: a read of a
value that is older than the step's asks the step to write its values back first; access to memory that leaves no
version behind (``.data``, ``numpy()``, ``data_ptr()``) is remembered. What an operation gives that shows the same
memory (``.data``, a view, what ``state_dict`` holds) sees, too, and tells the guards of what it shows for as long as it
lives. A step itself pays nothing for it. What was taken before (an alias, a view in numpy) is not seen; neither is a
tensor whose class is another one already.

How it can fail: a library that asks ``type(p) is torch.nn.Parameter`` sees a subclass. ``plain`` puts the own classes
back for as long as such code runs.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from detente.bridge.live.forks import in_child
from detente.bridge.live.gradients_asked import tell_once, wants_values
from detente.bridge.live.inside import INSIDE, ONE, running, runs_here
from detente.bridge.live.shared import address
from detente.bridge.private import (
    SCRIPTING,
    WRAPPING,
    holders,
    in_transform,
    in_wrapping,
    outside_of_traces,
    outside_of_transforms,
    plainly,
    with_users_modes,
)
from detente.collector import all_in_sight

# Asking for these reads no value and gives no way to write one.
FREE = frozenset(
    {
        "shape", "dtype", "device", "ndim", "layout", "size", "dim", "numel", "nelement", "element_size", "stride",
        "storage_offset", "is_contiguous", "requires_grad", "set:requires_grad", "requires_grad_", "is_leaf", "grad_fn",
        "grad", "set:grad", "retains_grad", "is_floating_point", "is_complex", "is_meta", "is_sparse", "is_cuda",
        "is_cpu", "is_quantized", "is_nested", "is_mkldnn", "is_xla", "is_mps", "is_xpu", "is_inference", "is_signed",
        "names", "_version", "output_nr", "_base", "__hash__", "__len__", "_backward_hooks", "set:_backward_hooks",
        "register_hook", "register_post_accumulate_grad_hook", "_post_accumulate_grad_hooks",
        "set:_post_accumulate_grad_hooks", "_is_view", "is_shared", "get_device", "itemsize", "nbytes",
        "_has_symbolic_sizes_strides", "has_names", "is_conj", "is_neg", "name", "__instancecheck__",
    }
)  # fmt: skip
# These give a way to write that moves no version counter (who is sent a tensor has its memory), or write so themselves
# (a batch norm its statistics).
ALIASES = frozenset(
    {
        "data", "set:data", "numpy", "__array__", "untyped_storage", "storage", "_typed_storage", "storage_type",
        "data_ptr", "__dlpack__", "to_dlpack", "_to_dlpack", "set_", "share_memory_", "set_data",
        "__cuda_array_interface__", "__reduce_ex__", "batch_norm", "native_batch_norm", "_batch_norm_impl_index",
        "cudnn_batch_norm", "miopen_batch_norm",
    }
)  # fmt: skip

# These give the memory's address away, and whoever has it asks nobody, for as long as it likes.
POINTERS = frozenset(
    {
        "data_ptr", "numpy", "__array__", "__dlpack__", "to_dlpack", "_to_dlpack", "__cuda_array_interface__",
        "untyped_storage", "storage", "_typed_storage", "storage_type",
    }
)  # fmt: skip
# Operations on what is watched that run now, of any thread: each was told the values of its moment, and still reads.
READING: list[str] = []

_GUARDS = "_detente_guards"
_SHOWS = "_detente_shows"  # of an alias: the tensor whose memory it shows
_TOKEN = (
    "_detente_token"  # and what lives as long as it: torch swaps no tensor that is referenced weakly itself
)
_SHOWN = "_detente_shown"  # of such a tensor: the tokens of its aliases that live
_LOOKED = "_detente_looked"  # and how many others held its memory when they were last looked for
_POINTED = "_detente_pointed"  # somebody was told its address
EMPTIED = "_detente_emptied"  # its memory was given up: what can fill it (state/emptied.py)
_MARKS = (_GUARDS, _SHOWS, _TOKEN, _SHOWN, _LOOKED, _POINTED, EMPTIED)


class Guard:
    """What one step is told of the live tensors that it watches.

    behind   the live values are older than the step's: the next read asks for them (``read``)
    exposed  ids of the tensors that may have been written without a version since the step last looked
    calls    the step's own functions that run: they see nothing
    in_c     something of C's reads and writes the live tensors from now on, and asks nobody
    swapped  one of the tensors was given what another object was, and is watched no more
    graphs   somebody may have made a graph of the tensors, whose backward() leaves gradients, or set one
    bare     a step ran, which leaves no gradients; None when somebody who asked for them was told so
    arrays   of numpy, weakly, which do so for as long as they live
    """

    __slots__ = (
        "__weakref__", "arrays", "bare", "behind", "calls", "exposed", "graphs", "in_c", "read", "swapped",
    )  # fmt: skip

    def __init__(self, read: Callable[[], None]) -> None:
        self.read: Callable[[], Callable[[], None] | None] = weakref.WeakMethod(read)  # type: ignore[arg-type]
        self.behind = False
        self.calls: list[FrameType] = []
        self.exposed: set[int] = set()
        self.in_c = False
        self.swapped = self.graphs = False
        self.bare: bool | None = False
        self.arrays: list[weakref.ref[np.ndarray]] = []

    @property
    def unasked(self) -> bool:
        """Whether there is somebody who reads and writes the live tensors without a question."""
        if self.arrays:
            self.arrays = [array for array in self.arrays if array() is not None]
        return self.in_c or bool(self.arrays)

    @property
    def off(self) -> bool:
        """Whether a call of the step's own is running, in this thread. Another thread that reads meanwhile waits. In a
        forked child nothing of a step's may run, and nobody is told."""
        return in_child() or runs_here(self.calls)

    @property
    def busy(self) -> bool:
        """Whether a call of the step's own is running in any thread."""
        return running(self.calls)

    @torch.compiler.disable
    def touched(self, tensor: torch.Tensor, name: str) -> None:
        if in_child():
            self._asked_in_child()
            return
        with (
            ONE
        ):  # or a step that another thread makes between the read and the note is forgotten by its next one
            if self.off:
                return
            self.graphs = self.graphs or torch.is_grad_enabled()
            read = self.read() if self.behind else None
            if read is not None:
                # or the step's own tensors are wrapped, too, and what fills the live ones is part of a trace
                untraced = outside_of_transforms() if in_transform() else nullcontext()
                with untraced, outside_of_traces(), with_users_modes():
                    read()
            # Behind the read, which begins a new account. What another step's own code does writes nothing.
            if name in ALIASES:
                self.written(tensor)

    def no_gradient(self, frame: FrameType) -> None:
        """Code in this frame was given None for a gradient."""
        if self.bare and not in_child() and not self.off and wants_values(frame):
            self.bare = None
            tell_once(frame)

    def _asked_in_child(self) -> None:
        """The live values could not be filled before the fork, and cannot be here: told once."""
        if self.behind:
            self.behind = False
            warnings.warn(
                f"process {os.getpid()} was forked while a step of detente.compile was ahead of the live module, whose "
                "values could not be written back (inside of a call of the step, or its certificate fails): what is "
                "read here is older, or zeros; fork between two calls, or start the process with multiprocessing's "
                "spawn",
                stacklevel=7,  # who reads: behind this, touched, its wrapper, _tell, _asked and _seen
            )

    @torch.compiler.disable
    def written(self, tensor: torch.Tensor) -> None:
        """It was written without a version that counts, or may be from now on."""
        if not runs_here(INSIDE):
            self.exposed.add(id(tensor))


def watch(tensors: Iterable[torch.Tensor], guard: Guard) -> None:
    """``guard`` is told of every operation on these tensors from now on. Those that cannot be seen stay as they are."""
    _see_transforms()
    mine = weakref.ref(guard)
    for tensor in tensors:
        if tensor.is_meta:
            continue
        seen = _SEEN.get(type(tensor))
        if seen is not None:
            setattr(tensor, _GUARDS, [mine])
            tensor.__class__ = seen
        elif type(tensor) in _OWN:
            guards = [r for r in getattr(tensor, _GUARDS) if r() is not None]
            if all(r() is not guard for r in guards):
                guards.append(mine)
            setattr(tensor, _GUARDS, guards)


def askable(tensors: Mapping[str, torch.Tensor], guard: Guard) -> dict[str, torch.Tensor]:
    """Those that ``guard`` alone is told of, by whoever reads them: nobody reads one now, and nobody knows where one
    lies. Called inside of a step, where nobody else begins to read."""
    if READING or guard.unasked:
        return {}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if type(tensor) in _OWN
        and not {_SHOWS, _POINTED} & tensor.__dict__.keys()
        and [one for ref in tensor.__dict__.get(_GUARDS, ()) if (one := ref()) is not None] == [guard]
    }


def unwatchable(tensors: Iterable[torch.Tensor]) -> str:
    """Why some of these are read and written where nobody is asked; empty where all of them tell. A class of the
    user's own has questions of its own to answer; and what binds several of them (one flat tensor under all weights of
    an optimizer) is an alias of each, which it can tell for one alone."""
    held: dict[int, dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_meta or tensor.layout is not torch.strided:
            continue
        if type(tensor) not in _OWN:
            return f"the class {type(tensor).__name__} of one of its tensors cannot be watched"
        if at := address(tensor):
            held.setdefault(at, {})[id(tensor)] = tensor
    for together in held.values():
        if len(together) > 1 and holders(next(iter(together.values()))) > len(together):
            return f"{len(together)} of its tensors are parts of one, which somebody else holds as well"
    return ""


def release(tensors: Iterable[torch.Tensor], guard: Guard | None) -> None:
    """``guard`` is told no more; a tensor that nobody watches has its own class again."""
    for tensor in tensors:
        own = _OWN.get(type(tensor))
        if own is None:
            continue
        _refilled(tensor)
        left = [r for r in getattr(tensor, _GUARDS) if r() not in (None, guard)]
        if left or _SHOWS in tensor.__dict__:
            setattr(tensor, _GUARDS, left)
        else:
            tensor.__class__ = own
            for mark in _MARKS:
                tensor.__dict__.pop(mark, None)


@contextmanager
def plain(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """The tensors have their own classes meanwhile, and nobody sees anything: for torch.export and for copies."""
    changed = []
    for tensor in tensors:
        own = _OWN.get(type(tensor))
        if own is not None:
            kept = {key: tensor.__dict__.pop(key) for key in _MARKS if key in tensor.__dict__}
            changed.append((tensor, type(tensor), kept))
            tensor.__class__ = own
    try:
        yield
    finally:
        for tensor, seen, kept in changed:
            tensor.__class__ = seen
            tensor.__dict__.update(kept)


def tensors_of(model: nn.Module) -> list[torch.Tensor]:
    """Every parameter and buffer, tied ones as often as they are named."""
    return [
        tensor
        for part in model.modules()
        for table in (part._parameters, part._buffers)
        for tensor in table.values()
        if tensor is not None
    ]


def _called(func: Any) -> str:
    """``data`` for reading ``.data``, ``set:data`` for setting it, else the function's own name."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        what = getattr(getattr(func, "__self__", None), "__name__", "")
        return what if name == "__get__" else f"set:{what}"
    return name


def _watched(args: Iterable[Any], depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors among what a function is given that tell somebody."""
    for value in args:
        if type(value) in _OWN:
            yield value
        elif depth < 3 and isinstance(value, list | tuple):
            yield from _watched(value, depth + 1)
        elif depth < 3 and isinstance(value, dict):
            yield from _watched(value.values(), depth + 1)


def _told(tensor: torch.Tensor) -> Iterator[tuple[Guard, torch.Tensor]]:
    """Who is told of it, and of which tensor: an alias is what it shows."""
    for one in (tensor, tensor.__dict__.get(_SHOWS)):
        for guard in () if one is None else one.__dict__.get(_GUARDS, ()):
            alive = guard()
            if alive is not None:
                yield alive, one


def _tell(tensors: Iterable[torch.Tensor], name: str) -> None:
    for tensor in tensors:
        for guard, told in _told(tensor):
            guard.touched(told, name)
            if name in POINTERS and not guard.off:
                told.__dict__[_POINTED] = True
        _refilled(tensor)


def _refilled(tensor: torch.Tensor) -> None:
    """Whoever was asked could not answer, or is gone: a tensor without memory is given its values all the same. Not in
    a forked child, where nothing of JAX's may be asked."""
    for one in (tensor, tensor.__dict__.get(_SHOWS)):
        emptied = None if one is None else one.__dict__.get(EMPTIED)
        if emptied is not None and not in_child():
            emptied.refill()


def _seen(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    kwargs = kwargs or {}
    name = _called(func)
    if name in FREE:
        if name == "set:grad":
            for guard, _ in _told(args[0]):
                guard.graphs = True
        found = plainly(func, *args, **kwargs)
        if found is None and name == "grad":
            for guard, _ in _told(args[0]):
                guard.no_gradient(sys._getframe(1))
        return found
    given = list(_watched((*args, *kwargs.values())))
    READING.append(name)
    try:
        return _asked(cls, func, name, given, args, kwargs)
    finally:
        READING.pop()


def _asked(
    cls: Any, func: Any, name: str, given: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    _tell(given, name)
    # ``p.data`` has a version of its own, which the step never asks for.
    aliases = [tensor for tensor in given if _SHOWS in tensor.__dict__]
    before = plainly(_versions, aliases) if aliases else ()
    found = plainly(func, *args, **kwargs)
    for alias, then, now in zip(aliases, before, plainly(_versions, aliases) if aliases else (), strict=True):
        if now != then:
            for guard, told in _told(alias):
                guard.written(told)
    if isinstance(found, np.ndarray):  # of which a view keeps it alive
        for guard in {guard for tensor in given for guard, _ in _told(tensor) if not guard.off}:
            guard.arrays.append(weakref.ref(found))
    if name == "set:data":
        for mark in (_SHOWS, _TOKEN, _LOOKED, _POINTED):  # it has another memory now
            args[0].__dict__.pop(mark, None)
        for value in plainly(_aliased, given, args[0]):
            _show(args[0], value)
    if name == "detach" and sys._getframe(2).f_code is _MAKING:
        # ``nn.Parameter(p)`` of a class that it does not know wants that class from detach().
        found.__class__, found.__dict__[_GUARDS] = cls, []
        _show(found, args[0])
        return found
    for one in found if isinstance(found, list | tuple) else (found,):
        if isinstance(one, torch.Tensor):
            for value in plainly(_aliased, given, one):
                _tell((value,), "data")
                _show(one, value)
    return found


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


class Token:
    """Lives as long as the tensor that it was given to."""


def _show(alias: torch.Tensor, tensor: torch.Tensor) -> None:
    """From now on the alias tells whoever is told of the tensor."""
    shown = tensor.__dict__.get(_SHOWS, tensor)
    if alias is shown:
        return
    seen = _SEEN.get(type(alias))
    if seen is not None:
        alias.__class__, alias.__dict__[_GUARDS] = seen, []
    if type(alias) in _OWN:
        alias.__dict__[_SHOWS] = shown
        alias.__dict__[_TOKEN] = token = Token()
        shown.__dict__.setdefault(_SHOWN, weakref.WeakSet()).add(token)


def shown_by(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What ``make`` gives shows the tensor's memory, and tells who is told of it. Nobody is asked for making it."""
    found = plainly(make, tensor)
    if type(tensor) in _OWN:
        _show(found, tensor)
    return found


def follow_strangers(tensors: Iterable[torch.Tensor]) -> None:
    """Whoever took the memory of one of these in C, where nobody is asked (``other.p.data = p.data``), tells from now
    on, too. Found among all objects, which takes a tenth of a second, and so only where the memory has more holders
    than are known. What holds it without an object of Python's (a graph of autograd) reads and writes nothing."""
    sought: dict[int, torch.Tensor] = {}
    for one in tensors:
        if type(one) in _OWN and one.layout is torch.strided and not one.is_meta:
            tensor = one.__dict__.get(_SHOWS, one)
            strange = holders(tensor) - 1 - len(tensor.__dict__.get(_SHOWN, ()))
            if strange > tensor.__dict__.get(_LOOKED, 0):
                sought[address(tensor)] = tensor
            tensor.__dict__[_LOOKED] = max(strange, 0)
    sought.pop(0, None)
    if not sought:
        return
    with all_in_sight():
        every = gc.get_objects()
    for found in every:
        # By its type: an object may say of itself in ``__class__`` what runs code of its own.
        if type(found) in _SEEN and (shown := sought.get(address(found))) is not None:
            _show(found, shown)


def _see_transforms() -> None:
    """``torch.func`` wraps what it is given in C, ``set_`` binds a tensor's memory there, and TorchScript holds tensors
    there, where nobody is asked: seen from then on where they begin it. What they are given may be written."""

    def tells(*args: Any) -> None:
        _tell(_watched(args), "data")

    def swaps(*args: Any) -> None:
        tells(*args)
        for tensor in _watched(args):
            for guard, _ in _told(tensor):
                guard.swapped = True
        # What a capture left behind refers to the tensors weakly, and such ones torch does not swap. A collection takes
        # a third of a second beside two frameworks: not for every tensor of a model.
        if any(weakref.getweakrefcount(a) for a in args if isinstance(a, torch.Tensor)):
            gc.collect()

    def scripted(module: Any, *_: Any) -> None:
        for tensor in tensors_of(module) if isinstance(module, nn.Module) else ():
            for guard, told in _told(tensor):
                guard.touched(told, "data")
                if not guard.in_c:
                    warnings.warn(
                        "torch.jit holds a module that detente.compile trains, and reads it where nothing can be seen: "
                        "its values are written back after every step from now on, which costs a copy of the weights "
                        "each; script or trace a copy.deepcopy of the module to keep the values of now",
                        stacklevel=5,
                    )
                guard.in_c = True

    for (holder, name), tell in (
        *((place, tells) for place in WRAPPING),
        ((torch.Tensor, "set_"), tells),
        ((torch.utils, "swap_tensors"), swaps),
        (SCRIPTING, scripted),
    ):
        function = getattr(holder, name)
        if hasattr(function, "_detente"):
            continue

        @functools.wraps(function)
        def wrap(*args: Any, function: Any = function, tell: Any = tell, **kwargs: Any) -> Any:
            tell(*args, *kwargs.values())
            return function(*args, **kwargs)

        wrap._detente = True  # type: ignore[attr-defined]
        setattr(holder, name, wrap)


def _aliased(given: Iterable[torch.Tensor], found: torch.Tensor) -> list[torch.Tensor]:
    """Those whose memory ``found`` shows: a view has their version counter, and what numpy makes of the view has
    none."""
    return [
        value
        for value in given
        if found is not value
        and not in_wrapping(found)
        and found.layout == value.layout == torch.strided
        and found.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    ]


@contextmanager
def _read(tensor: torch.Tensor, name: str) -> Iterator[None]:
    """It is read by code of torch's that wants its own class."""
    READING.append(name)
    try:
        _tell((tensor,), name)
        with plain((tensor,)):
            yield
    finally:
        READING.pop()


_MAKING = nn.Parameter.__new__.__code__


class SeenParameter(nn.Parameter):
    """A parameter that tells its guards."""

    __torch_function__ = classmethod(_seen)
    _is_param = property(lambda self: True, lambda self, is_one: None)

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """Which asks no ``__torch_function__``."""
        _tell(_watched((self, *args)), "set_")
        return plainly(torch.Tensor.set_, self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with _read(self, "__deepcopy__"):
            return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with _read(self, "__reduce_ex__"):
            return self.__reduce_ex__(protocol)

    def __repr__(self, **kwargs: Any) -> str:
        with _read(self, "__repr__"):
            return self.__repr__(**kwargs)


class SeenTensor(torch.Tensor):
    """A buffer, or an alias, that tells its guards."""

    __torch_function__ = classmethod(_seen)
    # ``nn.Parameter(p.data)`` says so of what it makes.
    _is_param = property(lambda self: False, lambda self, is_one: setattr(self, "__class__", SeenParameter))
    set_ = SeenParameter.set_
    __deepcopy__ = SeenParameter.__deepcopy__
    __reduce_ex__ = SeenParameter.__reduce_ex__
    __repr__ = SeenParameter.__repr__


_SEEN: dict[type, type] = {nn.Parameter: SeenParameter, torch.Tensor: SeenTensor}
_OWN: dict[type, type] = {seen: own for own, seen in _SEEN.items()}
