"""nanoGPT's training loop as one XLA program: accumulation, warm-up and cosine, clipping, checkpoint, resume.

    python examples/nanogpt_loop.py

Learns the characters of a verse. The same loop in plain PyTorch runs beside it and has the same losses; and
training goes on from the checkpoint bitwise as it did before.
"""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import detente

text = "the cat sat on the mat and the rat sat on the cat and the bat sat on the rat " * 20
letters = sorted(set(text))
data = torch.tensor([letters.index(c) for c in text])

block_size, batch_size, accumulate = 32, 4, 3
warmup, max_iters, max_lr, min_lr = 5, 30, 1e-2, 1e-3


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(letters), width), nn.Embedding(block_size, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, len(letters), bias=False)
        self.wte.weight = self.lm_head.weight  # tied, as in GPT-2

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(generator):
    """All micro-batches of one step, one after another."""
    places = torch.randint(len(data) - block_size, (accumulate * batch_size,), generator=generator)
    return (
        torch.stack([data[i : i + block_size] for i in places]),
        torch.stack([data[i + 1 : i + 1 + block_size] for i in places]),
    )


def configure_optimizer(model):
    """Weight decay for what is multiplied, none for biases and norms."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=max_lr, betas=(0.9, 0.95))


def get_lr(iteration):
    if iteration < warmup:
        return max_lr * (iteration + 1) / (warmup + 1)
    done = (iteration - warmup) / (max_iters - warmup)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * done)) * (max_lr - min_lr)


def loss(model, batch):
    return model(*batch)


def train(step, optimizer, iterations, generator):
    losses = []
    for iteration in iterations:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iteration)
        losses.append(step(get_batch(generator)))  # not read here: Python runs ahead
    return [float(value) for value in losses]


def eager_step(model, optimizer):
    def step(batch):
        total = 0.0
        for ids, targets in zip(*(tensor.split(batch_size) for tensor in batch), strict=True):
            value = model(ids, targets) / accumulate
            value.backward()
            total += value.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


torch.manual_seed(0)
model = GPT()
beside = copy.deepcopy(model)
optimizer, plain = configure_optimizer(model), configure_optimizer(beside)

generator = torch.Generator().manual_seed(1)
example = get_batch(torch.Generator())
step = detente.compile(
    model, loss, optimizer, example_batch=example, accumulate=accumulate, clip_norm=1.0, seed=0
)
first = train(step, optimizer, range(20), generator)
checkpoint = Path(tempfile.mkdtemp()) / "ckpt.safetensors"
step.save(checkpoint)
position = generator.get_state()
losses = first + train(step, optimizer, range(20, max_iters), generator)
for iteration in range(0, max_iters, 5):
    print(f"iter {iteration}: loss {losses[iteration]:.4f}, lr {get_lr(iteration):.2e}")
print(f"iter {max_iters - 1}: loss {losses[-1]:.4f}")

eager = train(eager_step(beside, plain), plain, range(max_iters), torch.Generator().manual_seed(1))
torch.testing.assert_close(losses, eager, rtol=1e-3, atol=1e-4)
print(
    f"beside eager: equal, largest difference {max(abs(a - b) for a, b in zip(losses, eager, strict=True)):.1e}"
)

step.load(checkpoint)  # as another process would, after the same compile; its program is in the cache
again = train(step, optimizer, range(20, max_iters), torch.Generator().set_state(position))
print("resumed bitwise:", again == losses[20:])
