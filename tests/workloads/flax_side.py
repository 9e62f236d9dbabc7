"""The Flax side of the tests, in a process of its own: x64 is a switch of the whole process.

``python flax_side.py FOLDER`` reads FOLDER/cases.json, a list of {case, workload, size, scan, dtype, train, fault},
and FOLDER/<case>.in.npz (``weight:NAME``, ``batch:NAME``), and writes FOLDER/<case>.out.npz: ``loss``,
``output:NAME``, ``gradient:NAME`` (batch entries as ``batch:NAME``), ``loaded:NAME`` (weights read back) and
``after:NAME`` (buffers after the step).
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

from detente.workloads.catalogue import find_size, find_workload  # noqa: E402
from detente.workloads.weights import to_canonical, to_framework  # noqa: E402


def flat(*states):
    return {path: np.asarray(v[...]) for state in states for path, v in nnx.to_flat_state(state)}


def run(folder: Path, case: dict) -> None:
    workload = find_workload(case["workload"])
    size = find_size(workload, case["size"])
    definition = importlib.import_module(workload.definitions["flax"])
    given = np.load(folder / f"{case['case']}.in.npz")
    weights = {k[7:]: given[k] for k in given if k.startswith("weight:")}
    batch = {k[6:]: jnp.asarray(given[k]) for k in given if k.startswith("batch:")}

    module = definition.build(size, parameters=case["dtype"], compute=case["dtype"], scan=case["scan"])
    module.train() if case["train"] else module.eval()
    if case["fault"] == "epsilon":
        for _, part in nnx.iter_modules(module):
            if isinstance(part, nnx.LayerNorm):
                part.epsilon = 1e-6
    rules = definition.weights(size, case["scan"])
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    leaves = to_framework(rules, weights)
    have = flat(params, rest)
    assert set(have) == set(leaves), set(have) ^ set(leaves)
    for state in (params, rest):
        for path, variable in nnx.to_flat_state(state):
            assert have[path].shape == leaves[path].shape, path
            variable[...] = jnp.asarray(leaves[path])
    loaded = to_canonical(rules, flat(params, rest))

    def loss(both, rest, batch):
        module = nnx.merge(graph, both[0], rest, copy=True)
        value, outputs = definition.loss(module, {**batch, **both[1]})
        return value, (outputs, nnx.split(module, nnx.Param, ...)[2])

    wanted = {n: batch[n] for n in workload.batch_gradients}
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, (outputs, rest)), (found, of_batch) = step((params, wanted), rest, batch)
    gradients = flat(found)
    trainable = [r for r in rules if r.path in gradients]
    buffers = [r for r in rules if r.path not in gradients]
    np.savez(
        folder / f"{case['case']}.out.npz",
        loss=np.asarray(value),
        **{f"output:{n}": np.asarray(a) for n, a in outputs.items()},
        **{f"gradient:{n}": a for n, a in to_canonical(trainable, gradients).items()},
        **{f"gradient:batch:{n}": np.asarray(a) for n, a in of_batch.items()},
        **{f"loaded:{n}": a for n, a in loaded.items()},
        **{f"after:{n}": a for n, a in to_canonical(buffers, flat(rest)).items()},
    )


if __name__ == "__main__":
    where = Path(sys.argv[1])
    for described in json.loads((where / "cases.json").read_text()):
        try:
            run(where, described)
        except Exception:  # one definition that is wrong is that workload's failure, and no other's
            (where / f"{described['case']}.error.txt").write_text(traceback.format_exc())
