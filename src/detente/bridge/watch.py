"""Has the live module been changed behind the step's back? Cheap enough to ask before every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from detente.bridge.refusal import Refused, refuse


class Watch:
    """Remembers every parameter and buffer of a module: the object, its version counter, ``requires_grad``.

    The compiled step holds the weights on the device. A write to the live module would be ignored silently,
    so it is refused; ``renew`` after the step itself has written.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.renew()

    def renew(self) -> None:
        """What the module holds now is what the step knows."""
        self.parts = list(self.module.modules())
        self.slots: list[tuple[dict[str, Any], str, torch.Tensor, str]] = []
        for path, part in self.module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        self.slots.append((table, name, tensor, f"{path}.{name}" if path else name))
        self.versions = [tensor._version for _, _, tensor, _ in self.slots]
        self.trained = [tensor.requires_grad for _, _, tensor, _ in self.slots]

    @property
    def mode(self) -> tuple[bool, ...]:
        """The training flag of every part: train and eval are two programs."""
        return tuple(part.training for part in self.parts)

    @property
    def changed(self) -> bool:
        """Whether ``check`` would raise."""
        try:
            self.check()
        except Refused:
            return True
        return False

    def check(self) -> None:
        """Raises Refused (``module-changed``) naming the first tensor that is not what it was."""
        for (table, key, tensor, name), version, trained in zip(
            self.slots, self.versions, self.trained, strict=True
        ):
            if table.get(key) is not tensor:
                raise refuse("module-changed", f"{name} was replaced after compile")
            if tensor._version != version:
                raise refuse(
                    "module-changed",
                    f"{name} was written after compile, and the step has its own copy on the device",
                    hint="call step.load_from_torch() to take the module's values, or compile again",
                )
            if tensor.requires_grad != trained:
                raise refuse("module-changed", f"{name}.requires_grad is now {tensor.requires_grad}")
        parts = list(self.module.modules())
        if len(parts) != len(self.parts) or any(a is not b for a, b in zip(parts, self.parts, strict=True)):
            raise refuse(
                "module-changed", "a part of the module was replaced, added or removed after compile"
            )
