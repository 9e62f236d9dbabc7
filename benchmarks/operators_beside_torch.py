"""Single operators, forward and backward and with a step of SGD, through the bridge beside eager PyTorch: where a
program is slow by one operator, it is this page that says so.

    python benchmarks/operators_beside_torch.py             # ten minutes, quiet
    python benchmarks/operators_beside_torch.py pool sort   # those whose names hold one of these words

Both in one process and in turns, each the fastest of three medians of five steps, float32 where nothing else is said,
nothing certified and no cache. A step costs the bridge about half a millisecond of Python, so that only what takes 2 ms
is marked.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

PAGE = Path(__file__).resolve().parent.parent / "docs/results/operators-beside-torch.md"
TURNS, STEPS = 3, 5
# From here on a row is marked.
SLOWER, LEAST_MS = 1.5, 2.0


class Function(nn.Module):
    """A function of the input, which a scale in front of it makes something to train."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x * self.scale)


class Read(nn.Module):
    """A layer of whole numbers."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def of(function: Callable[[torch.Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Function(lambda _, x: function(x))


def held(function: Callable[[Any, torch.Tensor], Any], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: Function(function, **{name: part() for name, part in parts.items()})


def pictures(channels: int = 32, size: int = 56) -> torch.Tensor:
    return torch.randn(4, channels, size, size)


def places() -> Any:
    return nn.Buffer(torch.randint(0, 2000, (4000,)))


def half(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make().to(torch.bfloat16)


ROWS = torch.randn(256, 2048)
SQUARES = torch.randn(16, 32, 32)
EYE = 8 * torch.eye(32)
CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "conv2d 3 x 3": (lambda: nn.Conv2d(32, 64, 3, padding=1), pictures()),
    "conv2d 3 x 3, bf16": (half(lambda: nn.Conv2d(32, 64, 3, padding=1)), pictures().bfloat16()),
    "conv2d dilated": (lambda: nn.Conv2d(32, 64, 3, padding=4, dilation=4), pictures()),
    "conv2d of 32 groups": (lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32), pictures(128, 28)),
    "conv2d depthwise": (lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), pictures(96)),
    "conv2d depthwise, stride": (lambda: nn.Conv2d(96, 96, 3, 2, 1, groups=96), pictures(96)),
    "conv2d depthwise, bf16": (half(lambda: nn.Conv2d(96, 96, 3, 1, 1, groups=96)), pictures(96).bfloat16()),
    "conv1d": (lambda: nn.Conv1d(64, 128, 5, padding=2), torch.randn(4, 64, 1000)),
    "conv1d dilated": (lambda: nn.Conv1d(64, 64, 3, padding=8, dilation=8), torch.randn(4, 64, 2000)),
    "conv3d": (lambda: nn.Conv3d(16, 32, 3, padding=1), torch.randn(1, 16, 16, 32, 32)),
    "conv3d, small": (lambda: nn.Conv3d(64, 64, 3, padding=1), torch.randn(1, 64, 8, 14, 14)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(64, 32, 4, 2, 1), torch.randn(4, 64, 1000)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), pictures(64, 28)),
    "conv_transpose2d to a picture": (lambda: nn.ConvTranspose2d(64, 3, 4, 2, 1), pictures(64, 28)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(32, 16, 2, 2), torch.randn(1, 32, 8, 16, 16)),
    "max_pool1d": (of(lambda x: F.max_pool1d(x, 2)), torch.randn(4, 64, 2000)),
    "max_pool2d": (of(lambda x: F.max_pool2d(x, 3, 2, 1)), pictures()),
    "max_pool2d, no stride": (of(lambda x: F.max_pool2d(x, 5, 1, 2)), pictures()),
    "max_pool3d": (of(lambda x: F.max_pool3d(x, 2)), torch.randn(1, 16, 16, 32, 32)),
    "avg_pool2d": (of(lambda x: F.avg_pool2d(x, 3, 2, 1)), pictures()),
    "adaptive_avg_pool2d": (of(lambda x: F.adaptive_avg_pool2d(x, 5)), pictures()),
    "adaptive_max_pool2d": (of(lambda x: F.adaptive_max_pool2d(x, 5)), pictures()),
    "interpolate nearest": (of(lambda x: F.interpolate(x, scale_factor=2)), pictures(32, 28)),
    "interpolate bilinear": (of(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), pictures(32, 28)),
    "interpolate bilinear, down": (of(lambda x: F.interpolate(x, size=(30, 30), mode="bilinear")), pictures()),
    "interpolate bicubic": (of(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")), pictures(32, 28)),
    "interpolate trilinear": (
        of(lambda x: F.interpolate(x, scale_factor=2, mode="trilinear")), torch.randn(1, 16, 8, 16, 16)
    ),
    "grid_sample": (
        held(lambda m, x: F.grid_sample(x, m.grid.expand(4, -1, -1, -1), align_corners=False),
             grid=lambda: nn.Parameter(torch.rand(1, 56, 56, 2) * 2 - 1)),
        pictures(),
    ),
    "pad reflect": (of(lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect")), pictures()),
    "pad replicate": (of(lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate")), pictures()),
    "pad circular": (of(lambda x: F.pad(x, (2, 2, 2, 2), mode="circular")), pictures()),
    "unfold": (of(lambda x: F.unfold(x, 3, padding=1)), pictures(16, 28)),
    "fold": (of(lambda x: F.fold(x, (28, 28), 3, padding=1)), torch.randn(4, 144, 784)),
    "pixel_shuffle": (of(lambda x: F.pixel_shuffle(x, 2)), pictures()),
    "batch_norm": (lambda: nn.BatchNorm2d(32), pictures()),
    "group_norm": (lambda: nn.GroupNorm(8, 32), pictures()),
    "instance_norm": (lambda: nn.InstanceNorm2d(32, affine=True), pictures()),
    "layer_norm": (lambda: nn.LayerNorm(768), torch.randn(512, 768)),
    "rms_norm": (lambda: nn.RMSNorm(768), torch.randn(512, 768)),
    "local_response_norm": (of(lambda x: F.local_response_norm(x, 5)), pictures()),
    "lstm": (lambda: nn.LSTM(128, 256, batch_first=True), torch.randn(16, 64, 128)),
    "lstm, both ways": (lambda: nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True), torch.randn(16, 64, 64)),
    "gru": (lambda: nn.GRU(128, 256, batch_first=True), torch.randn(16, 64, 128)),
    "embedding": (lambda: Read(nn.Embedding(20000, 256)), torch.randint(0, 20000, (8, 128))),
    "embedding_bag": (lambda: Read(nn.EmbeddingBag(20000, 256)), torch.randint(0, 20000, (256, 16))),
    "multi_head_attention": (
        held(lambda m, x: m.layer(x, x, x)[0], layer=lambda: nn.MultiheadAttention(256, 4, batch_first=True)),
        torch.randn(4, 128, 256),
    ),
    "attention with a mask": (
        held(lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask),
             mask=lambda: nn.Parameter(torch.randn(128, 128))),
        torch.randn(4, 8, 128, 64),
    ),
    "linear": (lambda: nn.Linear(1024, 1024), torch.randn(256, 1024)),
    "linear, bf16": (half(lambda: nn.Linear(1024, 1024)), torch.randn(256, 1024).bfloat16()),
    "bilinear": (held(lambda m, x: m.layer(x, x), layer=lambda: nn.Bilinear(128, 128, 64)), torch.randn(64, 128)),
    "gelu": (of(F.gelu), pictures()),
    "silu": (of(F.silu), pictures()),
    "softplus": (of(F.softplus), pictures()),
    "prelu": (lambda: nn.PReLU(32), pictures()),
    "softmax": (of(lambda x: x.softmax(-1)), torch.randn(64, 128, 128)),
    "log_softmax over channels": (of(lambda x: x.log_softmax(1)), pictures()),
    "cumsum": (of(lambda x: x.cumsum(-1)), ROWS),
    "cumprod": (of(lambda x: (1 + x * 0.001).cumprod(-1)), ROWS[:, :1024]),
    "logcumsumexp": (of(lambda x: x.logcumsumexp(-1)), ROWS[:, :1024]),
    "cummax": (of(lambda x: x.cummax(-1)[0]), ROWS[:, :1024]),
    "sort": (of(lambda x: x.sort(-1)[0]), ROWS),
    "topk": (of(lambda x: x.topk(10, -1)[0]), ROWS),
    "topk, most": (of(lambda x: x.topk(1500, -1)[0]), ROWS),
    "median": (of(lambda x: x.median(-1)[0]), ROWS),
    "kthvalue": (of(lambda x: x.kthvalue(100, -1)[0]), ROWS),
    "quantile": (of(lambda x: x.quantile(0.3, -1)), ROWS),
    "index": (held(lambda m, x: x[m.at], at=places), torch.randn(2000, 64)),
    "index_add": (held(lambda m, x: torch.zeros(2000, 64).index_add(0, m.at, x), at=places), torch.randn(4000, 64)),
    "scatter_add": (
        held(lambda m, x: torch.zeros(2000, 64).scatter_add(0, m.at[:, None].expand(-1, 64), x), at=places),
        torch.randn(4000, 64),
    ),
    "scatter_reduce": (
        held(lambda m, x: torch.zeros(2000, 64).scatter_reduce(0, m.at[:, None].expand(-1, 64), x, "amax"), at=places),
        torch.randn(4000, 64),
    ),
    "gather": (held(lambda m, x: x.gather(0, m.at[:, None].expand(-1, 64)), at=places), torch.randn(4000, 64)),
    "index_put, added": (
        held(lambda m, x: torch.zeros(2000, 64).index_put((m.at,), x, accumulate=True), at=places),
        torch.randn(4000, 64),
    ),
    "roll": (of(lambda x: x.roll((3, 3), (2, 3))), pictures()),
    "flip": (of(lambda x: x.flip(-1)), pictures()),
    "cdist": (of(lambda x: torch.cdist(x, x[:, :64])), torch.randn(4, 128, 64)),
    "einsum": (of(lambda x: torch.einsum("bhid,bhjd->bhij", x, x)), torch.randn(4, 8, 128, 64)),
    "rfft": (of(lambda x: torch.fft.rfft(x).abs()), ROWS[:64]),
    "rfft2": (of(lambda x: torch.fft.rfft2(x).abs()), pictures(8)),
    "stft": (
        of(lambda x: torch.stft(x, 256, window=torch.hann_window(256), return_complex=True).abs()),
        torch.randn(4, 8000),
    ),
    "inv": (of(lambda x: torch.linalg.inv(x + EYE)), SQUARES),
    "cholesky": (of(lambda x: torch.linalg.cholesky(x @ x.mT + EYE)), SQUARES),
    "svdvals": (of(torch.linalg.svdvals), SQUARES),
    "eigvalsh": (of(lambda x: torch.linalg.eigvalsh(x + x.mT)), SQUARES),
    "solve": (of(lambda x: torch.linalg.solve(x + EYE, x)), SQUARES),
    "logdet": (of(lambda x: torch.logdet(x @ x.mT + EYE)), SQUARES),
    "norm": (of(lambda x: x.norm(dim=-1)), ROWS),
    "var over channels": (of(lambda x: x.var(1)), pictures()),
    "std over rows": (of(lambda x: x.std(0)), torch.randn(4096, 256)),
    "logsumexp": (of(lambda x: x.logsumexp(-1)), ROWS),
    "amax over channels": (of(lambda x: x.amax(1)), pictures()),
    "prod": (of(lambda x: (1 + 0.01 * x).prod(-1)), torch.randn(2048, 64)),
    "repeat_interleave": (of(lambda x: x.repeat_interleave(3, 1)), torch.randn(64, 128, 32)),
    "dropout": (lambda: nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1)), torch.randn(1024, 256)),
    "randn_like": (of(lambda x: x + torch.randn_like(x)), pictures()),
    "cosine_similarity": (of(lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1)), torch.randn(128, 64)),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(512, 512)), torch.randn(128, 512)),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(512, 512)), torch.randn(128, 512)),
    "complex product": (
        of(lambda x: torch.view_as_real(torch.complex(x, x * 2) * torch.complex(x, -x))), ROWS[:, :512]
    ),
    "erf, sin, atan2": (of(lambda x: torch.atan2(x, x + 2) + x.sin() * x.cos() + x.erf()), pictures()),
    "pow": (of(lambda x: (x.abs() + 0.1) ** 2.5), pictures()),
}  # fmt: skip


def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    made = model(batch)
    made = made[0] if isinstance(made, tuple) else made
    return (made.float() if made.dtype == torch.bfloat16 else made).square().mean()


def measured(make: Callable[[], nn.Module], batch: torch.Tensor) -> tuple[float, float, float]:
    """Seconds of a step, eager's and the bridge's, and of the bridge's first."""
    import detente

    torch.manual_seed(0)
    model = make()
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=1e-3)

    def plain() -> None:
        optimizer.zero_grad()
        loss(eager, batch).backward()
        optimizer.step()

    begun = time.perf_counter()
    step = detente.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=1e-3), example_batch=batch, seed=0, certificate="none",
        cache=False, quiet=True,
    )  # fmt: skip
    step(batch).item()
    first = time.perf_counter() - begun
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for run, found in zip((plain, lambda: step(batch).item()), taken, strict=True):
            run()
            each = []
            for _ in range(STEPS):
                begun = time.perf_counter()
                run()
                each.append(time.perf_counter() - begun)
            found.append(statistics.median(each))
    return min(taken[0]), min(taken[1]), first


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="operators whose names hold one of these")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    from detente.session.fingerprint import machine

    warnings.filterwarnings("ignore")
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    rows: list[tuple[float, str]] = []
    for name, (make, batch) in CASES.items():
        if given.words and not any(word in name for word in given.words):
            continue
        eager, bridge, first = measured(make, batch)
        ratio = bridge / eager
        mark = "**" if ratio > SLOWER and 1e3 * bridge > LEAST_MS else ""
        cells = (f"{1e3 * eager:.2f}", f"{1e3 * bridge:.2f}", f"{mark}{ratio:.2f}{mark}", f"{first:.1f}")
        rows.append((ratio, f"| {name} | {' | '.join(cells)} |"))
        print(rows[-1][1], flush=True)
    slower = sum("**" in row for _, row in rows)
    page = given.page or (None if given.words else PAGE)
    if page is not None:
        head = [
            "# Single operators through the bridge, beside eager PyTorch",
            "",
            f"`python benchmarks/operators_beside_torch.py`. Processor: {machine()['processor']}, {cores} cores. "
            f"Forward, backward and a step of SGD; ms. Marked: {slower} of {len(rows)} that take more than {SLOWER} "
            f"times eager's time and more than {LEAST_MS:.0f} ms. The slowest first.",
            "",
            "| operator | eager | bridge | bridge / eager | first step, s |",
            "|---|---:|---:|---:|---:|",
        ]
        page.write_text("\n".join([*head, *(row for _, row in sorted(rows, reverse=True)), ""]))


if __name__ == "__main__":
    main()
