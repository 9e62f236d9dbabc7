"""What a step hears of: the live tensors that tell who touches them, and those of whom somebody asks nobody."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from detente.bridge.live.guard import release, tensors_of, unwatchable, watch
from detente.bridge.live.shared import address, shared
from detente.bridge.live.watch import Watch
from detente.bridge.private import plainly
from detente.bridge.step.certified import Certified


class Attending(Certified):
    """The live objects are watched, or filled behind every step where that is not enough."""

    def _see(self) -> None:
        """Watch what the module holds now, and nothing that it held before."""
        seen = [*self.weights.tensors.values(), *tensors_of(self.model)]
        ids = set(map(id, seen))
        release([tensor for tensor in self._attended if id(tensor) not in ids], self._guard)
        self._attended.clear()
        self._attend(seen)
        self._watch = Watch(self.model, self._held)
        self._memory = plainly(self._watch.memory)
        self._ask_nobody(seen)

    def _attend(self, tensors: Sequence[torch.Tensor]) -> None:
        """Hear of every operation on these, too; on those of the meta device from when they have memory on."""
        watch(tensors, self._guard)
        self._attended += tensors

    def _ask_nobody(self, tensors: Sequence[torch.Tensor]) -> None:
        """Where somebody may read and write the live tensors without a question, they are filled behind every step, and
        what stands there is taken before the next one."""
        self._meeting.of(plainly(shared, tensors))
        if self._guard.in_c:
            return
        why = plainly(unwatchable, tensors)
        if self._meeting and not why:
            why = "other processes have the memory of its tensors, too (share_memory)"
        if why:
            self._guard.in_c = True
            self._guard.exposed |= {id(tensor) for tensor in tensors if not tensor.is_meta}
            warnings.warn(
                f"{type(self.model).__name__} is read and written where nothing can be seen: {why}; its values are "
                "written back after every step from now on, which costs a copy of the weights each",
                stacklevel=6,
            )

    def _ask_of_held(self) -> None:
        """Where another process may write what the loss holds (a teacher), it is read before every step."""
        held = self._held.values()
        if self._outside.in_c or plainly(shared, held):
            self._outside.in_c = True
            self._outside.exposed |= {id(tensor) for tensor in held}

    def _ask_of_moments(self, held: Sequence[torch.Tensor]) -> None:
        """Where other processes have the memory of the optimizer's state, it is written and read with every step."""
        where = plainly(lambda: [address(tensor) for tensor in held])
        if self._moments.in_c or where == self._moments_at:
            return
        self._moments_at = where
        if plainly(shared, held):
            self._moments.in_c = True
            warnings.warn(
                f"other processes have the memory of the state of {type(self.optimizer).__name__}, too (share_memory): "
                "it is written back after every step from now on, and read again before the next one",
                stacklevel=6,
            )
