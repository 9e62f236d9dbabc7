"""How far one tensor lies from the fp64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["loss", "output", "gradient", "update", "buffer", "moment"]
# Behind the name of an output or a buffer: the places in which it holds no finite number, compared by themselves.
NOT_FINITE = " (not finite)"


@dataclass(frozen=True)
class TensorError:
    """Root-mean-square error of one tensor against the fp64 reference, measured in the worker, judged in ``judge``.

    kind      what the tensor is; the loss of the three timed steps is ``loss`` with names ``1``, ``2``, ``3``
    name      canonical name of the parameter, output or buffer; of a moment ``KEY:PARAMETER``
              (``exp_avg:head.weight``);
              ``NAME (not finite)``: where an output or a buffer holds infinities or NaN, as it may
    err       rms(tensor - reference)
    err_ref   rms(torch-eager at the same precision - reference); 0.0 at fp64
    rms       rms(reference)
    elements  number of elements
    sketched  compared by seeded random projections rather than element by element
    """

    kind: Kind
    name: str
    err: float
    err_ref: float
    rms: float
    elements: int
    sketched: bool = False
