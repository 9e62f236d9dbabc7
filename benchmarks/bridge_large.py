"""Models trained for real on a CPU machine of 24 GiB that leaves no room for them and their gradients twice, by the
update inside the backward loop.

    PYTHONPATH=src python benchmarks/bridge_large.py                    # 20 minutes; docs/results/bridge-3b.md
    PYTHONPATH=src python benchmarks/bridge_large.py --model gpt_neo    # docs/results/bridge-gpt-neo.md
    PYTHONPATH=src python benchmarks/bridge_large.py --model tiny --no-page

Each model is built on the meta device; ``weights="init"`` lets each module initialise itself from a seed, and every
tensor goes straight to the step, so that no weight exists twice. Gradients alone would be as large as the weights; in
this form they exist for one layer at a time. The peak is what XLA planned before the first run, and what the kernel
then counted, over the whole life of the process.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).resolve().parent.parent / "docs/results"
PEAKS = [0]  # bytes, one for each time that the kernel's mark was reset
SHAPES: dict[str, dict[str, Any]] = {
    "3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 256,
    },
}


@dataclass(frozen=True)
class Large:
    """A model to train: ``build`` makes it (on the meta device), ``told`` says what it is."""

    build: Callable[[], Any]
    vocabulary: int
    told: str
    optimizer: str
    page: str = ""


def llama(shape: str) -> Any:
    """On the meta device: no weight exists."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        **SHAPES[shape],
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()


def gpt_neo() -> Any:
    """The workload's own definition at ``paper``, on the meta device."""
    import torch
    import transformers

    from detente.workloads.catalogue import find_size, find_workload
    from detente.workloads.gpt_neo.in_torch import build

    transformers.logging.set_verbosity_error()
    with torch.device("meta"):
        return build(find_size(find_workload("gpt_neo"), "paper"))


MODELS = {
    "llama-3b": Large(
        lambda: llama("3b"),
        128256,
        "`transformers`' Llama with the configuration of Llama-3.2 3B, embeddings tied, bfloat16",
        "SGD",
        "bridge-3b.md",
    ),
    "gpt_neo": Large(
        gpt_neo,
        50257,
        "`transformers`' GPT-Neo with the configuration of GPT-Neo 1.3B, float32",
        "AdamW",
        "bridge-gpt-neo.md",
    ),
    "tiny": Large(lambda: llama("tiny"), 256, "a Llama of a few thousand parameters, bfloat16", "SGD"),
}


def loss(model: Any, ids: Any) -> Any:
    return model(input_ids=ids, labels=ids).loss


def train(name: str, tokens: int, steps: int, lr: float, form: str, certificate: str) -> dict[str, Any]:
    """Train on one seeded sequence and say what memory it took, in bytes, and the loss of each step."""
    import torch

    import detente
    from detente.bridge.choose.memory import memory

    large = MODELS[name]
    model = large.build()
    ids = torch.randint(0, large.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(0))
    before = rss()
    start = time.perf_counter()
    step = detente.compile(
        model,
        loss,
        getattr(torch.optim, large.optimizer)(model.parameters(), lr=lr),
        example_batch=ids,
        weights="init",
        seed=0,
        form=form,
        certificate=certificate,
        cache=False,
    )
    ready = time.perf_counter() - start
    planned = memory(step.programs[0].compiled.executable)
    assert planned is not None
    say(
        f"{step.choice.form}: {sum(p.numel() for p in model.parameters()):,} parameters, ready in {ready:.0f} s"
    )
    say(f"planned: arguments {gib(planned.argument)}, peak {gib(planned.peak)}; the process has {gib(rss())}")
    losses, seconds, growths, residents = [], [], [], []
    for count in range(steps):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, or the step would not show
        reset_peak()
        held, start = rss(), time.perf_counter()
        losses.append(float(step(ids)))
        step.wait()
        seconds.append(time.perf_counter() - start)
        growths.append(peak_since_reset() - held)
        residents.append(held)
        say(
            f"step {count}: loss {losses[-1]:.4f}, {seconds[-1]:.0f} s, {gib(held)} resident before it, "
            f"{gib(held + growths[-1])} at most, {gib(peak())} at most so far"
        )
    if step.certificate is not None:
        say(str(step.certificate))
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights": sum(p.numel() * p.element_size() for p in model.parameters()),
        "tokens": tokens,
        "lr": lr,
        "form": step.choice.form,
        "iterations": step.choice.iterations,
        "argument": planned.argument,
        "planned_peak": planned.peak,
        "planned_growth": planned.growth,
        "without": before,
        "held": residents,
        "measured_growth": growths,
        "measured_peak": peak(),
        "losses": losses,
        "seconds": seconds,
        "ready_s": ready,
    }


def rss() -> int:
    return psutil.Process().memory_info().rss


def peak() -> int:
    """The most that this process ever had resident, as the kernel counted it."""
    return max(*PEAKS, peak_since_reset())


def reset_peak() -> None:
    """Begin a new high-water mark; ru_maxrss begins anew with it, so the old one is kept here."""
    PEAKS.append(peak_since_reset())
    Path("/proc/self/clear_refs").write_text("5")


def peak_since_reset() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def watch(limit: int) -> None:
    """End this process, and no other, when it has more than ``limit`` bytes resident: a machine that swaps or kills
    at random helps nobody."""

    def look() -> None:
        while rss() < limit:
            time.sleep(0.5)
        say(f"stopped: {gib(rss())} resident is more than the limit of {gib(limit)}")
        os._exit(4)

    threading.Thread(target=look, daemon=True).start()


def gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def say(text: str) -> None:
    print(text, flush=True)


def page(row: dict[str, Any], command: str) -> str:
    import jax
    import torch
    import transformers

    large = MODELS[row["model"]]
    # of the later steps the one that grew most: memory that the process kept from a step does not show in the next
    grown = max(1, *row["measured_growth"][1:])
    versions = f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    return "\n".join(
        [
            f"# {row['parameters'] / 1e9:.1f} billion parameters trained on a CPU machine of 24 GiB",
            "",
            f"`{command.strip()}`",
            f"({versions}, Python {platform.python_version()}; {os.cpu_count()} CPU cores,",
            f"{gib(psutil.virtual_memory().total)} of memory).",
            "",
            f"{large.told}: {row['parameters']:,} parameters, one sequence of {row['tokens']} tokens,",
            f'{large.optimizer} with lr {row["lr"]:g}. The module is on the meta device and `weights="init"` fills the '
            "step from a seed.",
            f"Form: `{row['form']}`, loops of {', '.join(map(str, row['iterations']))} turns.",
            "",
            "| memory | |",
            "|---|---|",
            f"| weights alone | {gib(row['weights'])} |",
            f"| weights and the optimizer's state, which the step is given | {gib(row['argument'])} |",
            f"| planned by XLA: peak of the step | {gib(row['planned_peak'])} |",
            f"| planned by XLA: growth over the step | {gib(row['planned_growth'])} |",
            f"| measured: growth of resident memory over a step after the first | {gib(grown)} "
            f"(planned / measured {row['planned_growth'] / grown:.2f}) |",
            f"| measured: growth over the first step, which also stacks the layers | "
            f"{gib(row['measured_growth'][0])} |",
            f"| the process before it compiled (torch, jax, transformers imported) | {gib(row['without'])} |",
            f"| measured: most resident memory in the process's whole life, initialisation included | "
            f"{gib(row['measured_peak'])} |",
            "",
            "With the gradients, which an ordinary step has all at once, it would be "
            f"{gib(row['argument'] + row['weights'])} before any activation.",
            "",
            "| step | loss | resident before | most resident | seconds |",
            "|---|---|---|---|---|",
            *(
                f"| {k} | {value:.4f} | {gib(held)} | {gib(held + growth)} | {s:.0f} |"
                for k, (value, held, growth, s) in enumerate(
                    zip(row["losses"], row["held"], row["measured_growth"], row["seconds"], strict=True)
                )
            ),
            "",
            f"Initialisation, export and compilation took {row['ready_s']:.0f} s. Other work ran on the machine: the "
            "memory is exact, the seconds are not.",
            "",
        ]
    )


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), default="llama-3b")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, help="0.1 for SGD, 1e-4 for AdamW, when not given")
    parser.add_argument("--form", default="inside")
    parser.add_argument("--certificate", choices=["none", "short", "full"], default="none")
    parser.add_argument("--limit-gib", type=float, default=20.0, help="end this process above so much memory")
    parser.add_argument("--no-page", action="store_true")
    arguments = parser.parse_args(given)
    if arguments.steps < 2:
        parser.error("--steps is at least 2: the first step also stacks the layers")
    watch(int(arguments.limit_gib * 2**30))
    row = train(
        arguments.model,
        arguments.tokens,
        arguments.steps,
        arguments.lr or {"SGD": 0.1, "AdamW": 1e-4}[MODELS[arguments.model].optimizer],
        arguments.form,
        arguments.certificate,
    )
    text = page(
        row, "python benchmarks/bridge_large.py " + " ".join(sys.argv[1:] if given is None else given)
    )
    print(text)
    if MODELS[arguments.model].page and not arguments.no_page:
        (RESULTS / MODELS[arguments.model].page).write_text(text)
    falls = all(a > b for a, b in zip(row["losses"], row["losses"][1:], strict=False))
    say("the loss falls" if falls else f"the loss does not fall: {row['losses']}")
    return 0 if falls else 1


if __name__ == "__main__":
    sys.exit(main())
