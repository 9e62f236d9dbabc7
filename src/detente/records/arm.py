"""An arm: what is otherwise in a row than in the stack's own, so that one cause of its time can be told from others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from detente.records.fault import UsageFault

# A list of stacks is cut at ",", and an A/A twin at "#": neither may be in a name. A key of a cell is cut at "/", so
# that of a path (a stack of the user's, whose program another runs) only the end is shown.
_FACTOR = re.compile(r"[a-z][a-z0-9-]*")
_SETTING = re.compile(r"[A-Za-z0-9/._~-][A-Za-z0-9/._:~ -]*")
_NAMED = re.compile(r"(?P<stack>.+)\[(?P<arm>[^\[\]]*)\]")


@dataclass(frozen=True)
class Arm:
    """Factors that are set, each once, in alphabetical order; none: the stack as it is.

    A setting says what is done, ``donation=off``, and never what comes of it: that is found by the factor's check
    (stacks/factors.py). Raises ValueError for a factor that is set twice, and for a name that no key can hold.

    >>> Arm((("fusion", "off"), ("donation", "off"))).name
    'donation=off+fusion=off'
    """

    settings: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.settings))
        for factor, setting in ordered:
            if not (_FACTOR.fullmatch(factor) and _SETTING.fullmatch(setting)):
                raise ValueError(f"no arm can be called {factor[:40]!r}={setting[:40]!r}")
        if len({factor for factor, _ in ordered}) != len(ordered):
            raise ValueError(f"an arm sets a factor twice: {', '.join(f for f, _ in ordered)}")
        object.__setattr__(self, "settings", ordered)

    def __bool__(self) -> bool:
        return bool(self.settings)

    @property
    def name(self) -> str:
        """``donation=off+fusion=off``; empty for the stack as it is."""
        return "+".join(f"{factor}={setting}" for factor, setting in self.settings)

    @property
    def factors(self) -> tuple[str, ...]:
        return tuple(factor for factor, _ in self.settings)

    def get(self, factor: str) -> str | None:
        """What a factor is set to; None where it is as the stack has it."""
        return dict(self.settings).get(factor)

    @property
    def release(self) -> str:
        """Which release of the compiler is asked for; empty for the one that the stack has. Its row's versions are
        others than the stack's."""
        return self.get("compiler") or ""

    def label(self, row: str) -> str:
        """The name of a row under this arm, as a user writes it: ``jax[donation=off]``."""
        return f"{row}[{self.name}]" if self else row

    def shown(self, row: str) -> str:
        """The same as a part of a key: of a path its end.

        >>> Arm((("program", "here/stacks.py:Mine"),)).shown("jax")
        'jax[program=stacks.py:Mine]'
        """
        return Arm(tuple((f, s.rpartition("/")[2] or s) for f, s in self.settings)).label(row)

    def only(self, factors: Iterable[str]) -> Arm:
        """The same with no other factors set than these."""
        kept = frozenset(factors)
        return Arm(tuple(s for s in self.settings if s[0] in kept))


NO_ARM = Arm()


def arm_of(settings: Mapping[str, str]) -> Arm:
    """An arm of a mapping."""
    return Arm(tuple(settings.items()))


def read_arm(named: str) -> tuple[str, Arm]:
    """A stack as a user names it under an arm, ``jax[donation=off+fusion=off]``, as (stack, arm).

    Raises UsageFault where what stands in the brackets is no arm.

    >>> read_arm("jax[donation=off]")
    ('jax', Arm(settings=(('donation', 'off'),)))
    """
    found = _NAMED.fullmatch(named)
    if found is None:
        return named, NO_ARM
    parts = [part.partition("=") for part in found["arm"].split("+")]
    try:
        return found["stack"], Arm(tuple((factor, setting) for factor, _, setting in parts))
    except ValueError as error:
        raise UsageFault(
            f"{named!r} names no arm: {error}",
            "an arm is factors and what they are set to: jax[donation=off]",
        ) from None
