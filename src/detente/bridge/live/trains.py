"""What trains, and is not trained: optimizers, schedulers, data sets, and what of them is looked at.

A loss may read the learning rate, the epoch of a schedule, how hard its data is by now. It reads little of them, and
they hold much that moves with every step, or is gigabytes: so of these only what was asked for by its name counts, and
of an optimizer its groups' numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.refusal import refuse

TRAINS = (
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.utils.data.DataLoader,
    torch.utils.data.Dataset,
)
# Of an optimizer: looked after by themselves, or torch's own.
OF_OPTIMIZERS = frozenset(
    {
        "param_groups", "state", "step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks",
        "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks", "_opt_called", "_step_count",
        "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured",
    }
)  # fmt: skip


class _Untold:
    """Stands where an optimizer's state is: whoever asks for anything of it is refused."""

    def _refused(self, *asked: Any) -> Any:
        raise refuse(
            "optimizer",
            "forward or the loss reads the optimizer's state, which every step moves and no program has",
            hint="keep what it needs of it in a buffer, or hand it over in the batch",
        )

    __getattr__ = __getitem__ = __setitem__ = __contains__ = __iter__ = __len__ = __bool__ = _refused


@contextmanager
def without_state(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """While forward runs: what it would read there would be the moments of now for good."""
    before = [(vars(one), vars(one)["state"]) for one in optimizers if "state" in vars(one)]
    try:
        for table, _ in before:
            table["state"] = _Untold()
        yield
    finally:
        for table, state in before:
            table["state"] = state


def numbers_of(group: Mapping[str, Any], asked: Callable[[str], bool]) -> list[str]:
    """The numbers of a group that code asks for: a schedule of the momentum is no reason for another program where the
    loss reads the learning rate. All of them where it names none."""
    own = [key for key in group if key != "params"]
    return [key for key in own if asked(key)] or own
