"""Eager PyTorch with the bridge's random numbers.

Inside ``with twin(seed, count):`` call number ``i`` that draws (in eager order) draws from
``fold_in(step key, i)``, as the compiled step's does, so an eager run has the same dropout masks, whatever its
breakpoints, prints and device.

The ordinal lives in torch's own default generator: inside, the generator does nothing but count. That is what
makes a recomputed ``torch.utils.checkpoint`` region repeat its numbers: checkpoint saves the generator's state
before the region and restores it before recomputing. The caller's generator state is put back at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend, sdpa_kernel

from detente.bridge.private import HigherOrderOperator, TorchDispatchMode
from detente.bridge.random import threefry
from detente.bridge.random.drawing import DRAWS
from detente.bridge.threads import only_here

# tagged as random by torch, but drawing only with a dropout probability (which the math form draws itself)
_ATTENTION = (
    "aten._scaled_dot_product",
    "aten._fused_sdp_choice",
    "aten._flash_attention",
    "aten._efficient_attention",
)
_RECURRENT = ("aten._cudnn_rnn", "aten.miopen_rnn")


class Twin(TorchDispatchMode):
    """The mode itself. ``ordinals`` is how many calls have drawn so far, recomputed ones not counted again."""

    supports_higher_order_operators = True

    def __init__(self, step: threefry.Key) -> None:
        super().__init__()
        self.step = step
        self.known: dict[bytes, int] = {}  # the generator's state -> the ordinal it stands for

    @property
    def ordinals(self) -> int:
        return max(self.known.values(), default=0)

    def ordinal(self) -> int:
        """The ordinal of the call that draws now; moves the generator on."""
        state = torch.get_rng_state().numpy().tobytes()
        number = self.known.setdefault(state, self.ordinals)
        torch.empty((), dtype=torch.int64).random_()
        self.known.setdefault(torch.get_rng_state().numpy().tobytes(), number + 1)
        return number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            # torch differentiates a branch by tracing it, which no mode survives: its draws stay torch's own
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = str(func)
        if _silent(name, args, kwargs):
            return func(*args, **kwargs)
        draw = DRAWS.get(name)
        if draw is None:
            raise NotImplementedError(
                f"{name} draws random numbers in a way that the bridge does not have; an eager step cannot repeat "
                "the compiled one here. Draw it outside of the step and pass it in with the batch"
            )
        result = draw(threefry.fold_in(self.step, self.ordinal()), *args, **kwargs)
        if name.endswith("rrelu_with_noise_.default"):
            return args[0].copy_(result)
        return result


def _silent(name: str, args: Any, kwargs: Any) -> bool:
    """Whether torch tags this call as random although it draws nothing."""
    if name == "aten.native_dropout.default":
        return not args[2] or args[1] in (0.0, 1.0)
    if name.startswith("aten.rrelu_with_noise"):
        return not (args[4] if len(args) > 4 else kwargs.get("training", False))
    if name.startswith(_ATTENTION):
        return not kwargs.get("dropout_p", 0.0) and not any(isinstance(a, float) and a > 0 for a in args[3:5])
    if name.startswith(_RECURRENT):  # dropout probability, then train
        return not any(isinstance(a, float) and a > 0 for a in args)
    return False


@contextmanager
def twin(seed: int, count: int) -> Iterator[Twin]:
    """Step number ``count`` of a run with ``seed``, in eager PyTorch, with the compiled step's numbers.

    Only the global generators' calls and those with an explicit ``generator=`` are replaced; none of them moves
    the caller's generators. Raises NotImplementedError at a call that the bridge could not draw either.
    """
    mode = Twin(threefry.fold_in(threefry.key(seed), count))
    saved = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # the devices' generators stay as they are
    # fused attention kernels draw inside; the math form calls dropout
    backends = sdpa_kernel([SDPBackend.MATH]) if torch.cuda.is_available() else _nothing()
    # torch's cond, scan and while_loop go through dynamo, which gives up under a mode and then remembers, for the calls
    # outside of it, too
    stance = torch.compiler.set_stance("force_eager")
    try:
        with _checkpoints_keep_state(), backends, stance, mode:
            yield mode
    finally:
        torch.set_rng_state(saved)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _checkpoints_keep_state() -> Iterator[None]:
    """``checkpoint(..., preserve_rng_state=False)`` would number a recomputed region anew; the compiled step
    always repeats it. The names inside torch's module are replaced, since users import ``checkpoint`` itself."""
    module: Any = torch.utils.checkpoint
    plain, reentrant = module._checkpoint_without_reentrant_generator, module.CheckpointFunction

    def generator(fn: Any, preserve: Any = True, *rest: Any, **named: Any) -> Any:
        return plain(fn, True, *rest, **named)

    class Keeping:
        apply = staticmethod(
            only_here(
                lambda function, preserve, *args: reentrant.apply(function, True, *args), reentrant.apply
            )
        )

    module._checkpoint_without_reentrant_generator = only_here(generator, plain)
    module.CheckpointFunction = Keeping
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator, module.CheckpointFunction = plain, reentrant
