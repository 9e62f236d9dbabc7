"""One architecture through the bridge, against eager torch: what became of it, as a plain record.

``passed``: certified by the bridge's own certificate *and* by the check here, which shares no code with it.
``refused``: the bridge said why, with the user's file and line. ``wrong``: certified, and the check here
disagrees. ``uncertified``: the bridge's certificate failed. ``crashed``: any other exception, a refusal without
a place, or (told by ``serve``) a dead or stuck process. ``outside``: not buildable under the run's terms.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch

from zoo.architectures import Architecture
from zoo.build import Built, Unbuilt, build, loss, optimizer

KEY = 11
# The check: one step in float64 in eager torch is the truth. The bridge may err eight times as much as eager
# float32 does, plus 1e-4 of the whole update's size for tensors, 1e-5 for the loss. Where that fails, all three run
# again, up to eight times, from parameters that are off by one rounding, and eager's largest error counts: some modules
# (BatchNorm over two examples, a ReLU at its kink) magnify roundings so much that one point says little.
MARGIN, TENSOR, LOSS = 8.0, 1e-4, 1e-5


def attempt(architecture: Architecture) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": architecture.name, "model_type": architecture.model_type, "task": architecture.task.name,
    }  # fmt: skip
    start = perf_counter()
    try:
        built = build(architecture)
    except Unbuilt as unbuilt:
        return record | {"outcome": "outside", "detail": str(unbuilt)}
    record |= {"divide": built.size.divide, "parameters": built.parameters, "build_s": perf_counter() - start}
    start = perf_counter()
    outcome = bridged(built)
    return record | outcome | {"bridge_s": perf_counter() - start}


def bridged(built: Built) -> dict[str, Any]:
    """Compile, step twice (the second waits for the certificate), and compare with eager torch."""
    from detente import bridge
    from detente.bridge.refusal import Refused

    try:
        model = copy.deepcopy(built.model)
        step = bridge.compile(
            model,
            loss,
            optimizer(model),
            example_batch=built.batch,
            certificate="full",
            seed=KEY,
            cache=False,
        )
        value = float(step(built.batch))
        after = {name: tensor.clone() for name, tensor in step.state_dict().items()}
        step(built.batch)
    except Refused as refused:
        return _refused(refused)
    except Exception as error:
        return {
            "outcome": "crashed",
            "detail": f"{type(error).__name__}: {error}"[:1500],
            "trace": _where(error),
        }
    draws = step.programs[0].captured.draws

    def run(weights: dict[str, torch.Tensor] | None) -> State:
        if weights is None:
            return value, after
        step.restart(weights)
        again = float(step(built.batch))
        return again, {name: tensor.clone() for name, tensor in step.state_dict().items()}

    wrong = disagreement(built, run, draws)
    done = {"draws": draws, "form": step.choice.form, "nodes": len(step.programs[0].captured.graph.nodes)}
    return {"outcome": "wrong" if wrong else "passed", "detail": wrong, **done}


def disagreement(built: Built, run: Run, draws: int) -> str:
    """What the compiled step got wrong at every point that was tried, or nothing."""
    own: dict[str, float] = {}
    found = ""
    for nudge in range(9):
        value, after = run(_nudged(built.model, nudge).state_dict() if nudge else None)
        found = _difference(built, value, after, draws, nudge, own)
        if not found:
            return ""
    return found


State = tuple[float, dict[str, torch.Tensor]]
Run = Callable[
    [dict[str, torch.Tensor] | None], State
]  # the compiled step from these weights; None: the model's own


def _difference(
    built: Built,
    value: float,
    after: dict[str, torch.Tensor],
    draws: int,
    nudge: int,
    own: dict[str, float],
) -> str:
    """``own`` are eager float32's largest errors so far; they are brought up to date."""
    plain = _stepped(built, torch.float32, draws, nudge)
    try:
        exact = _stepped(built, torch.float64, draws, nudge)
    except Exception:  # the module names its dtypes
        exact = plain
    if not math.isfinite(exact[0]):  # a mask of float32's lowest number overflows when float64 adds to it
        exact = plain

    def largest(name: str, error: float) -> float:
        own[name] = max(own.get(name, 0.0), error)
        return own[name]

    before = {n: t.double() for n, t in _nudged(built.model, nudge).state_dict().items()}
    moved = {n: (t.double() - before[n]) for n, t in exact[1].items() if t.is_floating_point()}
    whole = sum(float(m.square().sum()) for m in moved.values()) ** 0.5
    bad = []
    allowed = MARGIN * largest("the loss", abs(plain[0] - exact[0])) + LOSS * max(abs(exact[0]), 1e-3)
    if not abs(value - exact[0]) <= allowed:
        bad.append(f"loss {value!r}, eager float64 {exact[0]!r}, eager float32 {plain[0]!r}")
    for name, move in moved.items():
        error = float((after[name].double() - exact[1][name].double()).norm())
        theirs = largest(name, float((plain[1][name].double() - exact[1][name].double()).norm()))
        stored = 2.0**-22 * float(before[name].norm())
        scale = max(float(move.norm()), 1e-3 * whole)
        if not error <= MARGIN * theirs + TENSOR * scale + stored:
            bad.append(
                f"{name}: error {error:.3g}, eager float32 {theirs:.3g}, update {float(move.norm()):.3g}"
            )
    return bad[0] if bad else ""


def _nudged(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A copy, with every element of every parameter off by one rounding, up or down; ``seed`` 0 changes nothing."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters() if seed else ():
        signs = 2 * torch.randint(0, 2, parameter.shape, generator=generator) - 1
        parameter.data.mul_(1 + 2.0**-23 * signs)
    return model


def _stepped(built: Built, dtype: torch.dtype, draws: int, nudge: int) -> State:
    """Loss and state after one step, written out here on purpose."""
    from detente.bridge.random import twin

    model = _nudged(built.model, nudge).to(dtype)
    batch = {k: v.to(dtype) if v.is_floating_point() else v.clone() for k, v in built.batch.items()}
    descent = optimizer(model)
    with twin(KEY, 0) if draws else nullcontext():
        value = loss(model, batch)
        value.backward()
    descent.step()
    return float(value.detach()), {n: t.detach().clone() for n, t in model.state_dict().items()}


def _refused(refused: Any) -> dict[str, Any]:
    reasons = refused.reasons
    first = reasons[0]
    detail = "; ".join(dict.fromkeys(f"[{r.code}] {r.what}" for r in reasons))[:1500]
    if any(r.code == "certificate" for r in reasons):
        return {"outcome": "uncertified", "detail": detail}
    place = next((r.where for r in reasons if r.where is not None and r.where.file != "?"), None)
    if place is None:
        return {
            "outcome": "crashed",
            "detail": f"refused without a place: {detail}",
            "trace": _where(refused),
        }
    file = place.file.split("site-packages/")[-1]
    return {"outcome": "refused", "code": first.code, "detail": detail, "where": f"{file}:{place.line}"}


def _where(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return " < ".join(f"{f.filename.split('site-packages/')[-1]}:{f.lineno}" for f in reversed(frames))
