"""Numerics: do both sides compute the same function, with the same numbers, at the same precision?"""

from __future__ import annotations

from collections.abc import Iterator

from detente.judge.parity import relative_floor
from detente.judge.rules.narrow_sums import LONG_SUM, long_sums, told
from detente.judge.rules.rule import Group, Hit, Row, Rule, each
from detente.records.precision import PRECISIONS

# Losses of rows that were held against no reference at their own size: so many times the floor of a loss. A judgement:
# wide enough for three steps of AdamW on rounding noise, and four of six tiny layers left out are seen
# (tests/session/test_unreferenced.py).
LOSSES = 16
# Share of the products (by FLOPs) whose operand dtype may differ from the declared one.
PRODUCT_SHARE = 0.02
# Operands that make any product of a wide contract another computation, whatever its share; and those whose products
# round nothing: they count, or say which. Eight bits and fewer are what products are quantised to.
NARROW = ("bfloat16", "float16", "f8", "f4")
EXACT = frozenset({"s16", "s32", "s64", "u16", "u32", "u64", "pred", "int16", "int32", "int64", "bool"})

_DTYPE = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16",
    "double": "float64", "float": "float32", "half": "float16", "tf32": "float32",
}  # fmt: skip


def _losses(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if any(p.evidence.errors for p in row.fine):
        return  # every tensor was held against a reference
    first = next((r for r in group.rows if any(p.evidence.losses for p in r.fine)), None)
    if first is None or first.cell == row.cell:
        return
    right = next(p.evidence.losses for p in first.fine if p.evidence.losses)
    allowed = LOSSES * relative_floor(PRECISIONS[row.cell.contract.precision], "loss")
    for process in row.fine:
        for step, (loss, other) in enumerate(zip(process.evidence.losses, right, strict=False), 1):
            if not abs(loss - other) <= allowed * abs(other):
                yield (
                    f"the loss of step {step} in block {process.block + 1} is {loss:.7g}, that of {first.cell.label} "
                    f"{other:.7g}: {allowed:.2g} of it is allowed",
                    {"block": process.block, "step": step, "loss": loss, "other": other},
                )
                return


def _precision(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    declared = PRECISIONS[row.cell.contract.precision].product
    for found in row.every("precision"):
        if found.get("class") != declared:
            yield (
                f"products run in {found.get('class')} on this device, "
                f"`{row.cell.contract.precision}` asks for {declared}",
                {"class": found.get("class"), "value": found.get("value"), "declared": declared},
            )
            return


def operand_shares(product_dtypes: dict) -> dict[str, float]:
    """The share of products by operand dtype, of those that round. Keys are dtypes as a program writes them (``f32``,
    ``bfloat16``, ``f32xf32->f32``), values their FLOPs or counts; of a mixed product the narrowest operand is what
    counts.

    >>> operand_shares({"f32": 3, "bf16xf32": 1, "s32": 9})
    {'float32': 0.75, 'bfloat16': 0.25}
    """
    width = {"float64": 4, "float32": 3, "bfloat16": 1, "float16": 1}
    total: dict[str, float] = {}
    for key, amount in product_dtypes.items():
        operands = (
            str(key).lower().split("->")[0].replace("×", "x").replace("*", "x").replace(",", "x").split("x")
        )
        names = [_DTYPE.get(o.strip(), o.strip()) for o in operands if o.strip()]
        if names and EXACT.issuperset(names):
            continue
        narrowest = min(names, key=lambda name: width.get(name, 2), default=str(key))
        total[narrowest] = total.get(narrowest, 0.0) + float(amount)
    whole = sum(total.values())
    return {name: amount / whole for name, amount in total.items()} if whole else {}


def _products(row: Row, key: str) -> dict | None:
    """FLOPs of a program's products by operand dtype; of one that was measured before 28 November, their number."""
    flops = row.get(f"{key}.product_flops")
    return flops if flops and any(flops.values()) else row.get(f"{key}.product_dtypes")


def _product_dtypes(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    declared = PRECISIONS[row.cell.contract.precision].compute
    products = _products(row, "program") or row.get("observed.product_dtypes") or {}
    shares = operand_shares(products)
    other = {name: share for name, share in shares.items() if name != declared}
    # A narrow product in a wide contract is a different computation whatever its share: it changes the numbers.
    # A wide one in a narrow contract is a matter of policy (autocast keeps some), and counts from 2 % on.
    narrow = [n for n in other if declared in ("float32", "float64") and n.startswith(NARROW)]
    if narrow or sum(other.values()) > PRODUCT_SHARE:
        listed = ", ".join(f"{100 * share:.3g} % in {name}" for name, share in sorted(other.items()))
        yield (
            f"products: {listed}; `{row.cell.contract.precision}` asks for {declared}",
            {"product_dtypes": products},
        )


def _widened(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    declared = PRECISIONS[row.cell.contract.precision].compute
    products = _products(row, "compiled") or {}
    wide = {
        n: s for n, s in operand_shares(products).items() if n in ("float32", "float64") and n != declared
    }
    if sum(wide.values()) > PRODUCT_SHARE:
        listed = ", ".join(f"{100 * share:.3g} % in {name}" for name, share in sorted(wide.items()))
        yield (
            f"the compiler computes products of {declared} operands wide here: {listed}",
            {"product_dtypes": products},
        )


def _narrow_sums(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if found := long_sums(row):
        yield f"{told(found)}; a sum of PyTorch's adds in float32", {"narrow_sums": found}


def _function(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    parity = row.parity
    if parity is not None and "failed" in (parity.same_function, parity.same_precision):
        worst = parity.worst
        yield (
            parity.reason,
            {
                "same_function": parity.same_function,
                "same_precision": parity.same_precision,
                "tensor": f"{worst.kind} {worst.name}" if worst else "",
                "share": parity.share,
            },
        )


def _repeats(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    allowed = relative_floor(PRECISIONS[row.cell.contract.precision], "gradient")
    worst = max(row.every("repeat.max_rel"))
    if not worst <= allowed:
        yield (
            f"the same step from the same state differs by {worst:.2g} from run to run; "
            f"the proof's floor is {allowed:.2g}",
            {"max_rel": worst, "floor": allowed},
        )


def _modes(group: Group) -> Iterator[Hit]:
    # No vote: the reference that every row is proved against repeats itself, so it is the row that draws which departs
    # from it, were it the only one that does not.
    draws = {row.cell.key: _draws(row) for row in group.rows}
    if all(draws.values()):
        return
    for row in group.rows:
        count = draws[row.cell.key]
        if count:
            yield Hit(
                row,
                f"a step draws random numbers ({count} operations), and the step that it is proved against draws none",
                {"random_ops": count},
            )


def _draws(row: Row) -> int:
    return int(row.get("program.rng_ops") or row.get("observed.random_ops") or 0)


def _weights(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        for found in row.every("weights"):
            if found.get("hash") != found.get("reference_hash"):
                yield Hit(
                    row,
                    f"weights read back have the hash {str(found.get('hash'))[:12]}, the prepared ones "
                    f"{str(found.get('reference_hash'))[:12]}",
                    dict(found),
                )
                break
            held, prepared = found.get("count"), found.get("reference_count", found.get("count"))
            if held != prepared:
                yield Hit(
                    row,
                    f"the stack holds {held} tensors of weights, prepared are {prepared}",
                    dict(found),
                )
                break


def _denormals(group: Group) -> Iterator[Hit]:
    keeping = [row.cell.label for row in group.rows if row.get("precision.denormals") is True]
    for row in group.rows:
        if keeping and row.get("precision.denormals") is False:
            yield Hit(
                row,
                f"products flush denormal numbers to 0 here, and keep them in {', '.join(sorted(keeping))}",
                {"denormals": False, "keeping": sorted(keeping)},
            )


RULES = (
    Rule(
        code="precision-differs",
        alias="P3",
        family="numerics",
        severity="void",
        title="The effective precision of products is another one",
        what="Matrix products run at a precision that the contract does not declare, whatever the flags say.",
        why="fp32 products run as TF32 by default in JAX and TensorFlow on recent GPUs and as fp32 in PyTorch; up "
        "to eight times the arithmetic rate for three digits of precision. A flag can be ignored (jax issue 14022).",
        evidence=("precision",),
        detected="A product whose result tells the classes apart runs on the device, through the path of the "
        "workload's own products; its class must be the one that the contract's precision names.",
        fix="Set the precision on every side: torch.set_float32_matmul_precision('highest'), "
        "jax_default_matmul_precision='highest'; or measure the contract at `--precision tf32` on every side.",
        waive="Never inside one contract; a precision that the device lacks is skipped with the reason.",
        example="full(1024, 1024, 1.0001) @ ones: 1024.0 means TF32, about 1024.1 means fp32",
        cpu=False,
        check=each(_precision),
    ),
    Rule(
        code="product-dtypes-differ",
        alias="P4",
        family="numerics",
        severity="void",
        title="Reduced precision in some products only",
        what="Some products of the program have operands of another dtype than the contract declares.",
        why="Autocast, cast weights and bf16 everywhere are three different computations under one name, and one "
        "product left in bf16 makes fp32 look fast.",
        evidence=("program.product_dtypes|observed.product_dtypes",),
        detected="Operand dtypes of every dot and convolution, by share of the FLOPs: of the captured program, or of "
        "an eager step. Any bf16, fp16 or fp8 operand under fp32, or over 2 % of another dtype than declared, voids "
        "the row. Products of integers of 16 bits and more round nothing, and are left out.",
        fix="Cast at the same places on every side, or none at all.",
        waive="When the policy is the question: under a contract that names it.",
        example="y = (x.astype(bf16) @ w.astype(bf16)).astype(f32)   # in one of 49 products",
        cpu=False,
        check=each(_product_dtypes),
    ),
    Rule(
        code="products-widened",
        alias="P48",
        family="numerics",
        severity="warn",
        title="Narrow products are computed wide",
        what="The program asks for products of bf16 operands, and the compiler converts them to float32 first.",
        why="It is no other function (it rounds less), but it is not what a narrow contract is chosen for: every "
        "weight is converted in every step, and the products run at float32's rate. XLA's CPU compiler does so: a row "
        "reads `bf16` and is slower than in fp32.",
        evidence=("compiled.product_dtypes",),
        detected="Operand dtypes of every dot and convolution of the optimised program, by share of the FLOPs; over "
        "2 % wider than declared. A library call that hides its product is not seen.",
        fix="A device or a compiler with narrow products; on this one compare in fp32.",
        waive="When the memory is the question, and not the time.",
        example="dot(bf16, bf16) becomes dot(convert(bf16 -> f32), convert(bf16 -> f32)) on a CPU",
        cpu=True,
        check=each(_widened),
        applies=lambda row: PRECISIONS[row.cell.contract.precision].narrow_products,
    ),
    Rule(
        code="sums-narrow",
        alias="P49",
        family="numerics",
        severity="warn",
        title="Sums are added in half precision",
        what="The program adds the terms of a long sum in bfloat16 or float16, and rounds after every term.",
        why="PyTorch adds a sum of bfloat16 in float32 and rounds once, and so do products everywhere; `jnp.sum` does, "
        "too. The derivative of a broadcast does not: JAX writes the gradient of a bias as a bfloat16 reduction over "
        "all tokens, and XLA's CPU compiler adds it so: 0.7 % off at 64 terms and 1.1 % at 4,096, where one rounding "
        "is 0.16 % (and 7 % without that compiler's tree of partial sums). Behind about 1,000 tokens the proof of the "
        "precision voids the row, and says this beside it.",
        evidence=("program.narrow_sums",),
        detected=f"Reductions of the captured program whose body adds bf16 or f16, over {LONG_SUM} terms or more.",
        fix="Let the sum be taken in float32: `(product + bias.astype(float32)).astype(bfloat16)`, where the product "
        "was asked for with `preferred_element_type=float32`; or compare in fp32.",
        waive="When every row of the group adds so.",
        example="y = x @ w + b   # all bfloat16, 4,096 rows: b's gradient is reduce(bf16[4096, n], add in bf16)",
        cpu=True,
        check=each(_narrow_sums),
        applies=lambda row: (
            row.compiled != "none" and PRECISIONS[row.cell.contract.precision].narrow_products
        ),
    ),
    Rule(
        code="not-the-same-function",
        alias="P5",
        family="numerics",
        severity="void",
        title="It is not the same function",
        what="Loss, outputs, gradients or updates differ from the fp64 reference by more than rounding explains.",
        why="erf-GELU for tanh-GELU, a LayerNorm epsilon of 1e-6 for 1e-5: both pass an absolute tolerance of 0.5, "
        "the epsilon passes rtol 1e-3 too, and both make the ratio a comparison of two models.",
        evidence=("parity",),
        detected="Two levels. Size tiny in fp64: relative error at most 1e-9 on loss, outputs, every gradient and "
        "three updates. The timed process at its own precision: err <= 4 x torch-eager's own error + floor.",
        fix="The finding names the first tensor that differs: compare the two definitions there.",
        waive="Never. A stack without fp64 on its device inherits the first level from its CPU run and says so.",
        example="jax.nn.gelu(x, approximate=True) against torch.nn.GELU()",
        cpu=True,
        check=each(_function),
    ),
    Rule(
        code="losses-apart",
        alias="P47",
        family="numerics",
        severity="void",
        title="Its losses are not the other rows'",
        what="A row whose model is too large for an fp64 reference has other losses at its full size than the first.",
        why="Such a row is proved with two of every kind of layer. What is timed has more of them, and a program that "
        "leaves some out there would pass the proof and be faster.",
        evidence=("processes",),
        detected="Where no process of a row was held against a reference at its own size: each loss of the three timed "
        "steps against the same of the first row of the table, within 16 floors of a loss (1.2e-4 in fp32).",
        fix="Compare the two definitions at the full size, layer by layer; look for a limit on the number of layers.",
        waive="Never.",
        example="for block in self.blocks[:2]: x = block(x)",
        cpu=True,
        check=each(_losses),
    ),
    Rule(
        code="reference-not-deterministic",
        alias="P6",
        family="numerics",
        severity="warn",
        title="The same step gives different numbers",
        what="Running the same step twice from the same state gives results that differ by more than the floor of "
        "the proof.",
        why="A reference that moves proves nothing; atomics in a scatter are the usual cause.",
        evidence=("repeat",),
        detected="The step runs twice from the same state; the largest relative difference must stay under the "
        "floor that the proof allows (64 eps in fp32).",
        fix="torch.use_deterministic_algorithms(True), --xla_gpu_deterministic_ops=true, or say that it is noise.",
        waive="When every side uses the same atomics and the proof passes all the same.",
        example="index_add_ on CUDA",
        cpu=True,
        check=each(_repeats),
    ),
    Rule(
        code="modes-differ",
        alias="P7",
        family="numerics",
        severity="void",
        title="Dropout, batch statistics or random draws on one side only",
        what="One side trains and the other evaluates, or one side drops and draws random numbers.",
        why="Random numbers cost time (threefry more than Philox), and evaluation mode skips the batch statistics.",
        evidence=("program.rng_ops|observed.random_ops",),
        detected="Random operations of the captured program (its own, a library's, or the arithmetic of Threefry and "
        "Philox, whatever they are called), or of a step read operator by operator. Where some rows "
        "draw and others do not, those that draw are void: the reference repeats itself, so it draws nothing. Batch "
        "statistics are among the tensors that the proof compares.",
        fix="Set the same mode and the same dropout rate on every side; 0 for a proof.",
        waive="Never within a group.",
        example="model.train() on one side, deterministic=True on the other",
        cpu=True,
        check=_modes,
    ),
    Rule(
        code="weights-differ",
        alias="P8",
        family="numerics",
        severity="void",
        title="Other weights, another layout or an untied parameter",
        what="The tensors read back after loading are not the prepared ones, or there are more or fewer of them.",
        why="A dropped tie between embedding and head adds 38 million parameters to GPT-2 Small and 154 MB of "
        "optimizer traffic; a transposed square matrix keeps every shape and changes every number.",
        evidence=("weights",),
        detected="A canonical hash over names, shapes and values after load and read-back, against the prepared "
        "file, and the number of tensors that the stack holds.",
        fix="Map every name once, tied names to one array; the weight map of the workload is where it goes wrong.",
        waive="Never.",
        example="lm_head.weight loaded apart from wte.weight",
        cpu=True,
        check=_weights,
    ),
    Rule(
        code="denormals-differ",
        alias="P43",
        family="numerics",
        severity="warn",
        title="Denormal numbers are flushed on one side only",
        what="Numbers below the smallest normal one (1.2e-38 in float32) become 0 on one side and are kept on the "
        "other.",
        why="A processor may take a hundred times as long for a product with a denormal. JAX sets the flag that "
        "flushes "
        "them on a CPU, PyTorch does not: a model whose activations or moments decay that far runs at two speeds.",
        evidence=("precision.denormals",),
        detected="A product of 1e-40 and 1 on the stack's device is 1e-40 or 0. Rows that flush beside rows that keep "
        "are said.",
        fix="torch.set_flush_denormal(True), or data that does not decay to nothing.",
        waive="When no tensor comes near 1e-38, as in ordinary training.",
        example="torch.tensor(1e-40) * 1 is 1e-40, jax.numpy.float32(1e-40) * 1 is 0",
        cpu=True,
        check=_denormals,
    ),
)
