"""A clock that is not ours: the GPT-2 Small training step, timed without detente's worker, session or judge.

python benchmarks/independent_clock.py torch|jax        # prints the median seconds of ten steps
"""

import statistics
import sys
import time

import numpy as np

rng = np.random.default_rng(0)
ids = [rng.integers(0, 50257, (2, 64)) for _ in range(4)]
if sys.argv[1] == "torch":
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(2)
    model = GPT2LMHeadModel(
        GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = [torch.from_numpy(x) for x in ids]

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=batches[i % 4], labels=batches[i % 4]).loss
        loss.backward()
        optimizer.step()
        return loss.item()
else:
    import jax
    import optax
    from flax import nnx

    from detente.workloads.gpt2 import in_flax, spec  # the definition alone: what is timed, not how

    model = in_flax.build(spec.WORKLOAD.sizes["paper"], parameters="float32", compute="float32", scan=False)
    graph, params = nnx.split(model)
    adamw = optax.adamw(1e-3, weight_decay=0.01)
    state = adamw.init(params)
    batches = [jax.device_put({"input_ids": x.astype(np.int32)}) for x in ids]

    @jax.jit
    def update(params, state, batch):
        loss, grads = jax.value_and_grad(lambda p: in_flax.loss(nnx.merge(graph, p), batch)[0])(params)
        updates, state = adamw.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    update = jax.jit(update.__wrapped__, donate_argnums=(0, 1))

    def step(i):
        global params, state
        loss, params, state = update(params, state, batches[i % 4])
        jax.block_until_ready((loss, params, state))
        return float(loss)


def timed(i):
    start = time.perf_counter()
    step(i)
    return time.perf_counter() - start


for i in range(3):
    step(i)
print(statistics.median(timed(i) for i in range(10)))
