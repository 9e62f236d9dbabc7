"""One cached program: the captured graph and the executable, in one file named by everything it depends
on."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
import torch

from detente.bridge.cache.beside import Beside
from detente.bridge.cache.describe import Writer, content, digest
from detente.bridge.cache.lines import lines_of, loads, moved
from detente.bridge.cache.surroundings import flags, lowerings, patched, update_of
from detente.bridge.capture.batch import Layout, kinds
from detente.bridge.capture.captured import Captured
from detente.bridge.capture.weights import Weights
from detente.bridge.certify.certificate import Certificate
from detente.bridge.choose.choice import Choice
from detente.bridge.folder import there, trusted, write
from detente.bridge.kernels.build import kernels, known
from detente.bridge.live.instructions import makes_keys
from detente.bridge.live.ran import Names
from detente.bridge.live.trains import OF_OPTIMIZERS
from detente.bridge.private import executables as serialize_executable
from detente.bridge.program.program import Compiled
from detente.bridge.roll.stacks import Stacks

SCHEMA = 4
_UNWRITTEN = "this program cannot be written to a file"
_OBJECT_FILES = (b"\x7fELF", b"\xcf\xfa\xed\xfe")  # as Linux and macOS begin them


@dataclass(frozen=True)
class Entry:
    """What a step needs to run one program. ``beside``: what it depends on beside its name. ``digest``: of its
    executable as it was compiled, empty where it has not been written yet. A file's name says what is computed, and not
    in which form; a certificate is one executable's."""

    captured: Captured
    compiled: Compiled
    choice: Choice
    stacks: Stacks
    beside: Beside
    digest: str = ""


@dataclass(frozen=True)
class Name:
    """What a program's file is called, and the writer that described it."""

    text: str
    writer: Writer


def key(
    model: Any, loss: Any, optimizer: Any, rule: Any, layout: Layout, mode: Any, options: Any, state: Any
) -> Name:
    """The name of this program's file. Raises Unknown for a program that cannot be described for certain."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    names = {id(p): n for n, p in model.named_parameters()}
    members = [[names.get(id(p), "?") for p in g["params"]] for g in optimizer.param_groups]
    leaves, structure = jax.tree.flatten(state)
    chosen = {
        k: v
        for k, v in sorted(vars(options).items())
        # a tuned program takes the place of the rule's, under the same name
        if k not in ("seed", "certificate", "nonfinite", "weights", "tune", "quiet")
    }
    writer = Writer(model)
    text = digest(
        str(SCHEMA),
        _environment(),
        writer.module(model),
        writer.value(loss),
        writer.value([type(optimizer), _flags(groups), members, _read_by_its_step(optimizer)]),
        update_of(rule),
        repr((layout.key, mode)),
        writer.value(kinds(layout.spec)),
        writer.value(list(chosen.values())),
        writer.value(patched()),
        writer.value(lowerings()),
        str(structure),
        repr([(a.shape, a.dtype.name) for a in leaves]),
    )
    return Name(text, writer)


def untold(captured: Captured, beside: Beside) -> str:
    """What the capture ran or read that neither the name of the file tells of nor what is kept in it, in words; empty
    where there is nothing."""
    if captured.asked:
        return f"{captured.asked[0]}, which another process may find changed"
    for code in sorted(captured.codes, key=lambda c: (c.co_filename, c.co_firstlineno)):
        if code not in beside.codes:
            return f"it ran {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}), which nothing leads to"
        if table := makes_keys(code):
            return f"{code.co_qualname} asks {table} by a name that it makes itself"
        outside = sorted(_OUTSIDE & set(code.co_names))
        if outside:
            return f"{code.co_qualname} asks for {', '.join(outside)}, which another process may answer otherwise"
    return ""


# Names of what lies outside of the model and the loss and cannot be seen when it is asked for (``live/outside.py`` sees
# the rest): the process, another library's settings, a stream that was opened before and is read in C.
_OUTSIDE = frozenset(
    {"load", "argv", "environ", "getenv", "getcontext", "localcontext", "Decimal", "input", "gethostname"}
)


def _read_by_its_step(optimizer: Any) -> dict[str, Any]:
    """What the step of a user's own optimizer may read of it besides its groups: ``self.rho``."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return {}
    return {k: v for k, v in sorted(vars(optimizer).items()) if k not in (*OF_OPTIMIZERS, "defaults")}


def _flags(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything but the values of floats, which are inputs; whether one is zero can choose a branch."""

    def shape(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [shape(v) for v in value]
        return f"float, zero: {value == 0}" if isinstance(value, float) else value

    return [{k: shape(v) for k, v in g.items() if k not in ("lr", "initial_lr")} for g in groups]


def _environment() -> str:
    device = jax.devices()[0]
    facts = (
        sys.version_info[:3],
        torch.__version__,
        jax.__version__,
        jaxlib.__version__,
        _own_code(),
        device.platform,
        device.device_kind,
        _processor() if device.platform == "cpu" else "",
        os.environ.get("XLA_FLAGS", ""),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        flags(),
    )
    return repr(facts)


@cache
def _processor() -> str:
    """The instruction set that a CPU executable was made for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def _own_code() -> str:
    """The bridge's own sources: a changed lowering is another program."""
    root = Path(__file__).parent.parent
    return digest(
        *(
            f"{p.relative_to(root)}{p.read_text()}"
            for p in sorted(root.rglob("*"))
            if p.suffix in (".py", ".cc")
        )
    )


def _held(captured: Captured, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Contents of the buffers that no step writes, which masks may have been recognised from."""
    graph = captured.graph
    passed = {*captured.outside, *(o.name for o in graph.outputs if o.kind == "buffer")}
    return {
        i.name: content(tensors[i.name])
        for i in graph.inputs
        if i.kind == "buffer" and i.name not in passed and i.name in tensors
    }


# What this process writes now, by folder and name: who looks for it waits.
_ON_THE_WAY: dict[tuple[Path, str], Stored] = {}


class Stored:
    """An entry on its way to the disk, or that nobody writes. Who asks for ``digest`` or ``uncached`` waits."""

    def __init__(self, digest: str = "", uncached: str = "") -> None:
        self._found = digest, uncached
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, place: Path, name: str, entry: Entry) -> Stored:
        """Begins to write. What is read of Python's objects is read now; what XLA and the disk take, a quarter to half
        of a second, goes on while the first step runs. An interpreter that ends meanwhile waits for it.

        How it can fail: it does not; a program that cannot be written, or for which there is no room, is compiled again
        by the next process, and ``uncached`` says so."""
        made = cls(uncached=_UNWRITTEN)
        try:
            data = _described(entry)
            told = pickle.dumps((entry.captured.ran, replace(entry.beside, codes=frozenset())))
        except Exception:  # an object in the graph that does not pickle
            return made
        executable, digest, before = entry.compiled.executable, entry.digest, _ON_THE_WAY.get((place, name))

        def write() -> None:
            if before is not None:
                before.wait()  # the file is that of the last one
            # What a backend raises here is its own, and a full disk must not end a training run: it stays unwritten.
            with suppress(Exception):
                try:
                    made._found = _stored(place, name, told, data, executable, digest)
                except OSError as error:
                    made._found = "", f"{place} has no room for it ({error.strerror})"

        made._thread = threading.Thread(target=write, name="detente writes a program")
        made._thread.start()
        _ON_THE_WAY[place, name] = made
        return made

    @property
    def digest(self) -> str:
        """Of its executable, as it was written; empty where it was not."""
        self.wait()
        return self._found[0]

    @property
    def uncached(self) -> str:
        """Why no later process will find it; empty where it will."""
        self.wait()
        return self._found[1]

    def wait(self) -> None:
        """Until it is written, or is known not to be."""
        if self._thread is not None:
            self._thread.join()


def _described(entry: Entry) -> bytes:
    """All of an entry but its executable. Who runs a program looks at it, too: it is pickled where that waits."""
    captured = entry.captured
    return pickle.dumps(
        {
            # live tensors and code stay out
            "captured": replace(captured, weights=None, codes=frozenset(), ran=Names()),  # type: ignore[arg-type]
            "held": _held(captured, captured.weights.tensors),
            "compiled": entry.compiled.stored(),
            "choice": entry.choice,
            "stacks": entry.stacks,
        }
    )


def _stored(
    place: Path, name: str, told: bytes, data: bytes, executable: Any, digest: str
) -> tuple[str, str]:
    """(digest, "") of what was written, or ("", why this backend, program or folder cannot be). The file appears whole
    or not."""
    payload = serialize_executable.serialize(executable)
    if not _holds_code(payload[0]):
        return "", "JAX's own compilation cache gave it, and XLA does not write again what it has read"
    of = digest or hashlib.sha256(payload[0]).hexdigest()
    if not trusted(place):
        return "", f"{place} cannot be made, or is not this user's alone"
    whole = pickle.dumps({"told": told, "made": data, "executable": payload, "digest": of})
    write(place, f"{name}.program", hashlib.sha256(whole).digest() + whole)
    return of, ""


def _holds_code(payload: bytes) -> bool:
    """Whether a serialised executable holds the functions that it calls. XLA's CPU client keeps the object files of
    what it compiles, and none of what it reads: such an executable runs, is written without complaint, is read without
    complaint, and calls functions that are nowhere (NOT_FOUND in the first step). Of other clients no such thing is
    known, and their code has other beginnings."""
    return jax.devices()[0].platform != "cpu" or any(magic in payload for magic in _OBJECT_FILES)


def store_certificate(place: Path, name: str, of: str, certificate: Certificate) -> None:
    """Beside its program, whose digest is ``of``, so that another process need not run eager again."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        if not trusted(place):
            return
        record = {"program": of, **replace(certificate, stored=now).record()}
        write(place, f"{name}.{certificate.level}.certificate", json.dumps(record).encode())
    except OSError:
        return


def load_certificate(place: Path, name: str, of: Stored, level: str) -> Certificate | None:
    """The stored certificate of that program, of this level or a higher one; None when there is none, which nobody
    waits to hear. That of another form that had the name before is none of this one's."""
    if not there(place):
        return None
    for found in dict.fromkeys(("full", level)):
        try:
            record = json.loads((place / f"{name}.{found}.certificate").read_text())
            if not of.digest or record["program"] != of.digest:
                continue
            certificate = Certificate.of_record(record)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if certificate.ok:
            return certificate
    return None


def load(place: Path, name: Name, weights: Weights, rule: Any) -> Entry | None:
    """The entry, with the live module's ``weights``; None when there is none that can be used here."""
    if (coming := _ON_THE_WAY.pop((place, name.text), None)) is not None:
        coming.wait()
    if not there(place):
        return None  # a pickle is code: nobody else may have put it there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's pytree deprecates its own pickled form
            whole = pickle.loads(_read(place / f"{name.text}.program"))
            ran, beside = pickle.loads(whole["told"])
            if not beside.fits(ran, name.writer):
                return None  # a library's function was replaced since, or its file
            stored = loads(whole["made"], moved(beside.lines, name.writer.codes))
        if (stored["compiled"].calls is None) != bool(kernels().why) or not known(stored["compiled"].loops):
            return None  # it calls what is not here, or would now
        captured = replace(stored["captured"], weights=weights, ran=ran)
        if stored["held"] != _held(captured, weights.tensors):
            return None
        executable = serialize_executable.deserialize_and_load(
            *whole["executable"], execution_devices=jax.devices()[:1]
        )
        digest = whole["digest"]
    except Exception:  # written by another version, cut short, made for another machine: compile instead
        return None
    compiled = stored["compiled"].loaded(executable, rule)
    beside = replace(beside, lines=lines_of(name.writer.codes))
    return Entry(captured, compiled, stored["choice"], stored["stacks"], beside, digest)


def _read(file: Path) -> memoryview:
    """What was written there. Raises ValueError where that is not what is there any more: a program of which one byte
    has changed may compute another number."""
    data = memoryview(file.read_bytes())
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[size:]).digest() != data[:size]:
        raise ValueError(f"{file} is not what was written")
    return data[size:]
