"""A 3 B model trained for real on a CPU machine of 24 GiB, by the update inside the backward loop.

    PYTHONPATH=src python benchmarks/bridge_3b.py               # 20 minutes; writes docs/results/bridge-3b.md
    PYTHONPATH=src python benchmarks/bridge_3b.py --shape tiny --no-page

The model is ``transformers``' Llama, unmodified, with the published configuration of Llama-3.2 3B, in bfloat16. It is
built on the meta device; ``weights="init"`` lets each module initialise itself from a seed, and every tensor goes
straight to the step, so that no weight exists twice. Gradients alone would be as large as the weights; in this form
they exist for one layer at a time. The peak is what XLA planned before the first run, and what the kernel then counted.
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
from pathlib import Path
from typing import Any

import psutil

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-3b.md"
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


def loss(model: Any, ids: Any) -> Any:
    return model(input_ids=ids, labels=ids).loss


def train(shape: str, tokens: int, steps: int, lr: float, form: str, certificate: str) -> dict[str, Any]:
    """Train on one seeded sequence and say what memory it took, in bytes, and the loss of each step."""
    import torch

    import detente
    from detente.bridge.choose.memory import memory

    model = llama(shape)
    ids = torch.randint(
        0, SHAPES[shape]["vocab_size"], (1, tokens), generator=torch.Generator().manual_seed(0)
    )
    before = rss()
    start = time.perf_counter()
    step = detente.compile(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=lr),
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
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": SHAPES[shape]["num_hidden_layers"],
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

    # of the later steps the one that grew most: memory that the process kept from a step does not show in the next
    grown = max(1, *row["measured_growth"][1:])
    versions = f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    return "\n".join(
        [
            "# A 3 B model trained on a CPU machine of 24 GiB",
            "",
            f"`{command.strip()}`",
            f"({versions}, Python {platform.python_version()}; {os.cpu_count()} CPU cores,",
            f"{gib(psutil.virtual_memory().total)} of memory).",
            "",
            f"`transformers`' Llama with the configuration of Llama-3.2 3B: {row['parameters']:,} parameters in",
            f"{row['layers']} layers, embeddings tied, bfloat16, one sequence of {row['tokens']} tokens, SGD with",
            f'lr {row["lr"]:g}. The module is on the meta device and `weights="init"` fills the step from a seed.',
            f"Form: `{row['form']}`, a loop of {', '.join(map(str, row['iterations']))} layers.",
            "",
            "| memory | |",
            "|---|---|",
            f"| weights alone | {gib(2 * row['parameters'])} |",
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
            "Weights and gradients together, in an ordinary step, would be "
            f"{gib(4 * row['parameters'])} before any activation; in float32 {gib(8 * row['parameters'])}.",
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
    parser.add_argument("--shape", choices=list(SHAPES), default="3b")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--form", default="inside")
    parser.add_argument("--certificate", choices=["none", "short", "full"], default="none")
    parser.add_argument("--limit-gib", type=float, default=20.0, help="end this process above so much memory")
    parser.add_argument("--no-page", action="store_true")
    arguments = parser.parse_args(given)
    if arguments.steps < 2:
        parser.error("--steps is at least 2: the first step also stacks the layers")
    watch(int(arguments.limit_gib * 2**30))
    row = train(
        arguments.shape,
        arguments.tokens,
        arguments.steps,
        arguments.lr,
        arguments.form,
        arguments.certificate,
    )
    text = page(row, "python benchmarks/bridge_3b.py " + " ".join(sys.argv[1:] if given is None else given))
    print(text)
    if not arguments.no_page:
        PAGE.write_text(text)
    falls = all(a > b for a, b in zip(row["losses"], row["losses"][1:], strict=False))
    say("the loss falls" if falls else f"the loss does not fall: {row['losses']}")
    return 0 if falls else 1


if __name__ == "__main__":
    sys.exit(main())
