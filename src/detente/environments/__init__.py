"""The virtual environments of stacks whose pins do not fit beside the default ones. See README.md."""

from detente.environments.place import python_of

__all__ = ["python_of"]
