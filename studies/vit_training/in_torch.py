"""The study's model in PyTorch: ``ViTForImageClassification`` of ``transformers`` with its default configuration
(ViT-B/16) and 1,000 labels, trained by SGD with a learning rate of 1e-3."""

import torch
from transformers import ViTConfig, ViTForImageClassification

LABELS = 1000


def loss(model, batch):
    logits = model(pixel_values=batch["pictures"]).logits
    return torch.nn.functional.cross_entropy(logits, batch["labels"]), {"logits": logits}


def written(batch=4, layers=12, image=224):
    """Attention written out, as the study had it: two products and a softmax."""
    return _made("eager", batch, layers, image)


def fused(batch=4, layers=12, image=224):
    """Attention by ``scaled_dot_product_attention``, the default of ``transformers`` since."""
    return _made("sdpa", batch, layers, image)


def _made(attention, batch, layers, image):
    config = ViTConfig(num_hidden_layers=layers, image_size=image, num_labels=LABELS)
    config._attn_implementation = attention
    model = ViTForImageClassification(config)
    rows = {"pictures": torch.rand(batch, 3, image, image), "labels": torch.randint(0, LABELS, (batch,))}
    return model, loss, rows, torch.optim.SGD(model.parameters(), lr=1e-3)
