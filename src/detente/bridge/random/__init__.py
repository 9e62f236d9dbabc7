"""One source of random numbers for every form of a step: the same bits in JAX and in eager PyTorch.

``keys`` (JAX) and ``threefry`` (torch) make the same numbers; ``twin(seed, count)`` is the context in which
eager PyTorch draws those of step ``count``.
"""

from detente.bridge.random.mode import twin

__all__ = ["twin"]
