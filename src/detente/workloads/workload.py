"""A workload: what is trained, with everything that belongs to it and not to a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from detente.workloads.constraints import Constraint


@dataclass(frozen=True)
class Size:
    """A named size: ``tiny`` for proofs and tests, ``paper`` for the figures, ``paper,batch=4`` with an override.
    ``dims`` are the workload's own dimensions (``layers``, ``hidden``, ``batch``, ``sequence``, ...)."""

    name: str
    dims: Mapping[str, int]

    def __getitem__(self, dim: str) -> int:
        return self.dims[dim]


@dataclass(frozen=True)
class OptimizerSettings:
    """Hyper-parameters that every stack gives its own optimizer."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    momentum: float = 0.9


@dataclass(frozen=True)
class Workload:
    """What is trained.

    definitions      framework -> module that defines it: ``torch``, ``flax``. A torch module offers
                     ``build(size) -> nn.Module`` and ``loss(module, batch) -> (0-d tensor, dict of outputs)``; a
                     flax module offers ``build(size, *, parameters, compute, scan) -> nnx.Module``,
                     ``loss(module, batch) -> (0-d array, dict of outputs)`` and ``weights(size, scan)`` (weights.py)
    batch            (size, generator) -> one batch of numpy arrays; float32 and int32 or int64
    flops            (size, region) -> floating-point operations of one step, multiply and add counted apart,
                     products and convolutions only
    least_flops      (size, region) -> of these, what no implementation may leave out; ``flops`` where it is None
    bytes            (size, region, bytes per parameter element, bytes per activation element) -> compulsory
                     traffic: every input read once, every output written once
    products         (size) -> (m, k, n) of the workload's largest product, one of the peak probe's shapes
    batch_gradients  batch entries whose gradient is part of ``gradient``
    contracts        names of the contracts it can run, the default first
    layers           repeated layers at a size; 0 when there are none to scan
    parameters       trained elements at a size, what two modules share counted once; 0 where it is not known
    constraints      what the dimensions must satisfy together; a size with overrides is held to them
    proved_at        (size) -> name of the size at which its function is proved in fp64; empty where there is nothing to
                     hold it against
    cut              (size) -> name of the size with two of every kind of layer and the rest as it is, where what is too
                     large for an fp64 reference is proved at its own precision; empty where there is none
    source           where the shapes come from (paper, configuration)
    """

    name: str
    what: str
    sizes: Mapping[str, Size]
    definitions: Mapping[str, str]
    batch: Callable[[Size, np.random.Generator], dict[str, np.ndarray]]
    flops: Callable[[Size, str], int]
    bytes: Callable[[Size, str, int, int], int]
    products: Callable[[Size], tuple[int, int, int]]
    contracts: tuple[str, ...] = ("train-step", "train-step-sgd", "gradient", "forward")
    least_flops: Callable[[Size, str], int] | None = None
    batch_gradients: tuple[str, ...] = ()
    layers: Callable[[Size], int] = field(default=lambda size: 0)
    parameters: Callable[[Size], int] = field(default=lambda size: 0)
    constraints: tuple[Constraint, ...] = ()
    proved_at: Callable[[Size], str] = field(default=lambda size: "tiny")
    cut: Callable[[Size], str] = field(default=lambda size: "")
    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-3)
    source: str = ""
