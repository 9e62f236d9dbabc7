"""A contract: what is inside the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Region = Literal["forward", "gradient", "train-step"]


@dataclass(frozen=True)
class Contract:
    """What is timed, at which precision, and where inputs and outputs live.

    name        as the user writes it: ``forward``, ``gradient``, ``train-step``, ``train-step-sgd``
    region      ``forward``: batch to loss and outputs. ``gradient``: batch to loss and the gradient of every
                parameter (and of the batch entries that the workload declares). ``train-step``: batch to loss,
                with parameters, buffers and optimizer state advanced by one update
    optimizer   ``adamw``, ``sgd`` or None
    precision   a name of the table in records/precision.py
    feed        ``resident``: batches are on the device before the clock starts, outputs stay there.
                ``loader``: fetching the next batch from a torch DataLoader and placing it is inside the clock
    loader_workers  processes of the loader, on the row's own cores; 0: a thread of the row reads
    """

    name: str
    region: Region
    optimizer: Literal["adamw", "sgd"] | None
    precision: str = "fp32"
    feed: Literal["resident", "loader"] = "resident"
    loader_workers: int = 0

    @property
    def moments(self) -> int:
        """Tensors as large as the parameters that the optimizer keeps."""
        return {"adamw": 2, "sgd": 1, None: 0}[self.optimizer]

    def at(self, precision: str) -> Contract:
        """The same contract at another precision."""
        return replace(self, precision=precision)

    def resident(self) -> Contract:
        """The same contract with batches that wait on the device: what weights, batches and references belong to."""
        return replace(self, feed="resident", loader_workers=0)


CONTRACTS: dict[str, Contract] = {
    c.name: c
    for c in (
        Contract("forward", "forward", None),
        Contract("gradient", "gradient", None),
        Contract("train-step", "train-step", "adamw"),
        Contract("train-step-sgd", "train-step", "sgd"),
    )
}
