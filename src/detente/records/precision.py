"""The precisions that a contract may name, as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """What a name of precision means on every stack.

    parameters   dtype of weights and optimizer state
    compute      dtype of the operands of matrix products and convolutions (accumulation is fp32 or wider);
                 everything between products follows the framework's promotion, as torch.autocast does
    product      what the effective-precision probe must find on the device
    eps          machine epsilon of ``compute``, for the proof's floors
    regions      of a contract that it may be asked for
    """

    name: str
    parameters: str
    compute: str
    product: str
    eps: float
    regions: tuple[str, ...] = ("forward", "gradient", "train-step")

    @property
    def narrow(self) -> bool:
        """Whether the weights themselves have fewer digits than float32's."""
        return self.parameters == "bfloat16"

    @property
    def narrow_products(self) -> bool:
        """Whether products have operands of fewer digits than float32's."""
        return self.compute == "bfloat16"

    @property
    def width(self) -> int:
        """Bytes of a weight."""
        return {"float64": 8, "float32": 4, "bfloat16": 2}[self.parameters]


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", "float32", "float32", "fp32", 2.0**-23),
        Precision("tf32", "float32", "float32", "tf32", 2.0**-10),
        Precision("bf16", "float32", "bfloat16", "bf16", 2.0**-7),
        # Weights too: half the bytes, for models whose float32 weights do not fit. Nothing is trained in it: an update
        # of a thousandth is lost in bf16's three digits.
        Precision("bf16-true", "bfloat16", "bfloat16", "bf16", 2.0**-7, regions=("forward", "gradient")),
        # Only for the proof; never a contract that a user names.
        Precision("fp64", "float64", "float64", "fp64", 2.0**-52),
    )
}

# What a user may name, in the order in which they are told.
NAMED = tuple(name for name in PRECISIONS if name != "fp64")


def drawn_at(precision: str) -> str:
    """The precision at which a workload's weights are drawn and written: float32's, which all share, unless the weights
    themselves are narrow. Those are others, and gigabytes are not drawn at twice their size."""
    return precision if PRECISIONS[precision].narrow else "fp32"
