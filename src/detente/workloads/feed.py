"""Feed a workload from a ``torch.utils.data.DataLoader``, to torch and JAX alike.

The loader's items and batches are numpy and nothing in it computes with torch, so beside JAX torch stays what it is
here: a reader, with one thread of its own, and no second runtime that competes for the cores.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from detente.records.fault import UsageFault

Batch = dict[str, np.ndarray]


class Rows(Dataset[Batch]):
    """The rows of prepared batches, in order: item i is {entry: array without the batch axis}.

    batches   equal entries, equal shapes; the first axis of every entry is the batch axis

    Raises UsageFault when the entries of a batch disagree about its number of rows.

    >>> rows = Rows([{"x": np.zeros((2, 3)), "y": np.arange(2)}])
    >>> len(rows), rows[1]["x"].shape, int(rows[1]["y"])
    (2, (3,), 1)
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        extents = {name: a.shape[0] if a.ndim else 0 for name, a in batches[0].items()}
        if len(set(extents.values())) != 1 or 0 in extents.values():
            told = ", ".join(f"{n} has {e}" for n, e in extents.items())
            raise UsageFault(
                f"a loader feeds rows, and this batch has no common number of them: {told}",
                "give every entry the batch as its first axis, or measure with resident batches",
            )
        self.batches = list(batches)
        self.extent = next(iter(extents.values()))

    def __len__(self) -> int:
        return self.extent * len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number, row = divmod(index, self.extent)
        return {name: array[row] for name, array in self.batches[number].items()}


def stack(rows: Sequence[Batch]) -> Batch:
    """Rows to a batch; the ``collate_fn`` that keeps numpy numpy."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def pinnable(rows: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """Rows to a batch of tensors, which a loader can move to page-locked memory."""
    return {name: torch.from_numpy(array) for name, array in stack(rows).items()}


class Around:
    """Row numbers of batch after batch, without an end: a loader whose data set ends lets its workers run dry there,
    and a handful of batches would end all the time."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.extent = len(rows), rows.extent

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            for start in range(0, self.rows, self.extent):
                yield list(range(start, start + self.extent))


def make_loader(batches: Sequence[Batch], workers: int = 0, *, pin: bool = False) -> DataLoader[Any]:
    """A DataLoader that gives the prepared batches back, row by row collated, in their order, around and around.

    workers  processes that collate; they run on the cores of this one. 0: whoever asks collates
    pin      batches are tensors in page-locked memory, from which a device copies without a detour
    """
    rows = Rows(batches)
    return DataLoader(
        rows,
        batch_sampler=Around(rows),
        collate_fn=pinnable if pin else stack,
        num_workers=workers,
        pin_memory=pin,
        # Not forked: this process may run threads of JAX, whose locks a fork copies as they are.
        multiprocessing_context="spawn" if workers else None,
    )


class Feed:
    """An endless iterator over a loader's batches, read ahead by one thread.

    loader   anything that can be iterated again and again and gives batches; a DataLoader
    ahead    batches that may wait, read but not taken

    ``next`` waits for a batch, and raises what the loader raised. Use it in a ``with``: leaving it ends the thread.

    >>> with Feed([{"x": np.zeros(2)}]) as feed:
    ...     [next(feed)["x"].shape for _ in range(3)]
    [(2,), (2,), (2,)]
    """

    def __init__(self, loader: DataLoader[Any] | Sequence[Batch], ahead: int = 2) -> None:
        self._loader = loader
        self._waiting: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=ahead)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="detente-feed", daemon=True)
        self._failed: BaseException | None = None

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._failed is not None:
            raise self._failed
        if self._ended.is_set() or not self._thread.ident:
            raise RuntimeError("a feed gives batches only inside its `with`")
        found = self._waiting.get()
        if isinstance(found, BaseException):
            self._failed = found
            raise found
        return found

    def _read(self) -> None:
        try:
            while not self._ended.is_set():
                count = 0
                for batch in self._loader:
                    count += 1
                    if not self._offer(batch):
                        return
                if not count:
                    raise UsageFault("the loader is empty", "give it a data set with at least one batch")
        except BaseException as error:
            self._offer(error)

    def _offer(self, item: Batch | BaseException) -> bool:
        """Put it in the queue; False when the feed ended while the queue was full."""
        while not self._ended.is_set():
            try:
                self._waiting.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False
