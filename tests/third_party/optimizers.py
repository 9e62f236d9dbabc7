"""Every public optimizer of timm, pytorch-optimizer, torch-optimizer and schedulefree, through the bridge and in eager.

PYTHONPATH=src:. python -m tests.third_party.optimizers [--only REGEX] [--again OUTCOME,...]

One mechanical recipe, no name left out by hand: every subclass of ``torch.optim.Optimizer`` that the package's public
module holds is built with its defaults, and trains a small model of float64 (a convolution, a matrix, an embedding, a
norm) for 20 steps in a loop of plain PyTorch and for 20 through ``detente.compile``. Equal: losses, parameters and
buffers agree to 1e-6 of what the training moved, or to ten times what eager itself moves when every weight begins one
rounding away, and so does everything that its step narrows: an optimizer that computes in bfloat16 inside, or takes a
QR of float32 (SOAP), rounds there as its library does, and a change of a float64 weight is lost in that. float64,
because a sign in an update turns a rounding of float32 into a step of its own.

refused: the bridge said no, with its reason. wrong: certified, and not equal. crashed: anything else. outside: plain
PyTorch cannot run it on this model, with what it says.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests import commit_of
from tests.third_party.stand_in import install

install()

STEPS, SECONDS = 20, 240
ROWS = Path("docs/results/third-party-optimizers.jsonl")
PAGE = Path("docs/results/third-party-optimizers.md")
# The distribution, and the modules that are its public face.
PACKAGES = {
    "timm": ("timm.optim",),
    "pytorch-optimizer": ("pytorch_optimizer",),
    "torch-optimizer": ("torch_optimizer",),
    "schedulefree": ("schedulefree",),
}
OUTCOMES = ("equal", "refused", "uncertified", "wrong", "crashed", "outside")


class Small(nn.Module):
    """One parameter of each kind that optimizers tell apart."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(12, 8)
        self.conv = nn.Conv1d(8, 6, 3, padding=1)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.tanh(self.conv(self.embed(x).transpose(1, 2))))
        return self.head(hidden.mean(2)) * self.scale


def loss(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randint(0, 12, (8, 5), generator=generator),
            "y": torch.randint(0, 4, (8,), generator=generator),
        }
        for _ in range(STEPS)
    ]


def public() -> list[tuple[str, str, str]]:
    """(package, module, class name) of every public optimizer, from what is installed."""
    found = []
    for package, modules in PACKAGES.items():
        for name in modules:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
            for key, value in sorted(vars(module).items()):
                ours = inspect.isclass(value) and issubclass(value, torch.optim.Optimizer)
                if ours and not key.startswith("_") and value.__module__.startswith(name.split(".")[0]):
                    found.append((package, name, key))
    return found


def built(cls: type, model: nn.Module) -> torch.optim.Optimizer:
    """With its defaults, as far as it has them."""
    needed = [
        name
        for name, p in inspect.signature(cls.__init__).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and name != "self"
    ]
    params: Any = list(model.parameters())
    given: dict[str, Any] = {
        "params": params,
        "lr": 1e-3,
        "optimizer": torch.optim.AdamW(params, lr=1e-3),
        "base_optimizer": torch.optim.SGD,
        "num_iterations": 1000,
        "num_data_points": 1000,
        "num_batches_per_epoch": 10,
        "total_steps": 1000,
        "total_iterations": 1000,
        "model": model,
        "named_params": list(model.named_parameters()),
        "named_parameters": list(model.named_parameters()),
        "rho": 0.05,
    }
    options = {name: given[name] for name in needed if name in given}
    if "base_optimizer" in needed:
        options["lr"] = 1e-3
    return cls(**options)


def in_train_mode(optimizer: Any) -> None:
    """A schedule-free optimizer wants to be told, as its documentation says."""
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()


class Narrowed(TorchDispatchMode):
    """Each element that is cast to a narrower floating dtype, up or down by one rounding of that."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (
            func is torch.ops.aten._to_copy.default
            and out.is_floating_point()
            and args[0].is_floating_point()
        ) and torch.finfo(out.dtype).eps > torch.finfo(args[0].dtype).eps:
            signs = (torch.rand(out.shape, generator=self.generator) - 0.5).sign()
            out = (out.double() * (1 + torch.finfo(out.dtype).eps * signs)).to(out.dtype)
        return out


def eager(cls: type, nudge: bool = False) -> tuple[list[float], dict[str, torch.Tensor], str]:
    """(losses, state at the end, how the loop had to be written)."""
    said = ""
    for way in ("plain", "create_graph", "closure"):
        model = Small().train()
        if nudge:
            with torch.no_grad():
                for p in model.parameters():
                    signs = torch.rand(p.shape, generator=torch.Generator().manual_seed(2)) - 0.5
                    p.mul_(1 + 2.3e-16 * signs.sign())
        optimizer = built(cls, model)
        in_train_mode(optimizer)
        losses = []
        try:
            for batch in batches():
                with Narrowed() if nudge else nullcontext():
                    losses.append(_eager_step(model, optimizer, batch, way))
            return losses, {n: t.detach().clone() for n, t in model.state_dict().items()}, way
        except Exception as error:
            said = said or f"{type(error).__name__}: {error}"
    raise RuntimeError(said)


def _eager_step(model: nn.Module, optimizer: Any, batch: Any, way: str) -> float:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward(create_graph=way == "create_graph")
        return value

    if way == "closure":
        return float(optimizer.step(closure))
    value = float(closure().detach())
    optimizer.step()
    optimizer.zero_grad()
    return value


def attempt(package: str, module: str, name: str) -> dict[str, Any]:
    """One optimizer's record."""
    import detente
    from detente import bridge

    record: dict[str, Any] = {"package": package, "name": name}
    cls = getattr(importlib.import_module(module), name)
    try:
        theirs, wanted, way = eager(cls)
        _, near, _ = eager(cls, nudge=True)
    except Exception as error:
        return record | {"outcome": "outside", "detail": str(error)[:300]}
    record["loop"] = way
    begun = {n: t.clone() for n, t in Small().state_dict().items()}
    torch.manual_seed(0)
    model = Small().train()
    optimizer = built(cls, model)
    in_train_mode(optimizer)
    try:
        example, how = batches()[0], {"seed": 0, "cache": False, "quiet": True}
        step = detente.compile(model, loss, optimizer, example_batch=example, **how)
        losses = [float(step(batch)) for batch in batches()]
        step.sync_to_torch()
    except bridge.Refused as refused:
        codes = {reason.code for reason in refused.reasons}
        reason = refused.reasons[0]
        return record | {
            "outcome": "uncertified" if codes == {"certificate"} else "refused",
            "code": reason.code,
            "where": str(reason.where or ""),
            "detail": reason.what[:300],
            "hint": reason.hint,
        }
    found = {n: t.detach() for n, t in model.state_dict().items()}
    worst, what = 0.0, ""
    for key, want in wanted.items():
        moved = _rms(want - begun[key])
        allowed = max(1e-6 * moved, 10 * _rms(near[key] - want), 1e-12)
        share = _rms(found[key] - want) / allowed
        if not share <= worst:
            worst, what = share, key
    apart = max(abs(a - b) for a, b in zip(losses, theirs, strict=True))
    record |= {"worst": worst, "loss": apart, "certified": bool(step.certificate and step.certificate.ok)}
    if worst <= 1:
        return record | {"outcome": "equal"}
    said = f"{what}: {worst:.3g} times what is allowed; losses {apart:.3g} apart"
    return record | {"outcome": "wrong", "detail": said}


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def _worker() -> None:
    """Takes one name per line, answers one record per line."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        package, module, name = json.loads(line)
        try:
            record = attempt(package, module, name)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            record = {
                "package": package,
                "name": name,
                "outcome": "crashed",
                "detail": f"{type(error).__name__}: {error}"[:300],
                "where": f"{Path(last.filename).name}:{last.lineno}",
            }
        print("\x1e" + json.dumps(record), flush=True)


class Worker:
    """A process that is replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, row: tuple[str, str, str]) -> dict[str, Any]:
        import select

        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.third_party.optimizers", "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(row) + "\n")
        process.stdin.flush()
        while select.select([process.stdout], [], [], SECONDS)[0]:
            line = process.stdout.readline()
            if not line:
                process.wait()
                said = f"the process ended with {process.returncode}"
                return {"package": row[0], "name": row[2], "outcome": "crashed", "detail": said}
            if line.startswith("\x1e"):
                return json.loads(line[1:])
        process.kill()
        process.wait()
        return {"package": row[0], "name": row[2], "outcome": "crashed", "detail": f"took over {SECONDS} s"}


def page(rows: list[dict[str, Any]]) -> str:
    """The results page, from the records alone."""
    seen = Counter((row["package"], row["outcome"]) for row in rows)
    inside = [row for row in rows if row["outcome"] != "outside"]
    equal = sum(row["outcome"] == "equal" for row in inside)
    pinned = {row["package"]: row["version"] for row in rows}
    versions = ", ".join(f"{package} {number}" for package, number in pinned.items())
    lines = [
        "# Third-party optimizers through the bridge",
        "",
        "Made by `make test-third-party-optimizers` (`python -m tests.third_party.optimizers`, whose first lines say",
        f"what each word means); the records are beside this page. {STEPS} steps each, float64, CPU.",
        f"{versions}; torch {rows[0]['torch']}, jax {rows[0]['jax']}.",
        commit_of.told(row.get("commit", "") for row in rows),
        "",
        f"Equal: {equal} of {len(inside)} that plain PyTorch runs, {100 * equal / max(len(inside), 1):.1f} %. "
        "The goal is 80 %.",
        "",
        "| package | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "---:|" * len(OUTCOMES),
    ]
    for package in PACKAGES:
        lines.append(f"| {package} | " + " | ".join(str(seen[package, o]) for o in OUTCOMES) + " |")
    lines += [
        "",
        "## What is not equal",
        "",
        "| optimizer | outcome | where | what | hint |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["outcome"] not in ("equal", "outside"):
            told = [row.get(key, "") for key in ("where", "detail", "hint")]
            cells = [f"{row['package']} {row['name']}", row["outcome"], *told]
            lines.append(
                "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
            )
    lines += [
        "",
        "## Outside: plain PyTorch does not run it",
        "",
        "| optimizer | what it says |",
        "|---|---|",
    ]
    for row in rows:
        if row["outcome"] == "outside":
            detail = str(row.get("detail", "")).replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {row['package']} {row['name']} | {detail} |")
    return "\n".join(lines) + "\n"


def _short_path(where: str) -> str:
    """From the package on: where it lies on this machine is nobody's business."""
    found = re.search(r"((?:timm|pytorch_optimizer|torch_optimizer|schedulefree)/\S+)", where)
    return found.group(1) if found else where


def main() -> int:
    import jax

    parser = argparse.ArgumentParser(prog="python -m tests.third_party.optimizers")
    parser.add_argument("--only", default="", help="a regular expression on 'package name'")
    parser.add_argument("--again", default="", help="outcomes to run again, or 'all'")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _worker()
        return 0
    known = {}
    if ROWS.exists():
        known = {(r["package"], r["name"]): r for r in map(json.loads, ROWS.read_text().splitlines())}
    again, worker, listed = set(options.again.split(",")), Worker(), public()
    for package, module, name in listed:
        key = (package, name)
        if not re.search(options.only, f"{package} {name}"):
            continue
        if key in known and known[key]["outcome"] not in again and "all" not in again:
            continue
        record = worker((package, module, name))
        record["where"] = _short_path(record.get("where", ""))
        record["detail"] = re.sub(
            r"/\S*/(?=(?:timm|pytorch_optimizer|torch_optimizer|schedulefree)/)", "", record.get("detail", "")
        )
        known[key] = record | {
            "version": version(package),
            "torch": torch.__version__,
            "jax": jax.__version__,
            "commit": commit_of.commit_of_bridge(),
        }
        print(package, name, record["outcome"], record.get("detail", "")[:160], flush=True)
        rows = [known[p, n] for p, _, n in listed if (p, n) in known]
        ROWS.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
        PAGE.write_text(page(rows))
    rows = [known[p, n] for p, _, n in listed if (p, n) in known]
    PAGE.write_text(page(rows))
    bad = [r for r in rows if r["outcome"] in ("wrong", "crashed")]
    print(dict(Counter(r["outcome"] for r in rows)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
