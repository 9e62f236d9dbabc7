"""Updates of a lowered step in the compiler's order: StableHLO in, StableHLO out.

An update writes its parameter in place. XLA's CPU compiler puts instructions in order after it has decided what is
copied, and takes only what depends on each other to be in order: a product that reads a weight for the gradient in
front of it does not lead to that weight's own update, so that the weight would be copied, twice. So the update waits:
the results of what reads its parameter become operands of the call, which nobody looks at.

How it can fail: a parameter that is read by arithmetic alone (a norm's weight) is copied where that arithmetic is not
before its gradient. Such parameters are small; waiting would keep in memory what is fused away.
"""

from __future__ import annotations

from typing import Any

from detente.bridge.kernels.passes import UPDATE
from detente.bridge.private import mlir as ir

# Through these a parameter is read by others.
_SEEN_THROUGH = frozenset(
    {
        "stablehlo.transpose", "stablehlo.reshape", "stablehlo.convert", "stablehlo.reverse", "stablehlo.slice",
        "stablehlo.pad", "stablehlo.concatenate", "stablehlo.broadcast_in_dim",
    }
)  # fmt: skip
# What reads a parameter, and whose results are in memory.
_WAITED_FOR = frozenset(
    {
        "stablehlo.dot_general", "stablehlo.convolution", "stablehlo.custom_call", "stablehlo.while", "stablehlo.case",
        "stablehlo.if", "stablehlo.gather", "stablehlo.scatter", "stablehlo.reduce", "func.call",
    }
)  # fmt: skip


def order(module: Any) -> tuple[int, ...]:
    """Updates of ``module`` (an MLIR module of StableHLO, changed in place) wait for whatever reads their parameters.
    The keys of their loops."""
    with module.context, ir.Location.unknown():
        main = next(
            op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main"
        )
        (block,) = main.regions[0].blocks
        ops = list(block.operations)
        calls = [i for i, op in enumerate(ops) if _is_update(op)]
        if not calls:
            return ()
        at = {op.operation: i for i, op in enumerate(ops)}
        behind = _behind(ops, at)
        keys = [_number(ops[i], "key") for i in calls]
        for i in calls:
            waits = [
                next(filter(_is_array, ops[reader].results))
                for reader in sorted(_readers(ops[i].operands[0], at))
                # It is no result of the update's own, is not before it anyhow, and stands in front of it.
                if reader < i and not behind[i] >> reader & 1 and not behind[reader] >> i & 1
            ]
            if waits:
                _waiting(ops[i], waits)
    return tuple(dict.fromkeys(keys))


def _is_update(op: Any) -> bool:
    return (
        op.operation.name == "stablehlo.custom_call"
        and ir.StringAttr(op.attributes["call_target_name"]).value == UPDATE
    )


def _number(op: Any, name: str) -> int:
    return int(ir.IntegerAttr(ir.DictAttr(op.attributes["mhlo.backend_config"])[name]))


def _behind(ops: list[Any], at: dict[Any, int]) -> list[int]:
    """Of each operation a set, as bits, of those that it depends on."""
    found: list[int] = []
    for op in ops:
        mine = 0
        for value in _read(op):
            if isinstance(value.owner, ir.Block):
                continue
            place = at.get(value.owner)
            if place is not None:
                mine |= found[place] | 1 << place
        found.append(mine)
    return found


def _read(op: Any) -> list[Any]:
    """Operands, those inside its regions among them."""
    values = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                values += _read(inner)
    return values


def _readers(value: Any, at: dict[Any, int]) -> set[int]:
    """Places of the operations that are waited for."""
    found: set[int] = set()
    for use in value.uses:
        op = use.owner.operation
        while op not in at and op.parent is not None:  # inside of a branch or a loop
            op = op.parent.operation
        if op not in at:
            continue
        if op.name in _SEEN_THROUGH:
            found |= _readers(op.results[0], at)
        elif op.name in _WAITED_FOR and any(map(_is_array, op.results)):
            found.add(at[op])
    return found


def _is_array(value: Any) -> bool:
    return str(value.type).startswith("tensor<")


def _waiting(op: Any, values: list[Any]) -> None:
    """The same call with more operands."""
    attributes = {name: op.attributes[name] for name in _names(op)}
    layouts = list(ir.ArrayAttr(attributes["operand_layouts"]))
    index = ir.IndexType.get()
    for value in values:
        rank = ir.RankedTensorType(value.type).rank
        layouts.append(
            ir.DenseIntElementsAttr(
                ir.Attribute.parse(f"dense<{list(range(rank))[::-1]}> : tensor<{rank}x{index}>")
            )
        )
    attributes["operand_layouts"] = ir.ArrayAttr.get(layouts)
    made = ir.Operation.create(
        "stablehlo.custom_call",
        results=[r.type for r in op.results],
        operands=[*op.operands, *values],
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.operation.erase()


def _names(op: Any) -> list[str]:
    return [a.name if hasattr(a, "name") else a for a in op.attributes]
