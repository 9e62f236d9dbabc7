"""Operators whose float64 result is allowed more than 1e-10 (gradient 1e-9) relative, each with its reason."""

from opinfo.judging import Tolerance

TOLERANCES: dict[str, Tolerance] = {
    "nn.functional.hardsigmoid": Tolerance(1e-10, 1e-7, "ATen's backward has 1/6 as a float32 constant"),
}
