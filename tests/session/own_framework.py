"""A stack of a framework that nothing of ours knows: NumPy, which brings its own definition of ``gemm``."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.stacks.catalogue import StackEntry
from detente.stacks.protocol import Arrays, Capture, CompileCount, Unavailable
from detente.workloads.workload import Size, Workload


class Gemm:
    """``gemm`` in NumPy, forward and gradient, at one dtype."""

    def __init__(self, contract: Contract, dtype: Any) -> None:
        self.contract, self.dtype = contract, dtype
        self.weight = np.zeros((0, 0), dtype)

    def load(self, tensors: Arrays) -> None:
        self.weight = tensors["weight"].astype(self.dtype)

    def place(self, batch: Arrays) -> dict[str, np.ndarray]:
        return {n: a.astype(self.dtype) for n, a in batch.items()}

    def step(self, batch: dict[str, np.ndarray]) -> Any:
        y = batch["x"] @ self.weight
        loss = (y * batch["g"]).sum() / y.size
        if self.contract.region == "forward":
            return loss, {"y": y}
        pulled = batch["g"] / y.size
        return loss, {"weight": batch["x"].T @ pulled, "batch:x": pulled @ self.weight.T}

    def synchronise(self, *handles: Any) -> None:
        """NumPy has returned when it is done."""

    def loss(self, handle: Any) -> float:
        return float(handle[0])

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return dict(handle[1])

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        return self.step(batch)[1]

    def tensors(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight}

    def parameter_names(self) -> frozenset[str]:
        return frozenset({"weight"})

    def compiled(self) -> CompileCount:
        return CompileCount()

    def memory(self) -> dict[str, int]:
        return {}

    def devices(self, handle: Any) -> tuple[str, ...]:
        return ("cpu",)

    def facts(self) -> dict[str, Any]:
        return {"mode": "numpy", "training_mode": self.contract.region != "forward", "dropout_active": False}

    def programs(self) -> tuple[Capture, ...]:
        return ()


class NumPy:
    """Found by ``entry.definition`` alone: ``numpy`` is a key that no file of ours holds."""

    entry = StackEntry(
        "numpy", "", "NumPy", "numpy", ("numpy",), ("torch", "jax"), compiles=False, defines=("gemm",)
    )

    def start(self, device: str, precision: str, threads: int) -> str:
        if precision not in ("fp32", "fp64"):
            raise Unavailable(f"NumPy has no {precision}")
        self.dtype = np.dtype({"fp32": "float32", "fp64": "float64"}[precision])
        return "cpu"

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def threads(self) -> dict[str, int]:
        return {"blas": 1}

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(self.dtype) @ b.astype(self.dtype)

    def product_seconds(self, m: int, k: int, n: int, repeats: int) -> float:
        a, b = np.ones((m, k), self.dtype), np.ones((k, n), self.dtype)
        return min(self._seconds(lambda: a @ b) for _ in range(repeats + 1))

    def copy_seconds(self, elements: int, repeats: int) -> float:
        a = np.ones(elements, np.float32)
        return min(self._seconds(a.copy) for _ in range(repeats + 1))

    def _seconds(self, call: Any) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def build(self, workload: Workload, size: Size, contract: Contract) -> Gemm:
        if workload.name not in self.entry.defines:
            raise Unavailable(f"{workload.name} has no definition in NumPy")
        return Gemm(contract, self.dtype)
