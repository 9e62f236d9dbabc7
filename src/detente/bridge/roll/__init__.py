"""Rolling: repeated runs of nodes, found by structure alone, become one ``detente.roll`` node.

``find``, ``fold``, ``at_once`` and ``stacks`` are pure functions over the neutral graph; ``lower`` alone imports jax.
"""
