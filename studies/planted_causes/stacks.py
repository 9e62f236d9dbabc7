"""JAX's own stack with one cause planted in each class; what they compute is the same in all of them.

A cause of the program's text is planted while the step is traced, in the layers that Flax NNX provides, so that the
model's definition stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from detente.programs.scope import OPTIMIZER
from detente.records.contract import Contract
from detente.stacks.jax_form import AS_IT_IS
from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_outside import OutsideRunning
from detente.stacks.jax_running import JaxRunning
from detente.workloads.workload import Size, Workload

Call = Callable[[Any, Any], Any]


@contextmanager
def patched(layer: Any, around: Callable[[Call], Call]) -> Iterator[None]:
    """While it lasts, a call of the layer's class is what ``around`` makes of it."""
    own = layer.__call__
    layer.__call__ = around(own)
    try:
        yield
    finally:
        layer.__call__ = own


def transposed(own: Call) -> Call:
    """The result is written transposed, and transposed back."""

    def call(layer: Any, x: Any) -> Any:
        import jax

        turned = jax.lax.optimization_barrier(own(layer, x).swapaxes(-1, -2))
        return jax.lax.optimization_barrier(turned.swapaxes(-1, -2))

    return call


def doubled(own: Call) -> Call:
    """The norm is computed twice: of twice the input with four times the epsilon it is the same to the last digit."""

    def call(layer: Any, x: Any) -> Any:
        first, epsilon = own(layer, x), layer.epsilon
        layer.epsilon = 4 * epsilon
        try:
            second = own(layer, 2 * x)
        finally:
            layer.epsilon = epsilon
        return 0.5 * (first + second)

    return call


def looked_up(own: Call) -> Call:
    """Every number of the result is looked up where it is, by 64-bit indices that the compiler cannot know. What costs
    is the look-up: by 32-bit indices it takes as long (0.8 % less at most, AMD EPYC, 28 November)."""

    def call(layer: Any, x: Any) -> Any:
        import jax
        import jax.numpy as jnp

        found = own(layer, x)
        flat = found.reshape(-1)
        with jax.enable_x64(True):
            # 0 everywhere, and no constant.
            nothing = jnp.isnan(jax.lax.stop_gradient(flat)).astype(jnp.int64)
            places = jnp.arange(flat.shape[0], dtype=jnp.int64) + nothing
            # Not clipped: the gradient is traced where there are no 64-bit numbers to clip with.
            sure = {"mode": "promise_in_bounds", "unique_indices": True, "indices_are_sorted": True}
            return flat.at[places].get(**sure).reshape(found.shape)

    return call


def fenced(own: Call) -> Call:
    """A barrier behind the result. Harmless on a CPU: XLA's compiler for it drops barriers before it fuses, so that
    eighteen operations with six barriers in between are one kernel still (jax 0.10.2)."""

    def call(layer: Any, x: Any) -> Any:
        import jax

        return jax.lax.optimization_barrier(own(layer, x))

    return call


def counted(own: Call) -> Call:
    """Harmless: a 64-bit number that is added and is nothing."""

    def call(layer: Any, x: Any) -> Any:
        import jax
        import jax.numpy as jnp

        with jax.enable_x64(True):
            count = jnp.arange(4, dtype=jnp.int64).sum() - 6
            return own(layer, x) + count.astype(x.dtype)

    return call


def kept_apart(x: Any) -> Any:
    """``x`` behind a conditional that the compiler cannot decide: no kernel reaches across it."""
    import jax
    import jax.numpy as jnp

    never = jnp.isnan(jax.lax.stop_gradient(x).reshape(-1)[0])
    return jax.lax.cond(never, lambda a: 2 * a, lambda a: a, x)


def gelu_in_pieces(x: Any, approximate: bool = True) -> Any:
    """``nnx.gelu`` in its tanh form, an array in memory for each operation."""
    import jax.numpy as jnp

    if not approximate:
        raise NotImplementedError("only the tanh form is written in pieces")
    cube = kept_apart(kept_apart(x * x) * x)
    inside = kept_apart(kept_apart(x + 0.044715 * cube) * (2 / jnp.pi) ** 0.5)
    return kept_apart(0.5 * x * kept_apart(1 + kept_apart(jnp.tanh(inside))))


class _Traced(JaxRunning):
    """The planted layers stand while the loss is traced."""

    plants: ClassVar[tuple[tuple[str, Callable[[Call], Call]], ...]] = ()

    def _loss(self, params: Any, rest: Any, batch: Any) -> Any:
        from flax import nnx

        with ExitStack() as planted:
            for name, around in self.plants:
                planted.enter_context(patched(getattr(nnx, name), around))
            return super()._loss(params, rest, batch)


class _Transposed(_Traced):
    plants = (("LayerNorm", transposed), ("Linear", transposed))


class _Wide(_Traced):
    plants = (("LayerNorm", looked_up), ("Linear", looked_up))


class _Doubled(_Traced):
    plants = (("LayerNorm", doubled),)


class _Fenced(_Traced):
    plants = (("LayerNorm", fenced), ("Linear", fenced))


class _Apart(JaxRunning):
    """GELU and the update in pieces."""

    def _loss(self, params: Any, rest: Any, batch: Any) -> Any:
        from flax import nnx

        own, nnx.gelu = nnx.gelu, gelu_in_pieces
        try:
            return super()._loss(params, rest, batch)
        finally:
            nnx.gelu = own

    def _after_update(self, params: Any, found: Any, state: Any) -> tuple[Any, Any]:
        import optax

        tree = self.jax.tree
        with self.jax.named_scope(OPTIMIZER):
            updates, state = self.optimizer.update(tree.map(kept_apart, found), state, params)
            return optax.apply_updates(params, tree.map(kept_apart, updates)), state


class _Counted(_Traced):
    plants = (("LayerNorm", counted),)


class ExtraTranspose(JaxJit):
    running = _Transposed


class WideIndices(JaxJit):
    running = _Wide


class DoubledLayerNorm(JaxJit):
    running = _Doubled


class BrokenFusion(JaxJit):
    running = _Apart


class HarmlessBarrier(JaxJit):
    """On a CPU: another program's text, the same kernels."""

    running = _Fenced


class HarmlessNumber(JaxJit):
    """Another program's text, and no other time."""

    running = _Counted


class MissingDonation(JaxJit):
    def build(self, workload: Workload, size: Size, contract: Contract) -> JaxRunning:
        form = replace(AS_IT_IS, donates=False)
        return self.running(self, workload, size, contract, self.scan, form)


class OptimizerOutside(JaxJit):
    running = OutsideRunning


class _Waits(JaxRunning):
    """Every array is waited for by itself, behind a program of its own: what a progress bar does that looks at all."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._touch = self.jax.jit(lambda a: a.ravel()[:1])

    def step(self, batch: Any) -> Any:
        found = super().step(batch)
        for leaf in self.jax.tree.leaves(self.params):
            self._touch(leaf).block_until_ready()
        return found


class HostSync(JaxJit):
    running = _Waits


class Same(JaxJit):
    """The control: nothing is planted."""
