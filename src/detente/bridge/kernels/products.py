"""Products of a lowered step by another library's kernel: StableHLO in, StableHLO out.

Rewriting happens behind the gradient and before the compiler: the forward pass, the derivatives that JAX made of it,
loops and branches hold ``dot_general`` alike, and nothing of what a policy, a certificate or another platform sees is
touched. A product is taken where both operands and the result are float32, or both operands bfloat16 (whose product is
summed in float32 and rounded once, as torch's is), and each group of its dimensions (those of the batch, those summed
over, the free ones) lies together, so that it is one matrix (or a batch of them), row by row. A transpose in front of
an operand, or the one behind the product, is read in place, and no copy is made for it.

How it can fail: XLA folds transposes into its own products too, and fuses what stands around them; what is a call keeps
its operands and its result in memory. So only products of ``LEAST`` multiplications and more are taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from detente.bridge.private import mlir as ir
from detente.bridge.private import stablehlo

TARGET = "detente_matmul"
# Multiplications. A call costs about a microsecond, which a product of this size takes.
LEAST = 1 << 16
# Rows, columns: BLAS counts in integers of 32 bits.
MOST = (1 << 31) - 1
F32, BF16 = "f32", "bf16"
# Which of a linear layer's products one is like, or that it is a batch of them, as attention's are.
# ``LONG``: one side is so many times as long as the others, as of a picture's pixels or a vocabulary.
FORWARD, OF_INPUT, OF_WEIGHT = "forward", "gradient of the input", "gradient of the weight"
BATCHED = "batched"
LONG, LONGER = ", long", 6
FORMS = (*(form + long for form in (FORWARD, OF_INPUT, OF_WEIGHT) for long in ("", LONG)), BATCHED)
EVERY = {F32: FORMS, BF16: FORMS}
# Of operands of one type: what their product may be.
_RESULTS = {F32: (F32,), BF16: (BF16, F32)}


@dataclass(frozen=True)
class Product:
    """``c[batch][m][n] = a[batch][m][k] b[batch][k][n]``; ``ta``: a is stored ``[k][m]``, ``tb``: b is ``[n][k]``."""

    batch: int
    m: int
    n: int
    k: int
    ta: bool
    tb: bool

    @property
    def form(self) -> str:
        """Which of ``FORMS`` it has. A library that is fast in one may be slow in another.

        >>> Product(1, 256, 3072, 768, ta=False, tb=True).form, Product(1, 64, 256, 12544, ta=True, tb=False).form
        ('forward', 'gradient of the weight, long')
        >>> Product(24, 64, 64, 64, ta=False, tb=True).form
        'batched'
        """
        if self.batch > 1:
            return BATCHED
        form = {(False, True): FORWARD, (True, False): OF_WEIGHT}.get((self.ta, self.tb), OF_INPUT)
        *_, second, first = sorted((self.m, self.n, self.k))
        return form + (LONG if first >= LONGER * second else "")

    @property
    def turned(self) -> Product:
        """The transposed product, of the operands in the other order."""
        return Product(self.batch, self.n, self.m, self.k, not self.tb, not self.ta)


@dataclass(frozen=True)
class Operand:
    """A value, and where of its dimensions those of the batch, the summed and the free ones are, in the order in which
    the product reads them."""

    value: Any
    batch: tuple[int, ...]
    summed: tuple[int, ...]
    free: tuple[int, ...]

    def read(self) -> tuple[Any, bool] | None:
        """The value to hand over and whether the summed dimensions come before the free ones; None where it is no batch
        of matrices, row by row. Through transposes, as far back as that goes."""
        found, here = None, self
        while here is not None:
            if (order := here._order()) is not None:
                found = here.value, order
            here = here._before()
        return found

    def _order(self) -> bool | None:
        every = tuple(range(len(self.batch) + len(self.summed) + len(self.free)))
        if self.batch + self.free + self.summed == every:
            return False
        return True if self.batch + self.summed + self.free == every else None

    def _before(self) -> Operand | None:
        """The same of what was transposed."""
        owner = self.value.owner
        if not isinstance(owner, ir.Operation | ir.OpView) or owner.name != "stablehlo.transpose":
            return None
        order = [int(d) for d in ir.DenseI64ArrayAttr(owner.attributes["permutation"])]
        batch, summed, free = (tuple(order[d] for d in dims) for dims in (self.batch, self.summed, self.free))
        return Operand(owner.operands[0], batch, summed, free)


def rewrite(
    module: Any, least: int = LEAST, of: Mapping[str, Collection[str]] = EVERY
) -> tuple[Product, ...]:
    """Products of ``module`` (an MLIR module of StableHLO, changed in place) become calls of ``TARGET``: ``of``
    operands of these types those of these forms. What became one, in the program's order."""
    with module.context, ir.Location.unknown():
        return tuple(
            made for op, kind in _products(module) if (made := _call(op, least, of.get(kind, ()))) is not None
        )


def multiplies(module: Any) -> set[str]:
    """The types of operands whose products ``rewrite`` would look at."""
    with module.context:
        return {kind for _, kind in _products(module)}


def _products(module: Any) -> list[tuple[Any, str]]:
    """Products and the type of their operands, where that is one that is taken."""
    found: list[tuple[Any, str]] = []

    def look(op: Any) -> Any:
        if op.name == "stablehlo.dot_general":
            types = [ir.RankedTensorType(value.type) for value in (*op.operands, *op.results)]
            left, right, result = (str(t.element_type) for t in types)
            if left == right and result in _RESULTS.get(left, ()) and all(t.has_static_shape for t in types):
                found.append((op, left))
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found


def _call(op: Any, least: int, forms: Collection[str]) -> Product | None:
    if not forms:
        return None
    left, right = op.operands
    (result,) = op.results
    types = [ir.RankedTensorType(value.type) for value in (left, right, result)]
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    a, b = (
        _operand(value, type_.rank, tuple(batch), tuple(summed))
        for value, type_, batch, summed in (
            (left, types[0], numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
            (right, types[1], numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
        )
    )
    of_a, of_b = a.read(), b.read()
    if of_a is None or of_b is None:
        return None

    def size(dims: tuple[int, ...], type_: Any) -> int:
        return prod(type_.shape[d] for d in dims)

    made = Product(
        size(a.batch, types[0]), size(a.free, types[0]), size(b.free, types[1]), size(a.summed, types[0]),
        of_a[1], not of_b[1],
    )  # fmt: skip
    if made.batch * made.m * made.n * made.k < least or max(made.m, made.n, made.k) > MOST:
        return None
    behind = _transposed(result, len(a.batch), len(a.free), len(b.free))
    operands = [of_a[0], of_b[0]]
    if behind is not None:
        operands, made, result = operands[::-1], made.turned, behind.results[0]
    if made.form not in forms:
        return None
    summed_in = ir.RankedTensorType.get(ir.RankedTensorType(result.type).shape, ir.F32Type.get())
    (value,) = _custom_call(op, operands, summed_in, made).results
    if value.type != result.type:
        value = stablehlo.ConvertOp(result.type, value, loc=op.location, ip=ir.InsertionPoint(op)).result
    result.replace_all_uses_with(value)
    if behind is not None:
        behind.erase()
    op.erase()
    return made


def _operand(value: Any, rank: int, batch: tuple[int, ...], summed: tuple[int, ...]) -> Operand:
    free = tuple(d for d in range(rank) if d not in batch and d not in summed)
    return Operand(value, batch, summed, free)


def _transposed(result: Any, batch: int, rows: int, columns: int) -> Any:
    """The transpose that is all that reads the product, where it turns its matrices over; else None."""
    uses = list(result.uses)
    if len(uses) != 1 or uses[0].owner.name != "stablehlo.transpose":
        return None
    owner = uses[0].owner
    order = [int(d) for d in ir.DenseI64ArrayAttr(owner.attributes["permutation"])]
    turned = [*range(batch), *range(batch + rows, batch + rows + columns), *range(batch, batch + rows)]
    return owner if order == turned else None


def _custom_call(op: Any, operands: list[Any], result: Any, made: Product) -> Any:
    whole, flag = ir.IntegerType.get_signless(64), ir.BoolAttr.get
    config = {name: ir.IntegerAttr.get(whole, getattr(made, name)) for name in ("batch", "m", "n", "k")}
    config |= {"ta": flag(made.ta), "tb": flag(made.tb)}
    attributes = {
        "call_target_name": ir.StringAttr.get(TARGET),
        "has_side_effect": flag(False),
        "backend_config": ir.DictAttr.get(config),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
    }
    return ir.Operation.create(
        "stablehlo.custom_call",
        results=[result],
        operands=operands,
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
