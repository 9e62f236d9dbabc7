"""What a ``Step`` shows of itself to a person: a line, and a table in a notebook.

Looks at records only. It never syncs, waits, compiles or makes a certificate, and it never raises: debuggers and
tracebacks show a step in the middle of a call too, or one that is still being made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from detente.bridge.certify.certificate import Certificate
from detente.bridge.shown import size, table

if TYPE_CHECKING:
    from detente.bridge.step.step import Step


def line(step: Step) -> str:
    """All in one line."""
    what = _what(step)
    facts = _facts(step)
    if facts is None:
        return f"<Step of {what}: between two states>"
    return f"<Step of {what}: {'; '.join(facts.values())}>"


def html(step: Step) -> str:
    """A row for each fact."""
    facts = _facts(step) or {"steps": "between two states"}
    rows = [[name, text] for name, text in facts.items()]
    return table(f"Step of {_what(step)}", rows)


def _what(step: Step) -> str:
    held = vars(step)
    return f"{type(held.get('model')).__name__}, {type(held.get('optimizer')).__name__}"


def _facts(step: Step) -> dict[str, str] | None:
    """By what they are about; None where the step is in no state that could be told of."""
    try:
        return {
            "steps": _steps(step),
            "programs": _programs(step),
            "certificate": _certificate(step),
            "state": _state(step),
            "live module": _live(step),
        }
    except Exception:
        # An attribute that is not there yet, a table that another thread changes: whoever asked wants to see
        # something else, and must not be stopped by this.
        return None


def _steps(step: Step) -> str:
    taken = step.count + (step._ran is not None)
    return f"{taken} step{'' if taken == 1 else 's'} taken"


def _programs(step: Step) -> str:
    programs = step.programs
    forms = ", ".join(f"{p.choice.form}{', cached' if p.cached else ''}" for p in programs)
    count = f"{len(programs)} program{'' if len(programs) == 1 else 's'}"
    return f"{count} ({forms})" if programs else count


def _certificate(step: Step) -> str:
    made = [c for c in step.certificates if c is not None]
    failed = [c for c in made if not c.ok]
    if failed:
        where = "is not trusted" if step._kept_nothing else "is that of before its step"
        return f"certificate {_said(failed[0])}, the state {where}"
    texts = [_said(c) for c in made]
    if step._open is not None:
        texts.append("open until the next step or the next look at the live module")
    elif not made:
        texts.append("not asked for" if step.options.certificate == "none" else "none yet")
    return "certificate " + ", ".join(dict.fromkeys(texts))


def _said(certificate: Certificate) -> str:
    rows = len(certificate.rows)
    if certificate.ok:
        return f"{certificate.level} passed for {rows} tensors"
    return f"{certificate.level} FAILED in {len(certificate.failed)} of {rows} tensors"


def _state(step: Step) -> str:
    # The optimizer's state is looked at where it lies: asked for by its name it would be made.
    leaves: list[Any] = jax.tree.leaves((step._state.values, step._state._optimizer))
    leaves = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    places = sorted({f"{d.platform}:{d.id}" for leaf in leaves for d in leaf.sharding.device_set})
    return f"state of {size(sum(leaf.nbytes for leaf in leaves))} on {', '.join(places) or 'no device'}"


def _live(step: Step) -> str:
    if step._guard.behind or step._ran is not None:
        return "live module behind, until somebody reads it"
    return "live module up to date"
