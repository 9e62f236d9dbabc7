"""The models that the bridge is timed on beside PyTorch: ``transformers``' own, unmodified, dropout as published, with
seeded random weights and data, on a CPU at batches of a try-out, on an accelerator at batches that fill it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Beside:
    """One model. ``make(rows, length, **config)`` gives the module, a batch and ``loss(module, batch)``; ``length`` is
    of tokens or of whatever else the model reads in a row (pictures have none). ``shallow`` of its configuration makes
    it as wide as it is, of few layers. ``pictures``: what it reads can lie in memory with its channels last."""

    name: str
    make: Callable[..., tuple[Any, Any, Loss]]
    cpu: tuple[int, int]
    accelerator: tuple[int, int]
    shallow: dict[str, Any]
    also: str = ""
    pictures: bool = False

    def titled(self, sizes: tuple[int, int]) -> str:
        return f"{self.name}, {' x '.join(str(n) for n in sizes if n)}{self.also}"

    @property
    def title(self) -> str:
        return self.titled(self.cpu)


def _classified(model: Any, batch: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(model(batch["x"]).logits, batch["y"])


def _language(model: Any, batch: Any) -> Any:
    return model(input_ids=batch["x"], labels=batch["x"]).loss


def _heard(model: Any, batch: Any) -> Any:
    return model(input_features=batch["x"], labels=batch["y"]).loss


def _pictures(rows: int, labels: int = 1000) -> Any:
    import torch

    return {"x": torch.randn(rows, 3, 224, 224), "y": torch.randint(labels, (rows,))}


def _tokens(vocabulary: int, rows: int, length: int) -> Any:
    import torch

    return {"x": torch.randint(vocabulary, (rows, length))}


def _gpt2(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    return tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False, **more)), _tokens(50257, rows, length), _language


def _bert(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import torch
    import transformers as tf

    model = tf.BertForSequenceClassification(tf.BertConfig(**more))
    return model, _tokens(30000, rows, length) | {"y": torch.randint(2, (rows,))}, _classified


def _vit(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    return tf.ViTForImageClassification(tf.ViTConfig(num_labels=1000, **more)), _pictures(rows), _classified


def _resnet50(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    return (
        tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=1000, **more)),
        _pictures(rows),
        _classified,
    )


def _llama(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    config = tf.LlamaConfig(
        **{"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"use_cache": False}
        | more
    )
    return tf.LlamaForCausalLM(config), _tokens(32000, rows, length), _language


def _t5(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    config = tf.T5Config(use_cache=False, decoder_start_token_id=0, **more)
    return tf.T5ForConditionalGeneration(config), _tokens(32000, rows, length), _language


def _whisper(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import torch
    import transformers as tf

    batch = {"x": torch.randn(rows, 80, length), "y": torch.randint(50000, (rows, 64))}
    config = tf.WhisperConfig(
        **{"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1536}
        | {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536}
        | {"use_cache": False}
        | more
    )
    return tf.WhisperForConditionalGeneration(config), batch, _heard


def _mamba(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    config = tf.MambaConfig(
        **{"hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 8000, "use_cache": False} | more
    )
    return tf.MambaForCausalLM(config), _tokens(8000, rows, length), _language


def _convnext(rows: int, length: int, **more: Any) -> tuple[Any, Any, Loss]:
    import transformers as tf

    return (
        tf.ConvNextForImageClassification(tf.ConvNextConfig(num_labels=1000, **more)),
        _pictures(rows),
        _classified,
    )


_TWO, _STAGES = {"num_hidden_layers": 2}, {"depths": [1, 1, 1, 1]}
MODELS: dict[str, Beside] = {
    "gpt2": Beside("GPT-2 Small", _gpt2, (2, 64), (8, 1024), {"n_layer": 2}),
    "bert": Beside("BERT-Base", _bert, (4, 64), (32, 512), _TWO),
    "vit": Beside("ViT-B/16", _vit, (2, 0), (64, 0), _TWO, pictures=True),
    "resnet50": Beside("ResNet-50", _resnet50, (4, 224), (128, 224), _STAGES, pictures=True),
    "llama": Beside("Llama, 12 layers of 768", _llama, (2, 128), (8, 1024), _TWO),
    "t5": Beside("T5, 6 + 6 of 512", _t5, (4, 64), (32, 512), {"num_layers": 2}),
    "whisper": Beside(
        "Whisper tiny",
        _whisper,
        (1, 3000),
        (32, 3000),
        {"encoder_layers": 2, "decoder_layers": 2},
        ", 64 labels",
    ),
    "mamba": Beside("Mamba, 4 layers of 256", _mamba, (2, 64), (256, 64), _TWO),
    "convnext": Beside("ConvNeXt tiny", _convnext, (2, 224), (64, 224), _STAGES, pictures=True),
}


def made(name: str, sizes: tuple[int, int] | None = None, shallow: bool = False) -> tuple[Any, Any, Loss]:
    """Model ``name`` in training mode, its batch (of ``sizes``; default: those of a CPU) and its loss, seeded."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = MODELS[name]
    module, batch, loss = model.make(*(sizes or model.cpu), **(model.shallow if shallow else {}))
    return module.train(), batch, loss
