"""The page of ``bridge_on_gpu.py``, from the lines that it kept."""

from __future__ import annotations

from typing import Any

from beside_torch import MODELS

# ``without``: the bridge with XLA's own attention; measured where it was asked for.
SIDES, WITHOUT = ("eager", "compile", "bridge"), "without"
PRECISIONS = ("fp32", "tf32", "bf16")
# Dense products, FLOP/s: NVIDIA's data sheets of the H100 SXM and the H200, whose cores are the same.
PROMISED = {"fp32": 67e12, "tf32": 494.7e12, "bf16": 989.4e12}
Line = dict[str, Any]
Found = dict[tuple[str, str, str, str], Line]


def page(lines: list[Line], command: str) -> str:
    """Markdown. A part for which there is no line says so."""
    found: Found = {(x["model"], x["side"], x["precision"], x["pass"]): x for x in lines if "model" in x}
    text = [
        "# The bridge beside PyTorch on a GPU",
        "",
        f"`{command}`: unmodified models, AdamW, dropout as published.",
    ]
    for line in [x for x in lines if x["pass"] == "ceiling"][-1:]:
        rates = ", ".join(f"{p} {line[p] / 1e12:.0f} ({PROMISED[p] / 1e12:.0f})" for p in PRECISIONS)
        versions = ", ".join(f"{name} {number}" for name, number in line["versions"].items())
        text += ["", f"{line['device']}, {versions}."]
        text += [f"A product of 8192 x 8192 x 8192 reaches, TFLOP/s (its data sheet's): {rates}."]
    for part in (_steps(found), _compiled(found), _attention(lines), _certified(lines), _failed(lines)):
        text += ["", *part] if part else []
    return "\n".join([*text, ""])


def _cells(found: Found, what: str) -> list[tuple[str, str]]:
    there = {(name, precision) for name, _, precision, line in found if line == what}
    return [(name, p) for name in MODELS for p in PRECISIONS if (name, p) in there]


def _titled(name: str) -> str:
    return MODELS[name].titled(MODELS[name].accelerator)


def _told(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _steps(found: Found) -> list[str]:
    text = ["## Steps", ""]
    cells = _cells(found, "measure")
    if not cells:
        return [*text, "Not measured yet."]
    text += [
        "Data on the device, a process each, one round; PyTorch's AdamW is the fused one. *compile*:",
        '`torch.compile(mode="reduce-overhead")`, CUDA graphs. *without*: the bridge with XLA\'s own attention',
        "(`DETENTE_KERNELS=0`). *ratio*: the bridge over the better of eager and compile. *MFU*: of the data sheet's",
        "dense rate, of the better PyTorch and of the bridge. Peaks by each framework's allocator: eager, compile, the",
        "bridge.",
        "",
        "| model | precision | eager, ms | compile, ms | bridge, ms | without | form | ratio | MFU | peak, GB |",
        "|---|---|---:|---:|---:|---:|---|---:|---|---|",
    ]
    for name, precision in cells:
        row = {s: found.get((name, s, precision, "measure"), {}) for s in (*SIDES, WITHOUT)}
        seconds = {side: line.get("step_s") for side, line in row.items()}
        better = min((s for s in (seconds["eager"], seconds["compile"]) if s), default=None)
        ours, flop = seconds["bridge"], row["eager"].get("flop")
        used = [flop / s / PROMISED[precision] if flop and s else None for s in (better, ours)]
        milliseconds = [_told(s and s * 1e3, ".1f") for s in seconds.values()]
        ratio = _told(ours / better if ours and better else None, ".2f")
        shares = ", ".join(_told(u, ".0%") for u in used)
        peaks = ", ".join(_told(row[s].get("peak_gb"), ".1f") for s in SIDES)
        form = row["bridge"].get("form", "")
        text.append(
            f"| {_titled(name)} | {precision} | {' | '.join(milliseconds)} | {form} | {ratio} | {shares} | {peaks} |"
        )
    return text


def _compiled(found: Found) -> list[str]:
    cells = _cells(found, "prepare")
    if not cells:
        return []
    text = [
        "## Compiled",
        "",
        "Seconds until a program is there, several processes at once on the host's cores: they say how long a lease",
        "must be, and are no first step.",
        "",
        "| model | precision | compile | bridge |",
        "|---|---|---:|---:|",
    ]
    for name, precision in cells:
        took = [
            found.get((name, s, precision, "prepare"), {}).get("compiled_s") for s in ("compile", "bridge")
        ]
        text.append(f"| {_titled(name)} | {precision} | {' | '.join(_told(t, '.0f') for t in took)} |")
    return text


def _attention(lines: list[Line]) -> list[str]:
    rows = [x for x in lines if x["pass"] == "attention"]
    if not rows:
        return []
    text = [
        "## Attention, alone",
        "",
        "bfloat16, forwards and backwards, ms: the bridge's plain form, which XLA fuses, and cuDNN's kernel; *apart*:",
        "the distance of result and gradients, the largest of them, relative.",
        "",
        "| batch x heads x positions x width | causal | plain | cuDNN | apart |",
        "|---|---|---:|---:|---:|",
    ]
    for x in rows:
        sizes = " x ".join(map(str, x["sizes"]))
        times = f"{x['plain'] * 1e3:.3f} | {x['flash'] * 1e3:.3f}"
        text.append(f"| {sizes} | {'yes' if x['causal'] else 'no'} | {times} | {x['apart']:.1e} |")
    return text


def _certified(lines: list[Line]) -> list[str]:
    rows = [x for x in lines if x["pass"] == "certify" and "passed" in x]
    if not rows:
        return []
    text = [
        "## Certified on the device",
        "",
        "As wide as they are, of few layers, at a CPU's batch; eager PyTorch on the host.",
        "",
        "| model | precision | certificate |",
        "|---|---|---|",
    ]
    for x in rows:
        told = "; ".join(part.strip() for part in x["certificate"].splitlines() if part.strip())
        text.append(f"| {MODELS[x['model']].title} | {x['precision']} | {told} |")
    return text


def _failed(lines: list[Line]) -> list[str]:
    rows = [x for x in lines if "failed" in x]
    text = [f"* {x['model']}, {x['side']}, {x['precision']}, {x['pass']}: {x['failed']}" for x in rows]
    return ["## Failed", "", *text] if text else []
