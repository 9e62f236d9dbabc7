"""One row through the bridge, beside eager PyTorch: what became of it, as a plain record.

``equal``: losses, parameters and buffers after the steps are eager's. ``refused``: the bridge said no, with its reason.
``uncertified``: its certificate failed and the step raised. ``wrong``: certified, and not equal. ``crashed``: anything
else. ``outside``: plain PyTorch does not train the model here, with what it says.
"""

from __future__ import annotations

import math
import re
import traceback
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch

from tests.third_party import recipe
from tests.third_party.compare import chaotic, disagreement
from tests.third_party.losses import LOSSES
from tests.third_party.row import Row

SECONDS = 60.0  # for eager PyTorch's steps; what takes longer is no small model


def attempt(row: Row) -> dict[str, Any]:
    said = []
    for dtype in (torch.float32, torch.float64):
        with recipe.default_dtype(dtype):
            start = process_time()
            try:
                begun = recipe.state(recipe.built(row, dtype))
                plain = recipe.eager(row, dtype, begun, drawn=False)
                if not all(map(math.isfinite, plain.losses)):
                    raise ValueError(f"eager PyTorch's losses are {plain.losses}")
                if process_time() - start > SECONDS:
                    raise TimeoutError(f"eager PyTorch took {process_time() - start:.0f} s for its steps")
                if chaotic(plain, begun, partial(recipe.eager, row, dtype, begun, False)):
                    raise ArithmeticError(
                        "one rounding moves eager PyTorch by a tenth of the training, or more"
                    )
            except Exception as error:
                said.append(f"{str(dtype)[6:]}: {_told(error)}")
                continue
            own = {"dtype": str(dtype)[6:], "eager_s": round(process_time() - start, 2)}
            start = process_time()
            done = bridged(row, dtype, begun, plain)
            return own | done | {"bridge_s": round(process_time() - start, 2)}
    return {"outcome": "outside", "detail": " | ".join(dict.fromkeys(said))[:600]}


def bridged(
    row: Row, dtype: torch.dtype, begun: dict[str, torch.Tensor], plain: recipe.Trained
) -> dict[str, Any]:
    """Compiled and trained, and compared with eager PyTorch; ``plain`` is its run without the step's random numbers."""
    import detente
    from detente.bridge.refusal import Refused

    model, fed = recipe.built(row, dtype, begun), recipe.batches(row, dtype)
    done: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    losses: list[float] = []
    try:
        step = detente.compile(
            model,
            LOSSES[row.loss],
            recipe.optimizer(model),
            example_batch=fed[0],
            certificate="full",
            seed=recipe.KEY,
            cache=False,
            quiet=True,
        )
        losses += [float(step(batch)) for batch in fed]
        step.sync_to_torch()
    except Refused as refused:
        return done | {"steps": len(losses)} | _refused(refused)
    except Exception as error:
        return done | {"outcome": "crashed", "detail": _told(error, 600), "where": _deepest(error)}
    captured = step.programs[0].captured
    drawn = captured.draws > 0
    done |= {"draws": captured.draws, "nodes": len(captured.graph.nodes), "form": step.choice.form}
    what, worst = disagreement(
        recipe.Trained(losses, recipe.state(model)),
        recipe.eager(row, dtype, begun, drawn) if drawn else plain,
        begun,
        lambda number: recipe.eager(row, dtype, begun, drawn, number),
        dtype,
    )
    return done | {"outcome": "wrong" if what else "equal", "detail": what, "worst": round(worst, 4)}


def _refused(refused: Any) -> dict[str, Any]:
    reasons = refused.reasons
    certificate = any(r.code == "certificate" for r in reasons)
    placed = [r for r in reasons if r.where is not None and r.where.file != "?"]
    main = placed[0] if placed and not certificate else reasons[0]
    where = f"{shorter(main.where.file)}:{main.where.line}" if main in placed else ""
    return {
        "outcome": "uncertified" if certificate else "refused",
        "code": main.code,
        "where": where,
        "detail": shorter("; ".join(dict.fromkeys(f"[{r.code}] {r.what}" for r in reasons)))[:900],
        "hint": shorter(main.hint)[:300],
    }


def shorter(text: str) -> str:
    """Paths from the package or from our root on: where they lie on this machine is nobody's business."""
    text = text.replace(f"{Path(__file__).parents[2]}/", "")
    return re.sub(r"[\w./+-]*/site-packages/|/[\w./+-]*?/lib/python3\.\d+/|\bsite-packages/", "", text)


def _told(error: BaseException, most: int = 240) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shorter(f"{type(error).__name__}: {' '.join(lines)}"[:most])


def _deepest(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    return " < ".join(f"{shorter(f.filename)}:{f.lineno}" for f in reversed(frames))
