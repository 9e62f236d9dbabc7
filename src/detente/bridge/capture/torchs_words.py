"""What torch raises in a capture, as a refusal: its words in ours, with the user's line and a way out."""

from __future__ import annotations

import itertools
import re
from typing import Any

from detente.bridge.capture.where import passed, raised_at, where
from detente.bridge.refusal import Refused, refuse

_KEPT = (
    "t.item() may be added, multiplied and put into a tensor; int(t), float(t), t.tolist() and what math and numpy "
    "compute need the value in Python, which the program does not have: compute it with torch"
)
_OUTSIDE = "numpy computes outside of the program: compute it with torch, or before the step, into the batch"

# what torch says -> our code, and a hint where the code's own is not enough; the first row whose words occur wins
_DENSE = "a program takes dense tensors: .to_dense() of what the module or the loss holds"
_MESSAGES: tuple[tuple[str, str, str], ...] = (
    ("Could not extract specialized integer", "control-flow", _KEPT),
    ("data-dependent expression zuf", "control-flow", _KEPT),
    ("data-dependent expression", "control-flow", ""),
    ("GuardOnDataDependent", "control-flow", ""),
    ("DataDependentOutput", "control-flow", ""),
    ("leaf Variable that requires grad", "leaf-inplace", ""),
    ("leaf variable", "leaf-inplace", ""),
    ("DynamicOutputShape", "dynamic-shape", ""),
    (
        "is mutated in the forward method",
        "held-tensor",
        "a tensor that the loss or an attribute holds is written by the step: register it as a buffer of the model. A "
        "module that the loss holds and that writes its own buffers (a centre, BatchNorm's statistics) is made a part "
        'of the model, nn.ModuleDict({"net": net, "loss": loss}), or put into eval mode',
    ),
    ("SparseTensorImpl", "export", _DENSE),
    ("Sparse CSR tensors", "export", _DENSE),
    ("Sparse CSC tensors", "export", _DENSE),
    ("Sparse BSR tensors", "export", _DENSE),
    (
        "NestedTensorImpl",
        "export",
        "a program takes tensors of one shape: .to_padded_tensor(0.0) of what the loss holds",
    ),
    (
        "Cannot view a tensor",
        "export",
        "PyTorch does not take this view either: reshape, or contiguous() before it",
    ),
    (
        "Expected dtype int32/int64 for index",
        "dtype",
        "convert what is looked up by, labels or indices: .long()",
    ),
    (".numpy() is not supported", "control-flow", _OUTSIDE),
    (
        "FakeTensor.__format__",
        "control-flow",
        "return the value beside the loss, (loss, aux), and print it then",
    ),
    (
        "expected compiled_fn to be GraphModule",
        "export",
        "a buffer that forward writes stands under two names (one BatchNorm in two places): let the other places hold "
        "modules of their own, or the same module in a plain list",
    ),
    ("a fake tensor in the exported program", "export", "does forward use x.data? write x.detach()"),
)


_MUTATED = re.compile(r"Constant (\S+) is mutated in the forward method")
# torch's own vmap (over integers), which hides what it computes
_TRANSFORMS = ("/_functorch/vmap.py",)


def refusal_of(error: Exception) -> Refused:
    """The refusal hidden in an exception's chain, or torch's message with the user's line."""
    for link in _chain(error):
        if isinstance(link, Refused):
            return link
    text = f"{type(error).__name__}: {error}"
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    place = raised_at(error)
    if any(passed(link, part) for link in _chain(error) for part in _TRANSFORMS):
        return refuse("transform", f"torch.vmap inside the loss ({first.strip()[:200]})", place)
    code, hint = next(((code, hint) for words, code, hint in _MESSAGES if words in text), ("export", ""))
    if place.file == "?":
        # a node of the exported program was run again: torch quotes where the node came from
        quoted = (where(str(link)) for link in _chain(error))
        place = next((found for found in quoted if found.file != "?"), place)
    said = f"{type(error).__name__}: {first.strip()[:400]}"
    if code == "control-flow" and "data-dependent expression" in text:
        # (torch's own words name a symbol of its algebra, which says nothing to the reader)
        said = "Python asks for a value that the program computes"
    if (mutated := _MUTATED.search(text)) is not None:
        name = mutated[1]
        unnamed = name.startswith("lifted_tensor")
        held = (
            "a tensor that the loss or an attribute holds"
            if unnamed
            else f"tensor {name.removeprefix('model.')}"
        )
        said = f"the step writes {held} in place, which is no buffer"
    return refuse(code, said, place, hint)


def _chain(error: BaseException | None) -> Any:
    return itertools.takewhile(lambda e: e is not None, _links(error))


def _links(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
