"""``resnet`` in PyTorch, channels first: the basic-block network of He et al. 2016."""

from __future__ import annotations

import torch
from torch import nn

from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut_bn = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.shortcut is not None:
            x = self.shortcut_bn(self.shortcut(x))
        return torch.relu(y + x)


class ResNet(nn.Module):
    """``images`` (batch, 3, height, width) to logits (batch, classes)."""

    def __init__(self, width: int, stages: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages, channels = nn.ModuleList(), width
        for stage in range(stages):
            row = nn.ModuleList()
            for block in range(blocks):
                row.append(Block(channels, width << stage, 2 if stage and not block else 1))
                channels = width << stage
            self.stages.append(row)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(images))))
        for row in self.stages:
            for block in row:
                x = block(x)
        return self.fc(x.mean((2, 3)))


def build(size: Size) -> torch.nn.Module:
    """In training mode: batch statistics normalise, and the running buffers move with every step."""
    return ResNet(size["width"], size["stages"], size["blocks"], size["classes"]).train()


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Mean cross entropy over the batch, in at least float32 as under autocast."""
    logits = module(batch["images"])
    return nn.functional.cross_entropy(logits, batch["labels"]), {"logits": logits}
