"""What trains, and is not trained: optimizers, schedulers, data sets, and what of them is looked at.

A loss may read the learning rate, the epoch of a schedule, how hard its data is by now. It reads little of them, and
they hold much that moves with every step, or is gigabytes: so of these only what was asked for by its name counts, and
of an optimizer its groups' numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

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


def numbers_of(group: Mapping[str, Any], asked: Callable[[str], bool]) -> list[str]:
    """The numbers of a group that code asks for: a schedule of the momentum is no reason for another program where the
    loss reads the learning rate. All of them where it names none."""
    own = [key for key in group if key != "params"]
    return [key for key in own if asked(key)] or own
