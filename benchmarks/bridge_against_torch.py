"""The bridge beside PyTorch at its best: unmodified models of ``transformers``, dropout as published, AdamW, fp32.

    python benchmarks/bridge_against_torch.py                        # nine models, 5 rounds, some two hours, quiet
    python benchmarks/bridge_against_torch.py --models resnet50 --rounds 1 --page /tmp/page.md

Eager (``fused=True``), ``torch.compile`` (default mode, of model and loss) and the bridge each have a process of their
own, whose caches are empty. One begins when the one before it has measured its first step and its peak; then all of
them live, and take one step each in turns, in a new random order in every turn (``turns.py``): processes apart differ
by a tenth, which is more than what is to be told. A model of pictures runs on
PyTorch with channels last, too, weights and batch: which layout is faster hangs on model and processor (ConvNeXt,
compiled, Zen 3: 0.54 and 0.72 s a step with them last, 0.86 and 0.83 without). PyTorch's processes keep freed memory as
the referee's rows do. A first step is everything from the built model to the first loss that is read; the bridge's
certificate is left out of it, because PyTorch makes none. The bridge is as `make install` leaves it: where `detente
bridge prepare` has timed its kernels on this machine a first step finds the answers, and what it would have spent on
them is told. A second process finds what the first one of its side has cached. ``VmHWM`` is reset before the third
step.

What is compared is decided within a turn, where the machine was the same: a round's ratio is the median over its turns
of the bridge's step over that of PyTorch's best side, a page's the median over rounds. All sides of a model are in
memory at once: five of at most 1.6 GB, or three of at most 3.1. Interrupted, the same command goes on with the round of
the model that it was at.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beside_torch import MODELS, made
from scipy.stats import quantile_test
from turns import Failed, Live, in_turns, serve

from detente.bridge.folder import users
from detente.bridge.kernels.ahead import PATIENCE
from detente.bridge.kernels.build import remembering
from detente.bridge.kernels.products import F32
from detente.bridge.kernels.trials import ATTENTION, CONVOLUTIONS
from detente.session.fingerprint import machine
from detente.stacks.catalogue import STACKS
from detente.stacks.process_memory import peak
from detente.stacks.torch_form import TorchForm

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-against-torch.md"
SIDES = ("eager", "compile", "bridge")
LAST = ", channels last"  # of a side of PyTorch's
ALONE, TURNS = 6, 16  # steps: of which one the peak is, and of which ones the time


def sides_of(name: str) -> tuple[str, ...]:
    return (*SIDES, *(s + LAST for s in SIDES[:2] if MODELS[name].pictures))


def measure(name: str, side: str, second: bool) -> tuple[dict[str, Any], Callable[[], float]]:
    """One side of one model, in this process: what it measures alone, of a ``second`` one the first step only, and the
    step."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model, batch, loss = made(name)
    layout = TorchForm(channels_last=side.endswith(LAST))
    model, batch = layout.laid_out(torch, model), {n: layout.placed(torch, x) for n, x in batch.items()}
    side = side.removesuffix(LAST)
    optimizer = torch.optim.AdamW(model.parameters(), fused=side != "bridge")
    begun = time.perf_counter()
    if side == "bridge":
        import detente

        had, timed = _extension(), bool(_leads())
        begun = time.perf_counter()
        train: Any = detente.compile(
            model, loss, optimizer, example_batch=batch, seed=0, certificate="none", quiet=True
        )
        form = train.choice.form
    else:
        forward = torch.compile(loss) if side == "compile" else loss
        form = ""

        def train(batch: Any) -> Any:
            optimizer.zero_grad()
            value = forward(model, batch)
            value.backward()
            optimizer.step()
            return value

    def step() -> float:
        return train(batch).item()

    step()
    first = time.perf_counter() - begun
    if second:
        return {"second_s": first}, step
    step()
    whole, forgotten = peak(), _forget_peak()
    for _ in range(ALONE):
        step()
    found = {"first_s": first, "form": form, "whole_gb": max(whole, peak()) / 1e9}
    if side == "bridge":
        found["extension"] = _came() or ("there" if had else "built" if _extension() else "none")
        found["leads"], found["trials_s"] = _leads(), _trials() if timed else {}
    return found | ({"peak_gb": peak() / 1e9} if forgotten else {}), step


def _came() -> str:
    """``shipped`` if the kernels that this process calls were compiled by the installation."""
    from detente.bridge.kernels.build import kernels
    from detente.bridge.kernels.extension import FOLDER

    library = kernels().library
    return "shipped" if library is not None and Path(library._name).parent == FOLDER else ""


def _extension() -> bool:
    """Whether the bridge's kernels are in this user's folder already."""
    place = users()
    return place is not None and any((place / "kernels").glob("kernels-*.so"))


def _leads() -> dict[str, float]:
    """XLA's seconds by those of the calls, as this process measured them for what it may call."""
    place, found = users(), {}
    for file in sorted((place / "kernels").glob("leads-*.json")) if place is not None else ():
        found |= {k: round(v, 2) for k, v in json.loads(file.read_text())["leads"].items()}
    return found


def _trials() -> dict[str, float]:
    """Seconds that a first step would spend on finding out what to call, by kind of work."""
    from detente.bridge.kernels.worth import leads

    found: dict[str, float] = {}
    for of in (F32, ATTENTION, CONVOLUTIONS):
        begun = time.perf_counter()
        leads(None, of)
        found[of] = time.perf_counter() - begun
    return found


def prepared() -> list[Path]:
    """What `detente bridge prepare` has found out about this machine."""
    place = remembering()
    found = sorted(place.glob("leads-*.json")) if place is not None else []
    return [file for file in found if json.loads(file.read_text()).get("patience", 1) >= PATIENCE]


def _forget_peak() -> bool:
    """Nothing is given back first, as the referee's memory runs do: a user's process does not either."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def measured(name: str) -> dict[str, dict[str, Any]]:
    """What was found of each side of the model, each in a process of its own with empty caches."""
    names, found = sides_of(name), {}
    with ExitStack() as stack:
        environs = {
            side: _environ(side, stack.enter_context(tempfile.TemporaryDirectory(prefix="detente-beside-")))
            for side in names
        }
        with ExitStack() as processes:
            live = {}
            for side in random.sample(names, len(names)):
                process = processes.enter_context(Live(_command(name, side), environs[side]))
                try:
                    process.begin()
                except Failed as error:
                    found[side] = {"failed": str(error)}
                else:
                    live[side] = process
                    found[side] = process.alone
                    print(name, side, process.alone, file=sys.stderr, flush=True)
            for side, steps in in_turns(live, TURNS).items():
                if isinstance(steps, Failed):
                    found[side] = {"failed": str(steps)}
                else:
                    found[side] |= {
                        "step_s": statistics.median(steps),
                        "steps_s": [float(f"{t:.4g}") for t in steps],
                    }
        for side in live:  # behind the others: what its process holds would be in their way
            if not side.startswith("eager") and "failed" not in found[side]:
                with Live([*_command(name, side), "--second"], environs[side]) as process:
                    try:
                        process.begin()
                        found[side] |= process.alone
                    except Failed as error:
                        found[side]["second_failed"] = str(error)
    return found


def _command(name: str, side: str) -> list[str]:
    return [sys.executable, __file__, "--one", name, side]


def _environ(side: str, folder: str) -> dict[str, str]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton",
              "DETENTE_BRIDGE_CACHE": f"{folder}/bridge", "XDG_CACHE_HOME": f"{folder}/user"}  # fmt: skip
    kept = dict(STACKS["torch-eager"].variables) if side != "bridge" else {}
    if side == "bridge" and (files := prepared()):
        (own := Path(folder, "user", "detente", "kernels")).mkdir(parents=True, mode=0o700)
        for file in files:
            shutil.copy(file, own)
    return {**os.environ, **caches, **kept}


HEAD = (
    "| model | rounds | eager, s | compile, s | bridge, s | form | ratio | first step: compile, bridge, s | "
    "in a second process | peak: eager, compile, bridge, GB |",
    "|---|---:|---:|---:|---:|---|---|---|---|---|",
)


def page(lines: list[dict[str, Any]], command: str) -> str:
    """The page of everything that was measured so far: a table for each processor, because no ratio carries over."""
    text = [
        "# The bridge beside PyTorch at its best",
        "",
        f"`{command}`: unmodified models, dropout as published, fp32, AdamW (PyTorch's fused), empty caches, processes",
        f"that live at once and take {TURNS} steps each in turns. Medians over rounds; *ratio*: the bridge's step over",
        "that of PyTorch's best side in the same turn, their median, and from where to where (95 %, the widest of the",
        "rounds). *cl*: with channels last, which models of pictures are tried with, where it is faster.",
    ]
    for processor in dict.fromkeys(line["processor"] for line in lines):
        text += ["", f"## {processor}", "", *_table([x for x in lines if x["processor"] == processor])]
    return "\n".join([*text, ""])


def _ratio(sides: dict[str, dict[str, Any]]) -> tuple[float, float, float]:
    """The bridge's step over the best of PyTorch's in one round, and from where to where it is by its turns (95 %);
    a line of before there were turns has its median alone."""
    best = min((x for s, x in sides.items() if s != "bridge"), key=lambda x: x["step_s"])
    ours, theirs = (x.get("steps_s", [x["step_s"]]) for x in (sides["bridge"], best))
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    middle = statistics.median(each)
    if len(each) == 1:
        return middle, middle, middle
    interval = quantile_test(each, p=0.5).confidence_interval(0.95)
    return middle, float(interval.low), float(interval.high)


def _table(lines: list[dict[str, Any]]) -> list[str]:
    text, ratios = list(HEAD), []
    for name, model in MODELS.items():
        rounds: dict[int, dict[str, Any]] = {}
        for line in lines:
            if line["model"] == name and "failed" not in line:
                rounds.setdefault(line["round"], {})[line["side"]] = line
        whole = [r for r in rounds.values() if "bridge" in r and "eager" in r]
        if not whole:
            continue
        found = [_ratio(r) for r in whole]
        ratios.append(statistics.median(ratio for ratio, _, _ in found))

        def values(side: str, key: str, whole: list[Any] = whole) -> list[float]:
            return [r[side][key] for r in whole if side in r and key in r[side]]

        def best(side: str, values: Any = values) -> str:
            """The side in the layout that is faster; the bridge has one."""
            steps = {s: values(s, "step_s") for s in (side, side + LAST)}
            return min(
                (s for s in steps if steps[s]), key=lambda s: statistics.median(steps[s]), default=side
            )

        shown = [best(side) for side in SIDES]
        tried = {line["side"] for line in lines if line["model"] == name}

        def middle(side: str, key: str, values: Any = values, tried: set[str] = tried) -> str:
            if found := values(side, key):
                return f"{statistics.median(found):.3g}"
            # of an interrupted run, or one of before it was measured
            return "failed" if side in tried and not values(side, "step_s") else "–"

        steps = " | ".join(middle(s, "step_s") + " cl" * s.endswith(LAST) for s in shown)
        forms = ", ".join(dict.fromkeys(r["bridge"]["form"] for r in whole))
        text.append(
            f"| {model.title} | {len(whole)} | {steps} | {forms} | "
            f"{ratios[-1]:.2f} ({min(low for _, low, _ in found):.2f} to {max(high for _, _, high in found):.2f}) | "
            f"{', '.join(middle(s, 'first_s') for s in shown[1:])} | "
            f"{', '.join(middle(s, 'second_s') for s in shown[1:])} | "
            f"{', '.join(middle(s, 'peak_gb') for s in shown)} |"
        )
    failed = [
        f"* {MODELS[x['model']].title}, {x['side']}, round {x['round'] + 1}{what} failed: {x[key]}"
        for x in lines
        for key, what in (("failed", ""), ("second_failed", ", a second process"))
        if key in x
    ]
    text += ["", *failed] if failed else []
    if apart := {line["model"] for line in lines if "step_s" in line and "steps_s" not in line}:
        names = ", ".join(m.name for name, m in MODELS.items() if name in apart)
        text += ["", f"Of processes apart, from before they took turns: {names}."]
    laid = {line["model"] for line in lines if line["side"].endswith(LAST)}
    if there := {line["model"] for line in lines if MODELS[line["model"]].pictures} - laid:
        names = ", ".join(m.name for name, m in MODELS.items() if name in there)
        text += ["", f"Measured before channels last was tried, and PyTorch may be faster with it: {names}."]
    if came := {line["model"] for line in lines if line.get("extension") == "shipped"}:
        names = ", ".join(m.name for name, m in MODELS.items() if name in came)
        text += [
            "",
            f"First steps with kernels that the installation had compiled (`make install`): {names}.",
        ]
    if timed := [line for line in lines if line.get("trials_s")]:
        names = ", ".join(m.name for name, m in MODELS.items() if name in {line["model"] for line in timed})
        spent = {of: statistics.median(x["trials_s"][of] for x in timed) for of in timed[0]["trials_s"]}
        each = ", ".join(f"{of} {seconds:.1f}" for of, seconds in spent.items())
        text += [
            "",
            f"And timed (`detente bridge prepare`): {names}. On a machine that nobody has prepared a first step takes "
            f"so many seconds more for what its model has of it: {each}.",
        ]
    counted = came | {line["model"] for line in lines if line.get("extension") in ("built", "none")}
    if there := {line["model"] for line in lines} - counted:
        names = ", ".join(m.name for name, m in MODELS.items() if name in there)
        had = (
            "First steps on a machine that had the extension of the bridge already, which takes 5 s to build"
        )
        text += ["", f"{had}: {names}."]
    if ratios:
        mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
        text += ["", f"Geometric mean of the ratios: {mean:.2f}; the largest: {max(ratios):.2f}."]
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SIDE"), help=argparse.SUPPRESS)
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    if given.one:
        serve(lambda: measure(*given.one, given.second))
        return 0
    names = given.models.split(",")
    if wrong := [n for n in names if n not in MODELS]:
        parser.error(f"no model is called {wrong[0]!r}: there are {', '.join(MODELS)}")
    kept = given.page.with_suffix(".jsonl")
    if given.again:
        kept.unlink(missing_ok=True)
    lines = [json.loads(text) for text in kept.read_text().splitlines()] if kept.exists() else []
    # The processor, and on how many of its cores: a round of another machine answers nothing here.
    here = f"{machine()['processor']}, {len(os.sched_getaffinity(0))} cores"
    known = {(line["model"], line["round"]) for line in lines if line["processor"] == here}
    command = " ".join(["python benchmarks/bridge_against_torch.py", *sys.argv[1:]])
    for number in range(given.rounds):
        for name in names:
            if (name, number) in known:
                continue
            found = [
                {"model": name, "side": side, "round": number, "processor": here} | of
                for side, of in measured(name).items()
            ]
            lines += found
            with kept.open("a") as out:
                out.writelines(json.dumps(line) + "\n" for line in found)
            given.page.write_text(page(lines, command))
    if lines:
        given.page.write_text(page(lines, command))  # also where all had been measured
    return 0


if __name__ == "__main__":
    sys.exit(main())
