"""The regions without an optimizer: what they compute, and whose memory they read."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from detente.bridge.doors.region import Region, compile_region
from detente.bridge.state.place import lent, place


def loss(module: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    found = module(batch)
    return found.square().mean(), {"found": found}


def made(module: nn.Module, batch: torch.Tensor, gradient: bool = False) -> Region:
    return compile_region(module, loss, place(batch), gradient=gradient)


def test_a_tensor_is_lent_where_it_lies_and_copied_where_xla_would_not_take_it() -> None:
    whole = torch.randn(65, 64)
    assert lent(whole).unsafe_buffer_pointer() == whole.data_ptr()
    odd, turned = whole.view(-1)[1:65], whole[:64].t()
    small = (
        torch.zeros(0, 3),
        torch.tensor(3),
        torch.randn(64).bfloat16(),
        torch.randn(64).to(torch.float8_e5m2),
    )
    # A sign that torch has only noted: the memory holds the opposite.
    noted = torch._neg_view(torch.randn(64)), torch.randn(64, dtype=torch.complex64).conj().imag
    for tensor in (odd, turned, *small, *noted):
        array = lent(tensor)
        assert array.shape == tuple(tensor.shape)
        assert str(array.dtype) == str(tensor.dtype).removeprefix("torch.")
        assert (torch.from_numpy(np.asarray(array, "float32")) == tensor.float()).all()
    assert lent(odd).unsafe_buffer_pointer() != odd.data_ptr()


def test_weights_are_the_modules_own_memory() -> None:
    torch.manual_seed(0)
    module, batch = nn.Linear(64, 64), torch.randn(8, 64)
    region = made(module, batch)
    assert region.values == {}  # a plan compiles and holds nothing
    region.load()
    assert region.values["weight"].unsafe_buffer_pointer() == module.weight.data_ptr()
    assert region.argument_bytes() == 4 * (64 * 64 + 64)


def test_it_computes_what_torch_does_from_weights_that_changed_since() -> None:
    torch.manual_seed(0)
    module, batch = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)), torch.randn(8, 64)
    region, placed = made(module, batch), place(batch)
    region.load()
    for change in ("nothing", "in place", "another tensor"):
        with torch.no_grad():
            if change == "in place":
                module[0].weight.mul_(2)
            if change == "another tensor":
                module[0].weight.data = torch.randn(64, 64)
                region.load()
        buffers = {n: b.clone() for n, b in module.named_buffers()}
        found, _ = region(placed)
        assert all(
            torch.equal(b, buffers[n]) for n, b in module.named_buffers()
        )  # written to none of the module's
        wanted, _ = loss(module, batch)
        torch.testing.assert_close(torch.tensor(float(found)), wanted.detach())
        region.load()


def test_gradients_are_torchs() -> None:
    torch.manual_seed(0)
    module, batch = nn.Linear(64, 3), torch.randn(8, 64)
    region = made(module, batch, gradient=True)
    region.load()
    _, gradients = region(place(batch))
    loss(module, batch)[0].backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(
            torch.from_numpy(np.array(gradients[name])), parameter.grad, rtol=1e-5, atol=1e-6
        )


def test_whoever_writes_to_the_module_waits_for_what_was_called() -> None:
    """A program that takes a moment, and a weight that is filled with NaN right behind its call."""
    torch.manual_seed(0)
    module, batch = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16))), torch.randn(512, 512)
    region, placed = made(module, batch), place(batch)
    region.load()
    for _ in range(5):
        wanted = float(region(placed)[0])
        found, _ = region(placed)
        region.wait()
        kept = module[-1].weight.clone()
        module[-1].weight.data.fill_(float("nan"))
        assert float(found) == wanted
        module[-1].weight.data.copy_(kept)
    assert region.called == []
