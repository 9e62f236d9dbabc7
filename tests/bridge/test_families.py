"""Architectures as their libraries ship them: the compiled step is the same function as torch eager, rolled as well as
written out, with dropout on wherever there is some."""

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
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True, dropout=0.1)
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
        hf.ViTConfig(image_size=32, patch_size=8, num_labels=5, hidden_dropout_prob=0.1, **HIDDEN)
    ), PICTURES


def resnet():
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=5
    )
    return hf.ResNetForImageClassification(config), PICTURES


def llama():
    config = hf.LlamaConfig(
        vocab_size=96, max_position_embeddings=16, num_key_value_heads=2, attention_dropout=0.1, **HIDDEN
    )
    return hf.LlamaForCausalLM(config), TEXT


def lstm():
    return Recurrent(), TEXT


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt_neo():
    """Layers alternate between global and local attention."""
    config = hf.GPTNeoConfig(
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        hidden_size=32,
        num_heads=4,
        vocab_size=96,
        max_position_embeddings=16,
        attention_dropout=0.1,
        resid_dropout=0.1,
        embed_dropout=0.1,
        bos_token_id=0,
        eos_token_id=0,
    )
    return hf.GPTNeoForCausalLM(config), TEXT


def t5():
    config = hf.T5Config(
        num_layers=2,
        num_decoder_layers=2,
        d_model=32,
        d_ff=48,
        num_heads=4,
        d_kv=8,
        vocab_size=96,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config), TEXT


def whisper():
    config = hf.WhisperConfig(
        encoder_layers=2,
        decoder_layers=2,
        d_model=32,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        vocab_size=96,
        max_source_positions=16,
        max_target_positions=16,
        num_mel_bins=8,
        decoder_start_token_id=1,
        dropout=0.1,
        attention_dropout=0.1,
        **TOKENS,
    )
    sound = torch.randn(2, 8, 32, generator=GENERATOR)
    return hf.WhisperForConditionalGeneration(config), {"input_features": sound, "labels": IDS}


def mamba():
    config = hf.MambaConfig(num_hidden_layers=2, hidden_size=24, state_size=4, vocab_size=96)
    return hf.MambaForCausalLM(config), TEXT


def qwen3_moe():
    config = hf.Qwen3MoeConfig(
        vocab_size=96,
        num_key_value_heads=2,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        head_dim=8,
        attention_dropout=0.1,
        output_router_logits=True,
        **HIDDEN,
    )
    model = hf.Qwen3MoeForCausalLM(config)
    model.set_experts_implementation(
        "batched_mm"
    )  # the default's grouped product has no float64 form in eager
    return model, TEXT


def clip():
    """Two towers and a contrastive loss across the batch."""
    vision = {"image_size": 16, "patch_size": 8, "attention_dropout": 0.1, **HIDDEN}
    text = {"vocab_size": 96, "max_position_embeddings": 16, "attention_dropout": 0.1, **HIDDEN, **TOKENS}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    pictures = torch.randn(2, 3, 16, 16, generator=GENERATOR)
    return hf.CLIPModel(config), {"input_ids": IDS, "pixel_values": pictures, "return_loss": True}


class Translator(nn.Module):
    """``torch.nn.Transformer`` with the mask that its documentation gives."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, 32)
        self.body = nn.Transformer(32, 4, 1, 1, 48, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 96)

    def forward(self, input_ids, labels):
        source, target = self.embed(input_ids), self.embed(labels)
        mask = nn.Transformer.generate_square_subsequent_mask(labels.shape[1], dtype=target.dtype)
        hidden = self.body(source, target, tgt_mask=mask)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def transformer():
    return Translator(), TEXT


class Residual(nn.Module):
    """A U-Net's block: group norms, the time embedded, dropout."""

    def __init__(self, wide, out):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, wide), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(wide, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time, self.drop = nn.Linear(16, out), nn.Dropout(0.1)
        self.skip = nn.Conv2d(wide, out, 1) if wide != out else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(self.drop(nn.functional.silu(self.norm2(h))))


class Unet(nn.Module):
    """Predicts the noise of a picture at a time drawn in forward: two resolutions, attention below, skips across."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down1, self.down2 = Residual(8, 8), Residual(8, 16)
        self.shrink = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.attend = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.up1, self.up2 = Residual(16, 8), Residual(16, 8)
        self.grow = nn.Upsample(scale_factor=2, mode="nearest")
        self.last = nn.Conv2d(8, 3, 3, padding=1)
        self.register_buffer("kept", torch.linspace(0.999, 0.02, 50).cumprod(0))

    def forward(self, pixel_values, labels):
        when = torch.randint(0, 50, (pixel_values.shape[0],))
        noise = torch.rand_like(pixel_values) * 2 - 1
        share = self.kept[when][:, None, None, None]
        x = share.sqrt() * pixel_values + (1 - share).sqrt() * noise
        angles = when[:, None] * torch.exp(-torch.arange(8, dtype=x.dtype))
        time = torch.cat([angles.sin(), angles.cos()], 1)
        first = self.down1(self.first(x), time)
        below = self.down2(self.shrink(first), time)
        flat = below.flatten(2).transpose(1, 2)
        below = below + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(below)
        h = torch.cat([self.grow(self.up1(below, time)), first], 1)
        return nn.functional.mse_loss(self.last(self.up2(h, time)), noise)


def unet():
    return Unet(), PICTURES


def loss(model, batch):
    value = model(**batch)
    return value if isinstance(value, torch.Tensor) else value.loss


FAMILIES = [
    gpt2, bert, vit, resnet, llama, lstm, gpt_neo, t5, whisper, mamba, qwen3_moe, clip, transformer, unet,
]  # fmt: skip


# A decoder runs in `make test`, and a convolutional net below; `make test-matrix` takes the rest
LONG = {t5, unet, whisper, mamba, clip, gpt_neo, llama, vit, resnet, lstm, transformer, qwen3_moe, bert}


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, id=f.__name__, marks=[pytest.mark.matrix] if f in LONG else []) for f in FAMILIES],
)
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
    assert not any(
        torch.equal(p, before[name]) for name, p in model.named_parameters()
    )  # who reads sees what is trained
    step.sync_to_torch()
    assert int(model.state_dict()["resnet.embedder.embedder.normalization.num_batches_tracked"]) == 2
    assert all(torch.equal(tensor, step.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert "momentum_buffer" in optimizer.state[next(model.parameters())]
