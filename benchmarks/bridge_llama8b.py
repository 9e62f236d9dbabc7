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

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-llama8b.md"
GOAL = 20 * 2**30
OPTIMIZERS = ("sgd", "adafactor")
# libtpu looks for a TPU's metadata server unless it is told that there is none
_NO_DEVICE = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
}


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
    """The neutral graph, and how long the export took. ``capture`` refuses a module without values, since a step
    could not run; nothing runs here, so its inner half is called."""
    import torch

    from detente.bridge.capture import batch as batches
    from detente.bridge.capture.export import _export
    from detente.bridge.capture.weights import weights
    from detente.bridge.graph import without_dead
    from detente.bridge.passes.masks import recognise_masks

    ids = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    tensors, layout = batches.flatten(ids)
    held = weights(model)
    found = _export(model, lambda m, b: m(input_ids=b, labels=b).loss, layout, tensors, held)
    return recognise_masks(without_dead(found.graph), held.tensors)


def plan(graph: Any, model: Any, optimizer: Any, form: str, device: Any) -> dict[str, Any]:
    """Compile one form for ``device`` and read the compiler's plan."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from detente.bridge.capture.batch import aval
    from detente.bridge.choose.choose import alike_of
    from detente.bridge.choose.forms import FORMS, shape
    from detente.bridge.choose.memory import memory
    from detente.bridge.lower.precision import torch_numerics
    from detente.bridge.optim.rule import trace
    from detente.bridge.passes.connected import connected
    from detente.bridge.program.program import Program

    rule = trace(optimizer, model.named_parameters())
    shaped = shape(graph, FORMS[form], alike_of(rule))
    stacks = {s.name: s.members for s in shaped.stacks.rows}
    program = Program(shaped.graph, "default", stacks, connected(graph), shaped.form.inside)
    here = SingleDeviceSharding(device)

    def there(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), tree)

    with torch_numerics("default"):
        held = {n: aval(t) for n, t in (*model.named_parameters(), *model.named_buffers())}
        leaves = {n: jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for n, a in held.items()}
        hyper = rule.hyper(optimizer)
        state = jax.eval_shape(lambda p: rule.init(p, hyper), {n: leaves[n] for n in rule.programs})

        def stack(rows: list[Any]) -> Any:
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct((len(rows), *a.shape), a.dtype), rows[0])

        values, state = shaped.stacks.join(leaves, stack), shaped.stacks.join(state, stack)
        names = tuple(n for n in program.connected if program.members(n)[0] in rule.programs)
        fixed = {n: values[n] for n in program.reads if n not in names}
        large = {n: jax.ShapeDtypeStruct(v.shape, v.dtype) for n, v in program.large.items()}
        batch = [jax.ShapeDtypeStruct(i.aval.shape, jnp.int64) for i in graph.inputs if i.kind == "batch"]
        number = jax.ShapeDtypeStruct((), jnp.uint32)
        given = there(
            ({n: values[n] for n in names}, state, {**fixed, **large}, batch, hyper, number, number)
        )
        start = time.perf_counter()
        step = jax.jit(program.update(rule, names), donate_argnums=(0, 1))
        compiled = step.trace(*given).lower(lowering_platforms=("tpu",)).compile()
    planned = memory(compiled)
    assert planned is not None
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak": planned.peak,
        "argument": planned.argument,
        "temp": planned.temp,
        "compile_s": time.perf_counter() - start,
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
    os.environ.update({k: v for k, v in _NO_DEVICE.items() if k not in os.environ})
    try:
        import libtpu
    except ImportError:
        print(
            "libtpu is not installed: pip install --no-deps --target FOLDER libtpu, then add FOLDER to PYTHONPATH"
        )
        return 3
    os.environ.setdefault("TPU_LIBRARY_PATH", str(Path(libtpu.__file__).parent / "libtpu.so"))
    from jax.experimental import topologies

    bounds = {"chips_per_host_bounds": (1, 1, 1)}
    device = topologies.get_topology_desc(platform="tpu", topology_name="v6e:1x1", **bounds).devices[0]
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
            except Exception as error:  # libtpu refuses what does not fit, and says how much it would be
                first = next(
                    (x for x in str(error).splitlines() if "Used" in x or "memory" in x), str(error)[:200]
                )
                print(f"{label} does not compile: {first.strip()}", flush=True)
                rows.append({"optimizer": name, "form": form, "error": first.strip()})
                continue
            rows.append({"optimizer": name, "form": form, **row})
            print(
                f"{label} {row['parameters'] / 1e9:.2f} B parameters, peak {row['peak'] / 2**30:.1f} GiB "
                f"(arguments {row['argument'] / 2**30:.1f}, temporary {row['temp'] / 2**30:.1f}), "
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
        cells = [f"{row[k] / 2**30:.1f} GiB" for k in ("argument", "temp", "peak")]
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
