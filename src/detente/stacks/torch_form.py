"""How PyTorch's step is built otherwise than the stack has it: under an arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from detente.records.arm import Arm
from detente.stacks.form_of_arm import form_of_arm
from detente.stacks.protocol import Unavailable


@dataclass(frozen=True)
class TorchForm:
    """decomposed     attention is its products and a softmax, and no kernel of its own
    channels_last  images, and the weights of their convolutions, have their channels innermost in memory
    """

    decomposed: bool = False
    channels_last: bool = False

    def attending(self, torch: Any) -> Any:
        """While it lasts, ``scaled_dot_product_attention`` chooses among the kernels that the form leaves it. The
        choice falls in the forward pass, and its backward follows."""
        if not self.decomposed:
            return nullcontext()
        return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)

    def laid_out(self, torch: Any, module: Any) -> Any:
        """The module with its weights as the form has them. Raises Unavailable where none of them has channels."""
        if not self.channels_last:
            return module
        if not any(p.dim() == 4 for p in module.parameters()):
            raise Unavailable("no weight of this model has the four dimensions of an image's convolution")
        return module.to(memory_format=torch.channels_last)

    def placed(self, torch: Any, tensor: Any) -> Any:
        """An argument of the model as the form has it."""
        image = self.channels_last and tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=torch.channels_last) if image else tensor


AS_IT_IS = TorchForm()

# Inductor lays images out by itself, but not all: of ConvNeXt, whose convolutions are depthwise, none.
FORMS: Mapping[tuple[str, str], Callable[[TorchForm], TorchForm]] = {
    ("attention", "decomposed"): lambda form: replace(form, decomposed=True),
    ("layout", "channels-last"): lambda form: replace(form, channels_last=True),
}


def torch_form(stack: str, arm: Arm) -> TorchForm:
    """The form of an arm. Raises Unavailable for a factor or a setting that this stack cannot be built under.

    >>> from detente.records.arm import arm_of
    >>> torch_form("torch-eager", arm_of({"layout": "channels-last"}))
    TorchForm(decomposed=False, channels_last=True)
    """
    return form_of_arm(stack, arm, FORMS, AS_IT_IS)
