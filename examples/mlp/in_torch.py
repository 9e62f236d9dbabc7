"""The small MLP of every tutorial, in PyTorch."""

import torch


def make(batch=64):
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )

    def loss(model, batch):
        logits = model(batch["x"])
        return torch.nn.functional.cross_entropy(logits, batch["y"]), {"logits": logits}

    return model, loss, {"x": torch.randn(batch, 32), "y": torch.randint(0, 10, (batch,))}
