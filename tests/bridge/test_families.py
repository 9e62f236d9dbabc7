"""Six architectures, as their libraries ship them: the compiled step is the same function as torch eager."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 96, (2, 12), generator=GENERATOR)
IMAGES = torch.randn(2, 3, 32, 32, generator=GENERATOR)
LABELS = torch.randint(0, 5, (2,), generator=GENERATOR)
TEXT = {"input_ids": IDS, "labels": IDS}
PICTURES = {"pixel_values": IMAGES, "labels": LABELS}
HIDDEN = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True)
        self.head = nn.Linear(24, 96)

    def forward(self, input_ids, labels):
        hidden, _ = self.lstm(self.embed(input_ids))
        return nn.functional.cross_entropy(self.head(hidden).view(-1, 96), labels.view(-1))


def gpt2():
    config = hf.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=96, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return hf.GPT2LMHeadModel(config), TEXT


def bert():
    config = hf.BertConfig(vocab_size=96, max_position_embeddings=16, **HIDDEN)
    mask = torch.ones_like(IDS)
    mask[1, 8:] = 0
    return hf.BertForMaskedLM(config), {**TEXT, "attention_mask": mask}


def vit():
    return hf.ViTForImageClassification(
        hf.ViTConfig(image_size=32, patch_size=8, num_labels=5, **HIDDEN)
    ), PICTURES


def resnet():
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=5
    )
    return hf.ResNetForImageClassification(config), PICTURES


def llama():
    config = hf.LlamaConfig(vocab_size=96, max_position_embeddings=16, num_key_value_heads=2, **HIDDEN)
    return hf.LlamaForCausalLM(config), TEXT


def lstm():
    return Recurrent(), TEXT


def loss(model, batch):
    value = model(**batch)
    return value if isinstance(value, torch.Tensor) else value.loss


@pytest.mark.parametrize("family", [gpt2, bert, vit, resnet, llama, lstm], ids=lambda f: f.__name__)
def test_is_the_same_function_as_eager(family, same_function):
    torch.manual_seed(0)
    model, batch = family()
    model.train()
    same_function(model, loss, batch, lambda params: torch.optim.AdamW(params, lr=1e-3))


def test_the_certificate_passes_and_the_state_returns_to_torch():
    from detente import bridge

    torch.manual_seed(0)
    model, batch = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step = bridge.compile(model, loss, optimizer, example_batch=batch)
    first, second = step(batch), step(batch)
    assert float(second) < float(first)
    assert step.certificate is not None and step.certificate.ok, str(step.certificate)
    assert {row.kind for row in step.certificate.rows} == {"loss", "gradient", "buffer", "update"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    step.sync_to_torch()
    assert int(model.state_dict()["resnet.embedder.embedder.normalization.num_batches_tracked"]) == 2
    assert all(torch.equal(tensor, step.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert "momentum_buffer" in optimizer.state[next(model.parameters())]
