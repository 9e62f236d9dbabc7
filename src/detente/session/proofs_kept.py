"""The proofs that a session read or made stay what they were, for the sessions behind it.

They lie in the cache, where every worker can write, and what stands there is believed without being asked again: a row
could write its rival's, with an error that is none, and the rival was void in every later session; or its own, without
the error that is one. A session itself is safe, because its own file has them before anything is timed.
"""

from __future__ import annotations

from detente.records.cell import Cell
from detente.records.codec import dumps
from detente.session.proofs import keep_proof, proof_file
from detente.session.underway import Underway


def put_back(under: Underway) -> None:
    """Write again what is not as this session has it, and say so. Another session may have written there, too, where a
    home is shared by machines, so that nobody is blamed for it. What is gone stays so: it is proved again."""
    session = under.ledger.session
    other: list[Cell] = []
    for process in session.processes:
        if process.kind != "prove" or process.evidence.status != "ok" or session.ran_again(process):
            continue
        file = proof_file(process.cell)
        try:
            there = file.read_text(errors="replace")
        except OSError:
            continue
        if there != dumps(process):
            keep_proof(file, process)
            other.append(process.cell)
    if other:
        under.tally.say(
            f"the cached proofs of {', '.join(c.label for c in other)} were others behind this session than in it, and "
            "are put back: a row's process can do that, or another session that shares this cache"
        )
