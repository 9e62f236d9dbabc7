"""GPT-2 of transformers, a DataLoader and a torch scheduler, trained as one XLA program.

    python examples/train_gpt2_on_xla.py

The task is counting: every sequence goes on by its own step modulo 17, so a loss near zero means that it learned.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import detente

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=17, n_positions=16, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
start, stride = torch.randint(17, (512, 1)), torch.randint(1, 5, (512, 1))
loader = DataLoader(
    TensorDataset((start + stride * torch.arange(16)) % 17), batch_size=32, shuffle=True, drop_last=True
)


def loss(model, batch):
    (ids,) = batch
    return model(ids, labels=ids).loss


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=8 * len(loader))

step = detente.compile(model, loss, optimizer, example_batch=next(iter(loader)))
for epoch in range(8):
    for batch in loader:
        value = step(batch)
        scheduler.step()
    print(f"epoch {epoch}: loss {value:.3f}, lr {scheduler.get_last_lr()[0]:.5f}")
step.sync_to_torch()

print(step.certificate)
print("program:", str(step.choice).splitlines()[0])
model.eval()
prompt = torch.tensor([[2, 5, 8, 11]])
print("2 5 8 11 goes on with", *model.generate(prompt, max_new_tokens=4, do_sample=False)[0, 4:].tolist())
