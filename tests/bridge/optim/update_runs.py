"""The same parameters, gradients and steps for torch's optimizer and for the compiled update."""

import jax
import numpy as np
import torch

from detente.bridge.lower.precision import x64
from detente.bridge.optim.layout import from_torch
from detente.bridge.optim.program import Leaf
from detente.bridge.optim.recording import aval_of

SHAPES = {"matrix": (5, 3), "vector": (7,), "kernel": (2, 3, 3, 2), "scalar": ()}


def parameters(shapes, dtype, seed=0):
    """Normal numbers; a scalar sits at 5, so that it cannot cross zero, where a relative error says nothing."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(
            (torch.randn(shape, generator=generator, dtype=torch.float64) + (0 if shape else 5)).to(dtype)
        )
        for name, shape in shapes.items()
    }


def gradients(shapes, dtype, step):
    """Some entries change sign from step to step and some are zero: Rprop and ASGD branch on both."""
    generator = torch.Generator().manual_seed(100 + step)
    out = {}
    for name, shape in shapes.items():
        g = torch.randn(shape, generator=generator, dtype=torch.float64)
        out[name] = torch.where(g.abs() < 0.2, torch.zeros_like(g), g).to(dtype)
    return out


def arrays(tensors):
    return {name: from_torch({"x": t.detach()}, (Leaf("x", aval_of(t)),))["x"] for name, t in tensors.items()}


def run_torch(optimizer, params, shapes, dtype, steps):
    for step in steps:
        for name, g in gradients(shapes, dtype, step).items():
            params[name].grad = g.clone()
        optimizer.step()


def run_bridge(rule, optimizer, params, shapes, dtype, steps):
    with x64():
        values, state = arrays(params), rule.read_state(optimizer, params)
        apply = jax.jit(rule.apply)
        for step in steps:
            values, state = apply(
                values, arrays(gradients(shapes, dtype, step)), state, rule.hyper(optimizer)
            )
    return values, state


def error(got, want):
    """Largest difference, relative to the tensor's largest entry; infinite where NaN or infinity is not shared
    (Adagrad's eps of 1e-10 is zero in float16, so torch itself divides zero by zero)."""
    got, want = np.asarray(got, np.float64), want.detach().to(torch.float64).numpy()
    finite = np.isfinite(want)
    if not np.array_equal(np.where(finite, 0, got), np.where(finite, 0, want), equal_nan=True):
        return np.inf
    return np.abs(got - want, where=finite, out=np.zeros(want.shape)).max() / max(
        np.abs(want, where=finite, out=np.zeros(want.shape)).max(), 1e-30
    )
