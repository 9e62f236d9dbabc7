"""LoRA: adapters of peft in a GPT-2 of transformers, trained as one XLA program; the base model stays as it is.

    python examples/lora_with_peft.py

peft and accelerate are in requirements/examples.txt. The same loop in plain PyTorch runs beside it.
"""

from __future__ import annotations

import copy
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import detente

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=19, n_positions=16, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
base = GPT2LMHeadModel(config).eval()  # no dropout: the numbers can be compared with eager
original = copy.deepcopy(base)
lora = LoraConfig(
    r=8, lora_alpha=32, lora_dropout=0.0, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True
)
model = get_peft_model(base, lora)
beside = copy.deepcopy(model)
trained, every = model.get_nb_trainable_parameters()
print(f"trains {trained} of {every} parameters")


def batches(count):
    """Counting by three modulo 19, from any start."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        start = torch.randint(19, (16, 1), generator=generator)
        yield {"input_ids": (start + 3 * torch.arange(16)) % 19}


def loss(model, batch):
    return model(**batch, labels=batch["input_ids"]).loss


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)


step = detente.compile(model, loss, adamw(model), example_batch=next(batches(1)))
losses = [step(batch) for batch in batches(60)]
for number in (0, 20, 40, 59):
    print(f"step {number}: loss {losses[number]:.4f}")
print(step.certificate)

plain = adamw(beside)
eager = []
for batch in batches(10):
    plain.zero_grad()
    value = loss(beside, batch)
    value.backward()
    plain.step()
    eager.append(value.item())
torch.testing.assert_close([float(value) for value in losses[:10]], eager, rtol=1e-3, atol=1e-4)
print("beside eager: equal for 10 steps")

folder = tempfile.mkdtemp()
model.save_pretrained(folder)  # the adapters alone; what is read is what was trained
loaded = PeftModel.from_pretrained(copy.deepcopy(original), folder)
batch = next(batches(1))
with torch.no_grad():
    print("saved and loaded: equal", torch.equal(loss(loaded, batch), loss(model, batch)))
untouched = model.get_base_model().lm_head.weight
print("the base model is untouched:", torch.equal(untouched, original.lm_head.weight))
