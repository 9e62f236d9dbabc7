"""A program that another framework wrote, as a function of JAX: HLO to StableHLO, and that into ``jax.jit``. Private
parts of jax, in one place (tested with jax 0.10.2). ``self_test`` says what a new jax has moved.

The program is called through ``jax.export``'s own record of an exported function, so that everything behind it (jit,
donation, options of the compiler, dispatch, caches) is what JAX's own step goes through.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

TESTED = ("0.10.2",)


def callable_of(hlo: bytes, platform: str) -> tuple[Any, list[Any], list[Any]]:
    """(a function of positional arrays that returns a list, what it takes, what it gives) of a serialised
    HloModuleProto whose entry returns a tuple. The last two are ``jax.ShapeDtypeStruct``. Raises RuntimeError where
    this jax cannot."""
    import jax
    from jax import export

    module = _parsed(hlo)
    taken, given = _types(module)
    leaves, results = jax.tree.structure(((0,) * len(taken), {})), jax.tree.structure([0] * len(given))
    values = {
        "fun_name": "foreign",
        "in_tree": leaves,
        "in_avals": tuple(_aval(t) for t in taken),
        "out_tree": results,
        "out_avals": tuple(_aval(t) for t in given),
        "_has_named_shardings": False,
        "_in_named_shardings": (None,) * len(taken),
        "_out_named_shardings": (None,) * len(given),
        "in_shardings_hlo": (None,) * len(taken),
        "out_shardings_hlo": (None,) * len(given),
        "nr_devices": 1,
        "platforms": (platform,),
        "ordered_effects": (),
        "unordered_effects": (),
        "disabled_safety_checks": (),
        "mlir_module_serialized": _serialised(module),
        "calling_convention_version": export.maximum_supported_calling_convention_version,
        "module_kept_var_idx": tuple(range(len(taken))),
        "uses_global_constants": False,
        "_get_vjp": None,
    }
    wanted = {f.name for f in dataclasses.fields(export.Exported)}
    missing = wanted - values.keys()
    if missing:
        raise RuntimeError(
            f"jax {jax.__version__} has an exported function with {', '.join(sorted(missing))}"
        )
    record = export.Exported(**{k: v for k, v in values.items() if k in wanted})
    return record.call, taken, given


def _parsed(hlo: bytes) -> Any:
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    found = xla_client._xla.mlir.hlo_to_stablehlo(hlo)
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        return ir.Module.parse(found)


def _serialised(module: Any) -> bytes:
    from jaxlib.mlir.dialects import stablehlo

    with module.context:
        return stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())


def _types(module: Any) -> tuple[list[Any], list[Any]]:
    from jaxlib.mlir import ir

    for operation in module.body.operations:
        if (
            operation.operation.name == "func.func"
            and ir.StringAttr(operation.attributes["sym_name"]).value == "main"
        ):
            kind = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
            return [_shape(t) for t in kind.inputs], [_shape(t) for t in kind.results]
    raise RuntimeError("the program has no function called main")


def _shape(kind: Any) -> Any:
    import jax
    from jaxlib.mlir import ir

    tensor = ir.RankedTensorType(kind)
    return jax.ShapeDtypeStruct(tuple(tensor.shape), _DTYPES[str(tensor.element_type)])


_DTYPES = {
    "f64": np.dtype("float64"), "f32": np.dtype("float32"), "f16": np.dtype("float16"), "i64": np.dtype("int64"),
    "i32": np.dtype("int32"), "i16": np.dtype("int16"), "i8": np.dtype("int8"), "ui8": np.dtype("uint8"),
    "ui32": np.dtype("uint32"), "ui64": np.dtype("uint64"), "i1": np.dtype("bool"),
}  # fmt: skip


def _aval(shape: Any) -> Any:
    from jax._src import core

    return core.ShapedArray(shape.shape, shape.dtype)


def self_test() -> list[str]:
    """What does not do as this file says; empty when all is well."""
    import jax
    import jax.numpy as jnp

    a, b = np.ones((3, 5), np.float32), np.full((5, 7), 2, np.float32)
    try:
        hlo = jax.jit(lambda x, y: (x @ y, x)).lower(a, b).compiler_ir("hlo").as_serialized_hlo_module_proto()
        call, taken, given = callable_of(hlo, jax.default_backend())
        product, same = jax.jit(call)(jnp.asarray(a), jnp.asarray(b))
        shapes = [tuple(s.shape) for s in (*taken, *given)]
        if (
            shapes != [(3, 5), (5, 7), (3, 7), (3, 5)]
            or not np.array_equal(product, a @ b)
            or not np.array_equal(same, a)
        ):
            return [
                f"jax {jax.__version__} (tested: {', '.join(TESTED)}): a program of HLO gave another result"
            ]
    except Exception as error:
        return [f"jax {jax.__version__} (tested: {', '.join(TESTED)}): {type(error).__name__}: {error}"]
    return []
