"""bfloat16 on the host without a package for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detente.worker.sketch import sketch
from detente.worker.tensorfile import map_tensors, write_tensors
from detente.workloads.narrow import BFLOAT16, is_narrow, of_numpy, of_torch, to_numpy_of, to_torch, widened
from detente.workloads.weights import Leaves, WeightRule

torch = pytest.importorskip("torch", reason="torch is not installed")

EVERY = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16)


def test_every_number_is_widened_as_torch_does() -> None:
    right = to_torch(torch, EVERY).float().numpy()
    np.testing.assert_array_equal(widened(EVERY).view(np.uint32), right.view(np.uint32))


def test_a_tensor_comes_back_bit_for_bit_and_a_view_holds_it() -> None:
    held = to_torch(torch, EVERY)
    seen = of_torch(torch, held)
    np.testing.assert_array_equal(seen.view(np.uint16), EVERY.view(np.uint16))
    held.zero_()
    assert not seen["bfloat16"].any(), "a view, no copy"
    assert EVERY["bfloat16"].any(), "to_torch copies"


def test_jax_takes_the_bytes_as_they_are() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="JAX is not installed")
    theirs = to_numpy_of(EVERY, ml_dtypes.bfloat16)
    assert np.shares_memory(theirs, EVERY) and np.shares_memory(of_numpy(theirs), EVERY)
    np.testing.assert_array_equal(
        to_numpy_of(EVERY[:100], np.float64), widened(EVERY[:100]).astype(np.float64)
    )


def test_a_file_holds_two_bytes_a_number_and_safetensors_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"w": EVERY.reshape(256, 256), "n": np.arange(3)})
    back = map_tensors(path)
    assert back["w"].dtype == BFLOAT16 and back["w"].shape == (256, 256)
    np.testing.assert_array_equal(back["w"].reshape(-1).view(np.uint16), EVERY.view(np.uint16))
    theirs = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").load_file(path)
    assert theirs["w"].dtype is torch.bfloat16
    assert torch.equal(theirs["w"].view(torch.uint16), to_torch(torch, back["w"]).view(torch.uint16))


def test_a_sketch_sees_the_numbers_and_not_their_bytes() -> None:
    some = EVERY[0x3F00:0x4000]
    np.testing.assert_array_equal(sketch("w", some), widened(some).astype(np.float64))
    np.testing.assert_array_equal(sketch("w", some, some), np.zeros(256))


class Counted(dict[str, np.ndarray]):
    """Counts what is read of it."""

    read = 0

    def __getitem__(self, name: str) -> np.ndarray:
        self.read += 1
        return super().__getitem__(name)


def test_a_stack_of_layers_is_made_when_it_is_asked_for() -> None:
    canonical = Counted({f"h.{i}.w": EVERY[i : i + 4] for i in range(3)})
    leaves = Leaves([WeightRule(f"h.{i}.w", ("h", "w"), layer=i) for i in range(3)], canonical)
    canonical.read = 0
    assert ("h", "w") in leaves and ("h", "b") not in leaves and len(leaves) == 1
    assert canonical.read == 0, "to ask whether there is a leaf makes none"
    first, again = leaves[("h", "w")], leaves[("h", "w")]
    assert first.shape == (3, 4) and first.dtype == BFLOAT16 and first is not again
    assert canonical.read == 6
    assert list(leaves) == [("h", "w")] and is_narrow(first)
