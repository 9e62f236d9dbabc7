"""Lowering: the neutral graph becomes a JAX function through one string-keyed table."""
