"""A JAX step, written down so that another row can run it (jax_exported.py): HLO over flat arrays, so that no tree of
another's has to be known by name. (``jax.export`` would write it, too, and needs flatbuffers for it.)"""

from __future__ import annotations

from typing import Any

from detente.stacks.protocol import Capture

FORM = "exported"


def exported(jax: Any, jitted: Any, arguments: tuple[Any, ...]) -> tuple[Capture, ...]:
    """The step as another row can run it; empty where it calls Python back, which lives in this process, and where it
    takes what is no plain array."""
    leaves, tree = jax.tree.flatten(arguments)

    def flat(*given: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(jitted(*jax.tree.unflatten(tree, given))))

    if any(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in leaves):
        return ()
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    program = jax.jit(flat, keep_unused=True).lower(*shapes).compiler_ir("hlo")
    written = program.as_serialized_hlo_module_proto()
    return () if b"_python_" in written and b"callback" in written else (Capture(FORM, "step", written),)
