"""How far neighbouring blocks agree, measured over stored sessions. Written by ``benchmarks/block_correlation.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockCorrelation:
    """The lag-1 correlation of log ratios between one block and the next, over real sessions.

    bound        upper end of the one-sided 95 % interval of the mean over sessions: what every interval is widened by
    estimate     the mean itself, corrected for the bias of short series
    sessions, blocks   how many sessions it rests on, and how many blocks each had at least
    provisional  True while it rests on fewer than ten sessions of 15 blocks
    measured, machine, source, command   day, processor, the stored blocks, and what makes this file again
    """

    bound: float
    estimate: float
    sessions: int
    blocks: int
    provisional: bool
    measured: str
    machine: str
    source: str
    command: str


STORED = BlockCorrelation(
    bound=0.141,
    estimate=-0.007,
    sessions=10,
    blocks=15,
    provisional=False,
    measured="2026-11-23",
    machine="AMD EPYC",
    source="docs/results/block-correlation.jsonl",
    command="python benchmarks/block_correlation.py",
)
