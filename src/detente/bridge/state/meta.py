"""Models on the meta device: their weights come from a checkpoint or an initialisation, straight into the step.

The live module's parameters stay on the meta device, so nothing is held twice: a checkpoint is read tensor by
tensor, an initialised tensor is dropped as soon as the device has it. Buffers are small, and some belong in no
checkpoint (rotary frequencies): the live module gets theirs for good.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from detente.bridge.refusal import Reason, Refused, refuse

# gives a tensor on the host by its canonical name; once, because it may keep nothing
Source = Callable[[str], torch.Tensor]


def on_meta(model: nn.Module) -> bool:
    """Whether any parameter or buffer has no values."""
    return any(t.is_meta for t in (*model.parameters(), *model.buffers()))


def source(model: nn.Module, optimizer: torch.optim.Optimizer, given: str | Path | None, seed: int) -> Source:
    """Where the weights of a meta model come from: ``given`` is ``"init"``, a safetensors file, the index of a sharded
    checkpoint, or the folder of either. Buffers of the live module get their values now.

    Raises Refused without ``given``, for weights that are not in the checkpoint or of another shape, for a module
    that cannot initialise itself, and for an optimizer that keeps state on the meta device.
    """
    if given is None:
        raise _absent(model)
    for state in optimizer.state.values():
        if any(isinstance(v, torch.Tensor) and v.is_meta for v in state.values()):
            raise refuse(
                "meta",
                f"{type(optimizer).__name__} made its state when it was constructed, on the meta device",
                hint="build the module on the CPU for this optimizer",
            )
    if given == "init":
        return initialised(model, seed)
    return _Checkpoint(Path(given), model)


def _absent(model: nn.Module) -> Refused:
    named = (*model.named_parameters(), *model.named_buffers())
    names = [n for n, t in named if t.is_meta]
    return refuse(
        "meta", f"{len(names)} tensors are on the meta device and have no values (the first: {names[0]})"
    )


# -- initialisation -------------------------------------------------------------------------------------------


def initialised(model: nn.Module, seed: int) -> Source:
    """Every meta tensor as its module initialises it (``_init_weights`` of transformers, ``reset_parameters``), module
    by module, children first, from torch's generator at ``seed``. The caller's generator is left alone."""
    with _hollow(model) as made, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for owner, part, path in _owners(model):
            _initialise(owner, part, path, made)
        values = {name: t.detach() for name, t in model.named_parameters() if id(t) in made}
        _check_initialised(made)
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if id(buffer) in made:
                _keep_buffer(model, name, buffer)
    return values.pop


def _owners(
    module: nn.Module, owner: nn.Module | None = None, path: str = ""
) -> Iterator[tuple[Any, nn.Module, str]]:
    """Every part, children first, with the nearest module around it that knows how to initialise its parts."""
    owner = module if hasattr(module, "_init_weights") else owner
    for name, child in module.named_children():
        yield from _owners(child, owner, f"{path}.{name}" if path else name)
    yield owner, module, path


def _initialise(owner: Any, part: nn.Module, path: str, made: dict[int, torch.Tensor]) -> None:
    with torch.no_grad():
        if owner is not None:
            owner._init_weights(part)
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if any(id(t) in made and not _written(t) for t in own):
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if callable(reset):
                reset()


def _written(tensor: torch.Tensor) -> bool:
    """Whether anything was put into a tensor that began as NaN (a write through ``.data`` leaves no other trace)."""
    return tensor._version > 0 or (tensor.is_floating_point() and not bool(tensor.isnan().any()))


def _check_initialised(made: dict[int, torch.Tensor]) -> None:
    bad = [t for t in made.values() if t.numel() and not _written(t)]
    if bad:
        shapes = ", ".join(f"{getattr(t, '_detente_name', '?')} {list(t.shape)}" for t in bad[:5])
        raise refuse(
            "weights",
            f"{len(bad)} tensors are initialised by no _init_weights or reset_parameters: {shapes}",
            hint="give the module that owns them a reset_parameters method, or pass a checkpoint as weights=",
        )


@contextmanager
def _hollow(model: nn.Module, parts: Iterable[nn.Module] | None = None) -> Iterator[dict[int, torch.Tensor]]:
    """Host tensors in the place of the meta tensors of ``parts`` (default: all), NaN where a dtype has it. Meta
    parameters are put back at the end, and so are buffers that nobody kept."""
    made: dict[int, torch.Tensor] = {}
    put_back: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
    fresh: dict[int, torch.Tensor] = {}
    names = {id(m): n for n, m in model.named_modules()}
    for part in model.modules() if parts is None else parts:
        for table in (part._parameters, part._buffers):
            for key, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in fresh:  # a tied weight stays one tensor
                    fresh[id(tensor)] = _host(tensor)
                new = fresh[id(tensor)]
                new._detente_name = f"{names.get(id(part), '')}.{key}".lstrip(".")  # type: ignore[attr-defined]
                made[id(new)] = new
                put_back.append((table, key, tensor, new))
                table[key] = new  # type: ignore[assignment]
    try:
        yield made
    finally:
        for table, key, tensor, new in put_back:
            if table[key] is new:
                table[key] = tensor


def _host(tensor: torch.Tensor) -> torch.Tensor:
    new = torch.empty(tensor.shape, dtype=tensor.dtype)
    if new.is_floating_point():
        new = torch.full(tensor.shape, float("nan"), dtype=tensor.dtype)
    return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _keep_buffer(model: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, key = name.rpartition(".")
    model.get_submodule(path)._buffers[key] = value.detach().clone()


# -- a checkpoint -----------------------------------------------------------------------------------------------


class _Checkpoint:
    """Reads a tensor when it is asked for. The files are mapped into memory, not loaded."""

    def __init__(self, path: Path, model: nn.Module) -> None:
        self.path = path
        self.file_of = _files(path)
        self.opened: dict[Path, Any] = {}
        live = dict(model.named_parameters(remove_duplicate=False)) | dict(
            model.named_buffers(remove_duplicate=False)
        )
        stored_names = model.state_dict(keep_vars=True)
        self.name_of: dict[str, str] = {}  # canonical or not: any name -> the name in the file
        known: dict[int, str] = {id(t): n for n, t in live.items() if n in self.file_of}
        self.name_of = {n: known[id(t)] for n, t in live.items() if id(t) in known}
        wanted = {n: t for n, t in live.items() if t.is_meta and n in stored_names}
        self._check(wanted, set(stored_names))
        self._buffers(model, stored_names)
        self.dtype_of = {n: t.dtype for n, t in live.items()}

    def __call__(self, name: str) -> torch.Tensor:
        return self._read(self.name_of[name]).to(self.dtype_of[name])

    def _read(self, stored: str) -> torch.Tensor:
        return self._file(stored).get_tensor(stored)

    def _file(self, stored: str) -> Any:
        file = self.file_of[stored]
        if file not in self.opened:
            self.opened[file] = safe_open(str(file), "pt").__enter__()
        return self.opened[file]

    def _check(self, wanted: dict[str, torch.Tensor], names: set[str]) -> None:
        absent = sorted(n for n in wanted if n not in self.name_of)
        bad = (
            [Reason("weights", f"{self.path} lacks {len(absent)} tensors: {', '.join(absent[:5])}")]
            if absent
            else []
        )
        for name, tensor in wanted.items():
            if name in self.name_of:
                shape = self._file(self.name_of[name]).get_slice(self.name_of[name]).get_shape()
                if list(shape) != list(tensor.shape):
                    bad.append(
                        Reason(
                            "weights",
                            f"{name} is {list(shape)} in {self.path}, {list(tensor.shape)} in the module",
                        )
                    )
        if bad:
            raise Refused(bad[:20])
        extra = sorted(self.file_of.keys() - names)
        if extra:
            warnings.warn(
                f"{self.path} holds {len(extra)} tensors that the module has not: {extra[:5]}", stacklevel=6
            )

    def _buffers(self, model: nn.Module, stored_names: dict[str, Any]) -> None:
        """Buffers of the live module: from the file, or as their own module makes them."""
        for name, buffer in list(model.named_buffers(remove_duplicate=False)):
            if buffer.is_meta and name in self.name_of:
                _keep_buffer(model, name, self._read(self.name_of[name]).to(buffer.dtype))
        left = {id(p): p for p in model.modules() if any(b.is_meta for b in p.buffers(recurse=False))}
        for owner, part, path in _owners(model):
            if id(part) not in left:
                continue
            with _hollow(model, [part]) as made:
                _initialise(owner, part, path, made)
                own = {id(b): b for b in part.buffers(recurse=False) if id(b) in made}
                _check_initialised(own)
                for key, buffer in list(part._buffers.items()):
                    if id(buffer) in own and buffer is not None:
                        part._buffers[key] = buffer.detach().clone()


def _files(path: Path) -> dict[str, Path]:
    """Name of each stored tensor -> its file."""
    if path.is_dir():
        found = [
            p
            for p in (*path.glob("*.safetensors.index.json"), *path.glob("model.safetensors"))
            if p.is_file()
        ]
        if not found:
            raise refuse("weights", f"{path} holds neither model.safetensors nor a *.safetensors.index.json")
        path = found[0]
    if not path.is_file():
        raise refuse("weights", f"there is no file {path}")
    try:
        if path.suffix == ".json":
            table = json.loads(path.read_text())["weight_map"]
            return {name: path.parent / file for name, file in table.items()}
        with safe_open(str(path), "pt") as file:
            return dict.fromkeys(file.keys(), path)
    except Refused:
        raise
    except Exception as error:
        raise refuse(
            "weights", f"{path} is no safetensors file or index ({type(error).__name__}: {error})"
        ) from error


# -- for a capture ----------------------------------------------------------------------------------------------


@contextmanager
def stand_ins(model: nn.Module) -> Iterator[None]:
    """Host tensors in the place of meta parameters while a program is exported, which reads no values: their pages
    are never touched, so the system never finds memory for them."""
    changed: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    fresh: dict[int, nn.Parameter] = {}
    for part in model.modules():
        for key, tensor in part._parameters.items():
            if tensor is not None and tensor.is_meta:
                if id(tensor) not in fresh:
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
                    fresh[id(tensor)] = nn.Parameter(empty, tensor.requires_grad)
                changed.append((part._parameters, key, tensor))
                part._parameters[key] = fresh[id(tensor)]
    try:
        yield
    finally:
        for table, key, tensor in changed:
            table[key] = tensor


def fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` into a live tensor, which stays the same object when it had no memory yet."""
    if not tensor.is_meta:
        tensor.copy_(value)
        return
    new = value.to(tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        new = nn.Parameter(new, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, new)
