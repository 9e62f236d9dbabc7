"""The one comparison that the bridge's tests use: the compiled step against torch eager, both in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tests.quick_xla import compile_quickly

compile_quickly()


class Double(TorchFunctionMode):
    """Code that names float32 (an RMSNorm that widens for itself) names float64 here, on both sides."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widened(value):
            return torch.float64 if value is torch.float32 else value

        if getattr(func, "__name__", "") == "float":
            func = torch.Tensor.double
        return func(*[widened(a) for a in args], **{k: widened(v) for k, v in (kwargs or {}).items()})


def distance(ours: torch.Tensor, theirs: torch.Tensor, scale: float = 0.0) -> float:
    """Relative distance in the Euclidean norm; ``scale`` is the least denominator."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if not theirs.is_floating_point():
        return 0.0 if torch.equal(ours, theirs) else float("inf")
    size = max(float(theirs.norm()), scale)
    far = float((ours - theirs).norm())
    return far / size if size else far


@pytest.fixture(autouse=True)
def no_persistent_cache(monkeypatch):
    """Every test compiles what it tests; tests of the cache set their own folder."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", "off")


@pytest.fixture
def same_function():
    """``same(model, loss, batch, optimizer=..., steps=3)``: loss, every gradient, every buffer and every update agree
    to a relative 1e-9 in float64. Returns the step."""

    def compare(model, loss, batch, optimizer=None, steps=3, tolerance=1e-9, dtype=torch.float64):
        from detente import bridge
        from detente.bridge.certify.eager import eager_step
        from detente.bridge.random import twin

        optimizer = optimizer or (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9))
        model = copy.deepcopy(model).to(dtype)
        batch = pytree.tree_map(
            lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, batch
        )
        other = copy.deepcopy(model)
        with Double():
            step = bridge.compile(
                model, loss, optimizer(model.parameters()), example_batch=batch, certificate="none", seed=11
            )
            reference = optimizer(other.parameters())
            rounding = set()
            for count in range(steps):
                found = step.gradients(batch)
                value = step(batch)
                done = eager_step(other, loss, reference, batch, twin(11, count))
                largest = max(float(g.norm()) for g in done.gradients.values() if g is not None)
                for name, gradient in done.gradients.items():
                    if gradient is not None and float(gradient.norm()) < 1e-9 * largest:
                        rounding.add(
                            name
                        )  # a key bias: the exact gradient is zero, Adam would step by its sign
                    if gradient is None:
                        assert found.get(name) is None, f"torch gives {name} no gradient"
                        continue
                    far = distance(found[name], gradient, 1e-6 * largest)
                    assert far <= tolerance, f"gradient {name}, step {count}: {far:.2e}"
                value = value[0] if isinstance(value, tuple) else value
                assert distance(value.wait(), done.loss) <= tolerance, f"loss, step {count}"
            for name, tensor in step.state_dict().items():
                if name in rounding:
                    continue
                far = distance(tensor, other.state_dict()[name])
                assert far <= tolerance, f"{name} after {steps} steps: {far:.2e}"
        return step

    return compare
