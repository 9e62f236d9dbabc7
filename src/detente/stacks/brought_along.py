"""What a process holds from its first training step on, whatever the step is of: the pages of the libraries of products
and convolutions, their threads and these threads' heaps. A plan's worker runs a step of a few layers, so that they are
part of what it finds the process to hold.

Measured on two cores: 6 MB for JAX (a product large enough for every thread of the pool), 26 for torch, and 72 more
for its first optimizer, which imports the compiler.
"""

from __future__ import annotations

from typing import Any

_SIDE, _WIDE = 32, 512


def by_torch(torch: Any, updates: bool) -> None:
    """A step of convolution, normalisation and product, and with ``updates`` an optimizer's, on the CPU; torch's random
    numbers stay."""
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3),
            torch.nn.BatchNorm2d(16),
            torch.nn.GELU(),
            torch.nn.AdaptiveAvgPool2d(8),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * 64, _WIDE),
            torch.nn.LayerNorm(_WIDE),
            torch.nn.Linear(_WIDE, _WIDE),
        )
    loss = torch.nn.functional.cross_entropy(
        model(torch.ones(_SIDE, 3, _SIDE, _SIDE)), torch.zeros(_SIDE, dtype=torch.long)
    )
    loss.backward()
    if updates:
        torch.optim.AdamW(model.parameters(), fused=True).step()


def by_jax(jax: Any) -> None:
    """A convolution and a product with their derivatives, on JAX's default device."""
    jnp = jax.numpy

    def loss(kernel: Any, weight: Any, pictures: Any) -> Any:
        made = jax.lax.conv_general_dilated(
            pictures, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        rows = jax.nn.gelu(made).reshape(-1, _WIDE)
        return jnp.tanh(rows @ weight).sum()

    arguments = (
        jnp.ones((3, 3, 3, 16)),
        jnp.ones((_WIDE, _WIDE)),
        jnp.ones((_SIDE, _SIDE + 2, _SIDE + 2, 3)),
    )
    jax.block_until_ready(jax.jit(jax.value_and_grad(loss, (0, 1)))(*arguments))
