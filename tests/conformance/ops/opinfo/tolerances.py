"""Operators whose float64 result is allowed more than 1e-10 (gradient 1e-9) relative, each with its reason."""

from opinfo.judging import Tolerance

TOLERANCES: dict[str, Tolerance] = {}
