"""What a timing process says of its window: where state was handed out, and what its first steps left behind."""

from __future__ import annotations

from dataclasses import dataclass

from detente.records.sample import Sample
from detente.records.tensor_error import TensorError

# Behind so many steps roundings have grown into something of their own: of 814 small steps a fair JAX row was off by
# 4.5 % in one second moment, where two eager runs that share their kernels were off by 1 %. More runs tell how far fair
# ones go, and steps of which a sample holds so many take no time. Runs that differ in the order of rows alone share
# their kernels: behind 88 steps of a small ViT six of them lay within 0.7 % where the bridge was fairly 2.9 % off.
MANY_STEPS = 64


@dataclass(frozen=True)
class HandOut:
    """One time that the harness asked for results inside the window.

    at        samples that had been taken before it: sample ``at`` is the first one after it
    wall_ns   nanoseconds that it took, and ``cpu_ns`` of processor time
    copy_ns   what a copy of as much takes where both ends are the harness's own: what the stack gave may run its code
              while it is copied, or be slow to copy on purpose. Older sessions: what copying the answer itself took
    tensors   how many there were; 0 where nobody counted (before 28 November)
    """

    at: int
    wall_ns: int
    cpu_ns: int = 0
    copy_ns: int = 0
    tensors: int = 0


@dataclass(frozen=True)
class Replay:
    """A stretch of the window that the reference took again, from the state that was handed out before it.

    first    samples that had been taken before it
    steps    steps of the stretch
    errors   of every parameter, buffer and moment that it changed; ``err_ref`` is the largest error of eager runs from
             the same state: of two whose batches have their rows in different order, of nine behind ``MANY_STEPS``
    reason   why it could not be taken again; empty when it was
    refused  why what was handed out is no evidence at all (it was changed behind the window); such a row is void
    loss     of one of its steps, drawn by the harness; None in older sessions
    """

    first: int
    steps: int
    errors: tuple[TensorError, ...] = ()
    reason: str = ""
    refused: str = ""
    loss: TensorError | None = None


@dataclass(frozen=True)
class Window:
    """The steady window of one timing process.

    proved     steps from the loaded weights, the three timed ones included, after which the state was compared with the
               fp64 reference; 0 where the region has no state
    warm_ns    the steps that lead there: timed like the rest, and no samples, because they follow a known path
    errors     what was compared then; ``err_ref`` is the larger error of two eager runs
    loss       of the last of these steps; None where there is no state, and in older sessions
    hand_outs  in order
    fresh      a queue of batches that no step had seen, and ``seen``: queues of as many that had been seen, right
               before and after it. Where a state moves, both are single steps in turns, added up, and ``singly`` the
               median step on a seen batch and on a fresh one
    parent_wall_ns, parent_cpu_ns
               the same window by the parent's own clock and by the kernel's account of the process: from the message
               that it begins to the message that it is over. 0 where nobody looked
    fresh_place_ns, seen_place_ns
               what placing a fresh batch took, and one that had been placed before, and
               ``fresh_place_cpu_ns``, ``seen_place_cpu_ns`` of processor time
    placing_ns, placing_cpu_ns
               all of that placing, where it was part of the window: fresh batches are placed right before their queue
    replays    the stretches that were taken again, in one process of each row; a session keeps them as a record of
               their own (``Evidence.replays``), and the judge joins the two
    disorder   what the parent heard of phases that cannot be (a window that ends twice), in words; empty in order
    kept       what the process said behind its window of what it handed out, as the parent heard it: the SHA-256 of
               what lies on the disk, or why nothing does. Said twice, it is somebody else's word
    """

    proved: int = 0
    warm_ns: int = 0
    warm_cpu_ns: int = 0
    errors: tuple[TensorError, ...] = ()
    hand_outs: tuple[HandOut, ...] = ()
    parent_wall_ns: int = 0
    parent_cpu_ns: int = 0
    replays: tuple[Replay, ...] = ()
    fresh: Sample | None = None
    seen: tuple[Sample, ...] = ()
    singly: tuple[Sample, ...] = ()
    fresh_place_ns: int = 0
    seen_place_ns: int = 0
    fresh_place_cpu_ns: int = 0
    seen_place_cpu_ns: int = 0
    loss: TensorError | None = None
    placing_ns: int = 0
    placing_cpu_ns: int = 0
    disorder: str = ""
    kept: tuple[str, ...] = ()
