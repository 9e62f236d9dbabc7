"""What the proof of a function with kinks lets through, and what it catches: the gradients of ResNet-50.

python benchmarks/kinked_proof.py            # about 20 minutes on two cores; writes docs/results/kinked-proof.md
python benchmarks/kinked_proof.py --size tiny --page /tmp/page.md

The weights, the bound and the nine fair runs behind it are those that ``prepare`` makes (region ``gradient``). Then a
hundred fair runs that are not among the nine are judged (eager PyTorch from weights that are off in their last digit
under other seeds, orders of rows, memory formats, libraries and numbers of threads; JAX; the bridge, which is XLA), and
planted faults. JAX and PyTorch run in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from detente.judge.parity import Judged, judge_tensors, unseen
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS, Contract
from detente.records.job import Job
from detente.records.precision import PRECISIONS
from detente.records.tensor_error import TensorError
from detente.session.fingerprint import machine
from detente.worker.events import Events
from detente.worker.fair import Fair, perturbed, reordered
from detente.worker.made_in_torch import TorchMaker
from detente.worker.prepared import map_batches, map_weights, read_kinks
from detente.worker.reference import Trace, map_reference, reference_name
from detente.workloads.catalogue import find_size, find_workload

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/kinked-proof.md"
NAME = "resnet50"
CONTRACT = CONTRACTS["gradient"]
TORCH_RUNS, OTHER_RUNS = 80, 10
# Not among those of the ensemble, whose seeds and orders end at 7 and 4.
FIRST = 1000


def held_out() -> Iterator[tuple[str, Fair]]:
    """Eager PyTorch, otherwise than in the nine runs behind the bound."""
    ways = (
        ("torch", {}),
        ("torch, channels last", {"channels_last": True}),
        ("torch, without oneDNN", {"onednn": False}),
        ("torch, other threads", {"threads": True}),
        ("torch, channels last, other threads", {"channels_last": True, "threads": True}),
    )
    for i in range(TORCH_RUNS):
        name, how = ways[i % len(ways)]
        yield name, Fair(order=FIRST + i if i % 2 else 0, seed=FIRST + i, **how)


# Faults: each changes one thing of the torch model, or of its backward pass ---------------------------------------


def epsilon(number: int) -> Callable[[Any], Any]:
    """1e-4 in the normalisation of this number, where torch has 1e-5."""

    @contextmanager
    def around(running: Any) -> Iterator[None]:
        normalisations(running)[number].eps = 1e-4
        yield

    return around


def normalisations(running: Any) -> list[Any]:
    import torch

    return [m for m in running.module.modules() if isinstance(m, torch.nn.BatchNorm2d)]


@contextmanager
def smoothing(running: Any) -> Iterator[None]:
    """1e-3 of the labels' mass on all labels."""
    import torch

    plain = running.definition.loss

    def loss(module: Any, batch: Any) -> Any:
        _, outputs = plain(module, batch)
        labels = next(t for t in batch.values() if not t.is_floating_point())
        return torch.nn.functional.cross_entropy(outputs["logits"], labels, label_smoothing=1e-3), outputs

    holder = running.definition
    running.definition = type("Definition", (), {"loss": staticmethod(loss)})
    yield
    running.definition = holder


@contextmanager
def missing_bias(running: Any) -> Iterator[None]:
    """The shift of one normalisation is not added."""
    norms = normalisations(running)
    norm = norms[len(norms) // 2]
    hook = norm.register_forward_hook(lambda m, a, out: out - m.bias.view(1, -1, 1, 1))
    yield
    hook.remove()


@contextmanager
def narrow_backward(bits: int) -> Iterator[None]:
    """The operands of every backward product are rounded to so many bits of mantissa; sums stay wide, as tensor cores
    do it."""
    import torch

    def cut(tensor: Any) -> Any:
        if bits == 7:
            return tensor.bfloat16().float()
        kept = 23 - bits
        whole = tensor.contiguous().view(torch.int32) + (1 << (kept - 1))
        return (whole >> kept << kept).view(torch.float32)

    class Narrow(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ("conv2d", "linear"):
                return _Narrowed.apply(func, cut, kwargs or {}, *args)
            return func(*args, **(kwargs or {}))

    class _Narrowed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, func: Any, cut: Any, kwargs: Any, *args: Any) -> Any:
            ctx.func, ctx.cut, ctx.kwargs, ctx.args = func, cut, kwargs, args
            return func(*args, **kwargs)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            with torch.enable_grad():
                x, weight, *rest = ctx.args
                mine = [cut(t.detach()).requires_grad_(True) for t in (x, weight)]
                bias = rest[0].detach().requires_grad_(True) if rest and torch.is_tensor(rest[0]) else None
                rest = [bias, *rest[1:]] if bias is not None else rest
                out = ctx.func(*mine, *rest, **ctx.kwargs)
            wanted = [*mine, *([bias] if bias is not None else [])]
            found = torch.autograd.grad(out, wanted, cut(gradient))
            given = list(found) + [None] * (len(ctx.args) - len(found))
            return None, None, None, *given

    with Narrow():
        yield


FAULTS: dict[str, Callable[[Any], Any]] = {
    "label smoothing 1e-3": smoothing,
    "a missing bias": missing_bias,
    "backward products in bf16": lambda running: narrow_backward(7),
    "backward products in TF32": lambda running: narrow_backward(10),
}


# One side each, in a process of its own ----------------------------------------------------------------------------


def judged(folder: Path, loss: float, gradients: Mapping[str, np.ndarray]) -> list[Judged]:
    trace = Trace((loss,), {}, gradients, {}, {}, frozenset())
    errors = [
        e
        for e in map_reference(folder, reference_name(CONTRACT)).errors(trace)
        if e.kind == "gradient" or (e.kind == "loss" and e.name == "1")
    ]
    return list(judge_tensors(errors, PRECISIONS["fp32"]))


def found_of(folder: Path, loss: float, gradients: Mapping[str, np.ndarray]) -> dict[str, Any]:
    shares = [(j.share or 0.0, f"{j.error.kind} {j.error.name}") for j in judged(folder, loss, gradients)]
    worst = max(shares)
    return {"share": worst[0], "tensor": worst[1], "beyond": sum(s > 1 for s, _ in shares)}


def in_torch(folder: Path, size_name: str, threads: int) -> list[dict[str, Any]]:
    workload = find_workload(NAME)
    size = find_size(workload, size_name)
    weights, batches = map_weights(folder), map_batches(folder)
    found = []

    def once(fair: Fair, around: Callable[[Any], Any] | None = None) -> tuple[float, dict[str, np.ndarray]]:
        (batch,) = fair.batches(batches[:1]) or batches[:1]
        maker = TorchMaker()
        with maker.running(fair, workload, size, CONTRACT, "fp32", "cpu", threads) as running:
            running.load(fair.weights(weights))
            placed = maker.place(fair, running, batch)
            if around is None:
                handle = running.step(placed)
            else:
                with around(running):
                    handle = running.step(placed)
            return running.loss(handle), running.outputs(handle)

    for name, fair in held_out():
        found.append({"kind": "fair", "what": name, **found_of(folder, *once(fair))})
        print(".", end="", flush=True, file=sys.stderr)
    for name, around in FAULTS.items():
        found.append({"kind": "fault", "what": name, **found_of(folder, *once(Fair(), around))})
    # In every layer: what moves a gradient by less than rounding moves it is for the fp64 level to see.
    with TorchMaker().running(Fair(), workload, size, CONTRACT, "fp32", "cpu", threads) as running:
        count = len(normalisations(running))
    shown = [found_of(folder, *once(Fair(), epsilon(i))) | {"layer": i} for i in range(count)]
    seen = sum(h["share"] > 1 for h in shown)
    for what, choose in (("most", max), ("least", min)):
        of = choose(shown, key=lambda h: h["share"])
        name = f"epsilon 1e-4 in layer {of['layer'] + 1} of {count}, where it shows {what} (caught in {seen})"
        found.append({"kind": "fault", "what": name, **of})
    loss, gradients = once(Fair())
    # Of each tensor in turn: the one that hides it best is what counts.
    hidden = []
    for name in gradients:
        hidden.append(
            {**found_of(folder, loss, {**gradients, name: gradients[name] * np.float32(1.01)}), "of": name}
        )
    found.append(
        {
            "kind": "fault",
            "what": "one gradient x 1.01, the best hidden",
            **min(hidden, key=lambda h: h["share"]),
        }
    )
    return found


def in_function(threads: int) -> list[dict[str, Any]]:
    """The first level, which every row passes before it is timed: in float64 at ``tiny``, the same layers. An epsilon
    that moves a float32 gradient by less than rounding does is for it to see."""
    workload, size = find_workload(NAME), find_size(find_workload(NAME), "tiny")
    contract = CONTRACT.at("fp64")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare_in(folder, "tiny", contract, threads)
        weights, batch = map_weights(folder), map_batches(folder)[0]
        reference = map_reference(folder, reference_name(contract))
        shown = []
        with TorchMaker().running(Fair(), workload, size, contract, "fp64", "cpu", threads) as running:
            norms = normalisations(running)
            for number in (None, *range(len(norms))):
                running.load(weights)
                kept = [n.eps for n in norms]
                if number is not None:
                    norms[number].eps = 1e-4
                handle = running.step(running.place(batch))
                for norm, eps in zip(norms, kept, strict=True):
                    norm.eps = eps
                trace = Trace((running.loss(handle),), {}, running.outputs(handle), {}, {}, frozenset())
                errors = [e for e in reference.errors(trace) if e.kind == "gradient"]
                found = [
                    (j.share or 0.0, f"gradient {j.error.name}")
                    for j in judge_tensors(errors, PRECISIONS["fp64"])
                ]
                shown.append(
                    {"share": max(found)[0], "tensor": max(found)[1], "beyond": sum(s > 1 for s, _ in found)}
                )
    fair, *shown = shown
    seen, least = sum(s["share"] > 1 for s in shown), min(shown, key=lambda s: s["share"])
    what = f"epsilon 1e-4 in any one of {len(shown)} layers (caught in {seen}), where it shows least"
    return [
        {"kind": "function", "what": "torch itself, fair", **fair},
        {"kind": "function", "what": what, **least},
    ]


def in_jax(folder: Path, size_name: str, stack_name: str, threads: int) -> list[dict[str, Any]]:
    """One program, from weights that are off in their last digit and batches whose rows are turned."""
    from detente.stacks.catalogue import find_entry, make_stack

    workload = find_workload(NAME)
    stack = make_stack(find_entry(stack_name))
    stack.start("cpu", "fp32", threads)
    running = stack.build(workload, find_size(workload, size_name), CONTRACT)
    weights, batch = map_weights(folder), map_batches(folder)[0]
    found = []
    for i in range(OTHER_RUNS):
        running.load(perturbed(weights, FIRST + 500 + i) if i else weights)
        turned = (reordered(batch, FIRST + i) if i % 2 else None) or batch
        handle = running.step(running.place(turned))
        result = found_of(folder, running.loss(handle), running.outputs(handle))
        found.append({"kind": "fair", "what": stack_name, **result})
        print(".", end="", flush=True, file=sys.stderr)
    return found


def prepare_in(folder: Path, size: str, contract: Contract, threads: int) -> None:
    from detente.worker.jobs import prepare

    cell = Cell(NAME, size, "torch-eager", contract, "cpu", "torch-eager")
    job = Job("prepare", cell, 0, str(folder), "", "", threads)
    prepare.run(job, Events(os.open(os.devnull, os.O_WRONLY)))


def side(name: str, folder: Path, size: str, threads: int) -> None:
    """What a child process prints: its rows as JSON."""
    rows: list[dict[str, Any]] = []
    if name == "prepare":
        prepare_in(folder, size, CONTRACT, threads)
    elif name == "function":
        rows = in_function(threads)
    else:
        rows = in_torch(folder, size, threads) if name == "torch" else in_jax(folder, size, name, threads)
    print(json.dumps(rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="paper")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--folder", type=Path, help="prepared here, and kept")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    if asked.side:
        side(asked.side, asked.folder, asked.size, threads)
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        rows, seconds = [], {}
        made_already = (folder / f"{reference_name(CONTRACT)}.json").exists()
        names = ("torch", "jax", "detente", "function")
        for name in names if made_already else ("prepare", *names):
            begun = time.monotonic()
            words = ["--side", name, "--size", asked.size, "--folder", str(folder)]
            done = subprocess.run(
                [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True
            )
            rows += json.loads(done.stdout.splitlines()[-1])
            seconds[name] = time.monotonic() - begun
            print(f" {name}: {seconds[name]:.0f} s", file=sys.stderr)
        text, good = page(rows, folder, asked.size, seconds)
    print(text)
    asked.page.write_text(text, encoding="utf-8")
    return 0 if good else 1


def page(rows: list[dict[str, Any]], folder: Path, size: str, seconds: dict[str, float]) -> tuple[str, bool]:
    kinks = read_kinks(folder)
    entries = map_reference(folder, reference_name(CONTRACT)).entries
    own = sorted(err / rms for key, (_, rms, err) in entries.items() if key.startswith("gradient|") and rms)
    right = [
        TensorError("gradient", key.partition("|")[2], 0.0, err, rms, elements)
        for key, (elements, rms, err) in entries.items()
        if key.startswith("gradient|")
    ]
    blind = unseen(judge_tensors(right, PRECISIONS["fp32"]))
    fair = [r for r in rows if r["kind"] == "fair"]
    faults = [r for r in rows if r["kind"] == "fault"]
    function = [r for r in rows if r["kind"] == "function"]
    through = sum(r["share"] <= 1 for r in fair)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for r in fair:
        by_name.setdefault(r["what"], []).append(r)
    met = ", ".join(f"{n} {name}" for name, n in sorted(kinks.met.items()))
    lines = [
        f"# The proof of a function with kinks: {NAME} at {size}",
        "",
        f"`python benchmarks/kinked_proof.py`{'' if size == 'paper' else f' --size {size}'}, "
        f"{sum(seconds.values()) / 60:.0f} minutes. Processor: {machine()['processor']}.",
        "",
        f"Met on the way: {met}. {kinks.moved} biases in front of a ReLU were moved, by {kinks.furthest:.3f} at most; "
        f"{kinks.left} ReLUs are behind no bias. The nearest input is {kinks.nearest or 0:.1e} standard deviations "
        "from zero now. `err_ref` is the largest of nine fair runs; as a share of each gradient's rms its "
        f"median is {own[len(own) // 2]:.2e} and its largest {own[-1]:.2e}. A relative error of a gradient under "
        f"{blind or 0:.1e} could not be seen in every tensor.",
        "",
        "A run's error over its bound, of the tensor nearest to it: at most 1 passes.",
        "",
        f"## Fair runs that are not among the nine: {through} of {len(fair)} pass",
        "",
        "| run | runs | pass | median of bound | largest of bound | tensor |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in by_name.items():
        shares = sorted(r["share"] for r in found)
        worst = max(found, key=lambda r: r["share"])
        passed = sum(s <= 1 for s in shares)
        lines.append(
            f"| {name} | {len(found)} | {passed} | {shares[len(shares) // 2]:.2f} | {shares[-1]:.2f} | "
            f"{worst['tensor']} |"
        )
    # By one level or the other: an epsilon that the second cannot see is the first's.
    first = function[1]["share"] > 1
    caught = sum(r["share"] > 1 or (first and r["what"].startswith("epsilon")) for r in faults)
    lines += [
        "",
        f"## Faults: {caught} of {len(faults)} are caught",
        "",
        "At the timed size and precision (the second level):",
        "",
        "| fault | of its bound | tensors beyond theirs | tensor |",
        "|---|---|---|---|",
        *(f"| {r['what']} | {r['share']:.3g} | {r['beyond']} | {r.get('of', r['tensor'])} |" for r in faults),
        "",
        "In float64 at `tiny` (the first level, which every row passes before it is timed):",
        "",
        "| run | of its bound | tensors beyond theirs | tensor |",
        "|---|---|---|---|",
        *(f"| {r['what']} | {r['share']:.3g} | {r['beyond']} | {r['tensor']} |" for r in function),
    ]
    good = through == len(fair) and caught == len(faults) and function[0]["share"] <= 1
    return "\n".join(lines) + "\n", good


if __name__ == "__main__":
    sys.exit(main())
