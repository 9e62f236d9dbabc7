"""The bridge beside PyTorch on a GPU: eager (``fused=True``), ``torch.compile`` with CUDA graphs, and the bridge, in
float32, TF32 and bfloat16 (``torch.autocast``), at batches that fill the device.

    python benchmarks/bridge_on_gpu.py                                   # four models, three precisions
    python benchmarks/bridge_on_gpu.py --cells llama:bf16 --page /tmp/page.md
    python benchmarks/bridge_on_gpu.py --only page                       # from what is stored, on any machine

In passes, because a GPU is often lent by the minute. ``prepare``: every program is compiled, several processes at once,
into caches that are kept, so that *compiled* is what it took beside others. ``measure``: the sides take turns in a
random order, a process each, and from its first work on the device to its end each is alone there. A step is timed over
windows of ``INSIDE`` steps, each of which ends when the device has done everything; the data lies on the device.
``attention``: the bridge's forms of it, alone. ``certify``, last, since it takes longest (a compiler on the device,
float64 on the host): each model as wide as it is but of few layers, at a CPU's batch, against eager PyTorch.
Interrupted, the same command goes on. On sixteen cores a program takes a minute or two to compile beside nine others:
of 15 minutes, ``--cells gpt2:bf16,vit:bf16,llama:bf16 --only prepare,measure`` leaves some.

MFU: the multiplications and additions of a step as ``torch.utils.flop_counter`` counts them in eager (forward and
backward, no recomputation, no optimizer), by the step's seconds, over what the device's data sheet promises.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from beside_torch import MODELS, made
from on_gpu_page import PRECISIONS, SIDES, WITHOUT, Line, page

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-on-gpu.md"
WARM, WINDOWS, INSIDE = 4, 5, 4
# Processes at once: JAX's, which run nothing on the device; torch's, which run a step to compile it; and those that are
# made ready while another is measured.
COMPILING, STEPPING, READY = 4, 3, 2
# Batch, heads, positions, width, causal: of the cells, and what is shorter.
ATTENDED = (
    (64, 12, 64, 64, True),
    (32, 12, 128, 64, False),
    (64, 12, 197, 64, False),
    (64, 12, 256, 64, False),
    (16, 12, 512, 64, True),
    (8, 12, 1024, 64, True),
    (32, 6, 1500, 64, False),
)
FOLDER = "DETENTE_ON_GPU"


class Alone:
    """The device, for one process at a time: from ``begin()`` to the end of the process, whatever ends it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def begin(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)


def _around(precision: str, device: str) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def _timed(run: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Seconds of a step: the median over windows."""
    for _ in range(WARM):
        run()
    wait()
    found = []
    for _ in range(WINDOWS):
        begun = time.perf_counter()
        for _ in range(INSIDE):
            run()
        wait()
        found.append((time.perf_counter() - begun) / INSIDE)
    return statistics.median(found)


def of_bridge(name: str, precision: str, what: str, alone: Alone) -> Line:
    import jax
    import torch

    import detente

    small = what == "certify"
    model, batch, plain = made(name, None if small else MODELS[name].accelerator, shallow=small)
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(model: Any, batch: Any) -> Any:
        with _around(precision, "cpu"):  # the module stays on the host, where it is captured
            return plain(model, batch)

    begun = time.perf_counter()
    step = detente.compile(
        model,
        loss,
        optimizer,
        example_batch=batch,
        seed=0,
        certificate="full" if small else "none",
        matmul="tensorfloat32" if precision == "tf32" else "highest",
        quiet=True,
    )
    found: Line = {"compiled_s": time.perf_counter() - begun, "form": step.choice.form}
    if small:
        found["loss"] = float(step(batch))
        certificate = step.settled()
        return found | {"certificate": str(certificate), "passed": certificate.ok}
    if what == "measure":
        alone.begin()
        found["loss"] = float(step(batch))
        placed = step.place(batch)
        found["step_s"] = _timed(lambda: step(placed), step.wait)
        found["peak_gb"] = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9
        found["last"] = float(step(placed))
    return found


def of_torch(name: str, side: str, precision: str, what: str, alone: Alone) -> Line:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model, batch, plain = made(name, MODELS[name].accelerator)
    if what == "measure":
        alone.begin()
    model, batch = model.cuda(), {key: value.cuda() for key, value in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def loss(model: Any, batch: Any) -> Any:
        with _around(precision, "cuda"):
            return plain(model, batch)

    forward = torch.compile(loss, mode="reduce-overhead") if side == "compile" else loss

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        value = forward(model, batch)
        value.backward()
        optimizer.step()
        return value.detach()

    begun = time.perf_counter()
    found: Line = {"loss": float(step())}
    torch.cuda.synchronize()
    found["compiled_s"] = time.perf_counter() - begun
    if what == "measure":
        if side == "eager":
            with FlopCounterMode(display=False) as counted:
                step()
            found["flop"] = counted.get_total_flops()
        for _ in range(2):  # what is captured is captured by now
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        found["step_s"] = _timed(step, torch.cuda.synchronize)
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        found["last"] = float(step())
    return found


def of_one(name: str, side: str, precision: str, what: str) -> Line:
    """One figure, in this process."""
    line: Line = {"model": name, "side": side, "precision": precision, "pass": what}
    alone = Alone(Path(os.environ[FOLDER]) / "alone")
    try:
        if side in ("bridge", WITHOUT):
            return line | of_bridge(name, precision, what, alone)
        return line | of_torch(name, side, precision, what, alone)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else ""
        return line | {"failed": f"{type(error).__name__}: {said}"[:300]}


def ceiling() -> list[Line]:
    """What a product of 8192 x 8192 x 8192 reaches here in each precision, by PyTorch."""
    from importlib.metadata import version

    import torch

    versions = {name: version(name) for name in ("torch", "jax", "transformers")}
    found: Line = {"pass": "ceiling", "device": torch.cuda.get_device_name(), "versions": versions}
    for precision in PRECISIONS:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
        found[precision] = 2 * 8192**3 / _timed(lambda a=a, b=b: a @ b, torch.cuda.synchronize)
    return [found]


def attended() -> list[Line]:
    """Attention in bfloat16, forwards and backwards: the plain form and cuDNN's kernel, and how far apart they are."""
    import jax
    import jax.numpy as jnp

    from detente.bridge.lower.ops import attention, flash_attention

    found = []
    for batch, heads, positions, width, causal in ATTENDED:
        keys = jax.random.split(jax.random.key(0), 4)
        arrays = [jax.random.normal(k, (batch, heads, positions, width), jnp.bfloat16) for k in keys]
        line: Line = {"pass": "attention", "sizes": [batch, heads, positions, width], "causal": causal}
        gradients = {}
        for name, run in (("plain", attention.plain), ("flash", flash_attention.flash_attention)):

            def both(q: Any, k: Any, v: Any, g: Any, run: Any = run, causal: bool = causal) -> Any:
                scale = q.shape[-1] ** -0.5
                value, back = jax.vjp(lambda q, k, v: run(q, k, v, causal, scale), q, k, v)
                return value, *back(g)

            step, last = jax.jit(both), []
            line[name] = _timed(
                lambda step=step, last=last, arrays=arrays: last.__setitem__(slice(None), [step(*arrays)]),
                lambda last=last: jax.block_until_ready(last),
            )
            gradients[name] = [x.astype(jnp.float32) for x in last[0]]
        line["apart"] = max(
            float(jnp.linalg.norm(a - b) / jnp.linalg.norm(a))
            for a, b in zip(*gradients.values(), strict=True)
        )
        found.append(line)
    return found


class Runs:
    """Processes of this script, and every line that they said. They end when ``seconds`` are over."""

    def __init__(self, kept: Path, caches: Path, seconds: float) -> None:
        self.kept, self.caches, self.ends = kept, caches, time.monotonic() + seconds
        self.lines: list[Line] = (
            [json.loads(text) for text in kept.read_text().splitlines()] if kept.exists() else []
        )

    def has(self, what: str) -> bool:
        return any(line["pass"] == what for line in self.lines)

    def one(self, cell: tuple[str, str], side: str, what: str) -> None:
        key = (cell[0], side, cell[1], what)
        done = {(x.get("model"), x.get("side"), x.get("precision"), x["pass"]) for x in self.lines}
        if key not in done:
            self.process(["--one", *key], without=side == WITHOUT)

    def process(self, arguments: list[str], without: bool = False) -> None:
        """A line is kept as it comes: a process that is cut off loses its own, and no more."""
        seconds = self.ends - time.monotonic()
        if seconds <= 0:
            return
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": f"{self.caches}/inductor",
            "TRITON_CACHE_DIR": f"{self.caches}/triton",
            "DETENTE_BRIDGE_CACHE": f"{self.caches}/bridge",
            FOLDER: str(self.caches),
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
            # Processes share the device in turns, and a peak is of what was asked for.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        if without:
            variables["DETENTE_KERNELS"] = "0"
        begun = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        watching = threading.Timer(seconds, child.kill)
        watching.start()
        said, _ = child.communicate()
        watching.cancel()
        for text in said.splitlines():
            if text.startswith("{"):
                line = json.loads(text)
                self.lines.append(line)
                with self.kept.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                told = {k: v for k, v in line.items() if k != "certificate"}
                print(told, f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        if child.returncode:
            print(f"{arguments}: exit code {child.returncode}", file=sys.stderr, flush=True)


def _cells(parser: argparse.ArgumentParser, text: str) -> list[tuple[str, str]]:
    found = []
    for part in filter(None, text.split(",")):
        name, _, precision = part.partition(":")
        if name not in MODELS:
            parser.error(f"no model is called {name!r}: there are {', '.join(MODELS)}")
        if precision not in PRECISIONS:
            parser.error(f"no precision is called {precision!r}: there are {', '.join(PRECISIONS)}")
        found.append((name, precision))
    return found


Cell = tuple[str, str]


def prepared(runs: Runs, cells: list[Cell], without: list[Cell]) -> None:
    with ThreadPoolExecutor(COMPILING) as compiling, ThreadPoolExecutor(STEPPING) as stepping:
        begun = []
        for cell in cells:
            begun.append(compiling.submit(runs.one, cell, "bridge", "prepare"))
            begun.append(stepping.submit(runs.one, cell, "compile", "prepare"))
            if cell in without:
                begun.append(compiling.submit(runs.one, cell, WITHOUT, "prepare"))
    for one in begun:
        one.result()


def measured(runs: Runs, cells: list[Cell], without: list[Cell]) -> None:
    if not runs.has("ceiling"):
        runs.process(["--alone", "ceiling"])
    with ThreadPoolExecutor(READY) as ready:
        begun = []
        for cell in cells:
            sides = [*SIDES, WITHOUT] if cell in without else list(SIDES)
            for side in random.sample(sides, len(sides)):
                begun.append(ready.submit(runs.one, cell, side, "measure"))
    for one in begun:
        one.result()


def attention(runs: Runs, cells: list[Cell], without: list[Cell]) -> None:
    if not runs.has("attention"):
        runs.process(["--alone", "attention"])


def certified(runs: Runs, cells: list[Cell], without: list[Cell]) -> None:
    with ThreadPoolExecutor(COMPILING) as compiling:
        begun = [compiling.submit(runs.one, cell, "bridge", "certify") for cell in cells]
    for one in begun:
        one.result()


PASSES = {"prepare": prepared, "measure": measured, "attention": attention, "certify": certified}
ALONE = {"ceiling": ceiling, "attention": attended}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--one", nargs=4, metavar=("MODEL", "SIDE", "PRECISION", "PASS"), help=argparse.SUPPRESS
    )
    parser.add_argument("--alone", choices=ALONE, help=argparse.SUPPRESS)
    every = ",".join(f"{name}:{p}" for p in PRECISIONS[::-1] for name in ("gpt2", "vit", "resnet50", "llama"))
    parser.add_argument(
        "--cells", default=every, help="models and precisions, in this order; default: %(default)s"
    )
    parser.add_argument("--without", default="", help="cells that are also measured with XLA's own attention")
    parser.add_argument("--only", default=",".join(PASSES), help="passes, by comma; or page")
    parser.add_argument("--caches", type=Path, help="where compiled programs are kept; default: a new folder")
    parser.add_argument("--seconds", type=float, default=7200.0, help="what the whole may take")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    if given.alone or given.one:
        for line in ALONE[given.alone]() if given.alone else [of_one(*given.one)]:
            print(json.dumps(line), flush=True)
        return 0
    cells, without = _cells(parser, given.cells), _cells(parser, given.without)
    passes = given.only.split(",")
    if wrong := [p for p in passes if p not in (*PASSES, "page")]:
        parser.error(f"no pass is called {wrong[0]!r}: there are {', '.join(PASSES)}, and page")
    caches = given.caches or Path(tempfile.mkdtemp(prefix="detente-on-gpu-"))
    caches.mkdir(parents=True, exist_ok=True)
    runs = Runs(given.page.with_suffix(".jsonl"), caches, given.seconds)
    for name, run in PASSES.items():
        if name in passes:
            run(runs, cells, without)
    asked = [] if passes == ["page"] else sys.argv[1:]
    command = " ".join(["python benchmarks/bridge_on_gpu.py", *asked])
    given.page.write_text(page(runs.lines, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
