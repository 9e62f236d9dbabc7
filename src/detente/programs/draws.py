"""Which operations draw random numbers: by what they do, and not by what they are called.

JAX names a nested jit after its Python function, and a ``random_features`` whose matrix is a weight draws nothing. What
draws is an operation of HLO's own, a library's call, or a counter-based generator written out in integer arithmetic:
those are known by a constant that nothing else has (Salmon et al., "Parallel random numbers: as easy as 1,
2, 3", SC 2011).

How it can fail: a generator of somebody's own (a hash of the step's number) has no such constant, and is not seen; what
it does to the numbers, the proof sees.
"""

from __future__ import annotations

from detente.programs.module import Instruction

# The parity of Threefry's key schedule, and the multipliers of Philox 4x32.
_CONSTANTS = frozenset({0x1BD11BDA, 0xD2511F53, 0xCD9E8D57})
_LIBRARIES = ("threefry2x32", "philox", "curand", "hiprand")
_OPERATIONS = ("rng", "aten.random")


def draws(one: Instruction) -> bool:
    """Whether this is where random numbers are drawn; of a generator that is written out, its constant, once a call.

    >>> from detente.programs.module import Shape
    >>> word = Shape("u32")
    >>> draws(Instruction("constant", (word,), integers=(466688986,)))
    True
    >>> draws(Instruction("call", (word,), called=("random",)))
    False
    """
    if one.opcode == "constant":
        return len(one.integers) == 1 and one.integers[0] & 0xFFFFFFFF in _CONSTANTS
    if one.opcode == "custom-call":
        return any(word in one.target.lower() for word in _LIBRARIES)
    return one.opcode.startswith(_OPERATIONS)
