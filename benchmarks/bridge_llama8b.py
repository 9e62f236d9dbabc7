"""Llama-3.1 8B, every parameter trained, planned for one 32 GB TPU v6e that is not here.

    pip install --no-deps --target TPU_FOLDER libtpu      # 205 MB; not a dependency
    PYTHONPATH=src:TPU_FOLDER python benchmarks/bridge_llama8b.py
    PYTHONPATH=src:TPU_FOLDER python benchmarks/bridge_llama8b.py --optimizers sgd --forms inside rolled+full

Unmodified ``transformers``, bfloat16, one sequence of 2,048 tokens. The module lives on the meta device: no weight
exists anywhere. The whole step (forward, backward, update) is compiled by libtpu for a v6e, and the compiler's own
plan is printed. Goal: the update inside the backward loop needs under 20 GiB with SGD and with Adafactor.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from detente.records.chip import CHIPS

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-llama8b.md"
GOAL = 20 * 2**30
OPTIMIZERS = ("sgd", "adafactor")
CHIP = CHIPS["tpu-v6e"]


def llama(layers: int) -> Any:
    """``transformers``' Llama with the published configuration of Llama-3.1 8B, on the meta device."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        use_cache=False,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()


def optimizer_of(name: str, model: Any) -> Any:
    import torch

    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3)
    return torch.optim.Adafactor(model.parameters(), lr=1e-3)


def captured(model: Any, tokens: int) -> Any:
    """The graph of the module with its own loss. Nothing is computed."""
    import torch

    from detente.stacks.detente_on_chip import captured as capture

    def loss(m: Any, b: Any) -> Any:
        return m(input_ids=b, labels=b).loss

    return capture(model, loss, torch.zeros(1, tokens, dtype=torch.int64, device="meta"))


def plan(graph: Any, model: Any, optimizer: Any, form: str, device: Any) -> dict[str, Any]:
    """Compile one form for ``device`` and read the compiler's plan."""
    from detente.stacks.detente_on_chip import plan_form

    start = time.perf_counter()
    planned = plan_form(CHIP, device, model, graph, optimizer, form, "default")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "compile_s": time.perf_counter() - start,
        **planned,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--forms", nargs="+", default=["inside", "rolled+full"])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--page", action="store_true", help="write docs/results/bridge-llama8b.md")
    arguments = parser.parse_args()
    wanted = {"JAX_PLATFORMS": "cpu", **CHIP.variables}
    os.environ.update({k: v for k, v in wanted.items() if k not in os.environ})
    try:
        import libtpu
    except ImportError:
        print(
            "libtpu is not installed: pip install --no-deps --target FOLDER libtpu, then add FOLDER to PYTHONPATH"
        )
        return 3
    os.environ.setdefault("TPU_LIBRARY_PATH", str(Path(libtpu.__file__).parent / "libtpu.so"))
    from detente.stacks.chips import device_of

    device = device_of(CHIP)
    model = llama(arguments.layers)
    start = time.perf_counter()
    graph = captured(model, arguments.tokens)
    print(f"exported {len(graph.nodes)} nodes in {time.perf_counter() - start:.0f} s", flush=True)
    rows = []
    for name in arguments.optimizers:
        for form in arguments.forms:
            label = f"{name:<10} {form:<14}"
            try:
                row = plan(graph, model, optimizer_of(name, model), form, device)
            except Exception as error:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                print(f"{label} does not compile: {first}", flush=True)
                rows.append({"optimizer": name, "form": form, "error": first})
                continue
            if "arguments" not in row:  # libtpu refuses what does not fit, and says how much it would be
                row = {"error": f"larger than the chip: {row['peak'] / 2**30:.1f} GiB"}
                print(f"{label} {row['error']}", flush=True)
                rows.append({"optimizer": name, "form": form, **row})
                continue
            rows.append({"optimizer": name, "form": form, **row})
            print(
                f"{label} {row['parameters'] / 1e9:.2f} B parameters, peak {row['peak'] / 2**30:.1f} GiB "
                f"(arguments {row['arguments'] / 2**30:.1f}, temporary {row['temporary'] / 2**30:.1f}), "
                f"compiled in {row['compile_s']:.0f} s",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"schema": "detente/bridge-llama8b/1", "rows": rows}, indent=1))
    if arguments.page:
        PAGE.write_text(page(rows, arguments, len(graph.nodes)))
    return 0


def page(rows: list[dict[str, Any]], arguments: argparse.Namespace, nodes: int) -> str:
    versions = ", ".join(
        f"{n} {importlib.metadata.version(n)}" for n in ("jax", "libtpu", "torch", "transformers")
    )
    lines = [
        "# Llama-3.1 8B, every parameter trained, planned for one TPU v6e",
        "",
        f"`{' '.join(['python benchmarks/bridge_llama8b.py', *sys.argv[1:]])}`",
        f"({versions}). No TPU is here: libtpu compiles the whole training step for a v6e (32 GB) without one, and the",
        "figures are its own plan. Nothing was run.",
        "",
        f"Unmodified `transformers` Llama on the meta device, {arguments.layers} layers, bfloat16, one sequence of "
        f"{arguments.tokens:,} tokens;",
        f"{nodes:,} operators were captured. The step is forward, backward and update of every parameter.",
        "",
        "| optimizer | form | parameters | arguments | temporary | peak |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        first = f"| {row['optimizer']} | `{row['form']}` | "
        if "error" in row:
            lines.append(f"{first}- | - | - | does not compile: {row['error']} |")
            continue
        cells = [f"{row[k] / 2**30:.1f} GiB" for k in ("arguments", "temporary", "peak")]
        lines.append(f"{first}{row['parameters'] / 1e9:.2f} B | {' | '.join(cells)} |")
    inside = [r.get("peak") for r in rows if r["form"] == "inside"]
    if inside:
        met = "met" if all(p is not None and p < GOAL for p in inside) else "missed"
        lines += [
            "",
            f"Goal: with the update inside the backward loop (`inside`) under {GOAL / 2**30:.0f} GiB with each "
            f"optimizer: {met}.",
            "",
            "An ordinary step holds the gradients of all layers beside the weights, as much again; in this form the",
            "gradient of a layer is used up inside the backward loop before that of the next is made.",
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
