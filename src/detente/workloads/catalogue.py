"""The table of workloads. A folder's ``spec.py`` is imported only when its workload is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path

from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean
from detente.workloads.overrides import override, split_name
from detente.workloads.workload import Size, Workload

WORKLOADS: dict[str, str] = {
    "gemm": "detente.workloads.gemm.spec",
    "ffn": "detente.workloads.ffn.spec",
    "mha": "detente.workloads.mha.spec",
    "gpt2": "detente.workloads.gpt2.spec",
    "resnet": "detente.workloads.resnet.spec",
    "resnet50": "detente.workloads.resnet50.spec",
    "bert": "detente.workloads.bert.spec",
    "vit": "detente.workloads.vit.spec",
    "gpt_neo": "detente.workloads.gpt_neo.spec",
    "llama": "detente.workloads.llama.spec",
}


def spec_of(name: str) -> str:
    """The module that describes the workload called ``name``, of our table or the user's own."""
    return "detente.workloads.own.spec" if is_own(name) else WORKLOADS[name]


def is_own(name: str) -> bool:
    """Whether it is a model of the user's."""
    return name.startswith("hf:") or ".py:" in name


def find_workload(name: str) -> Workload:
    """The workload called ``name``, or the user's own model as ``path/to/file.py:function`` or ``hf:CONFIG``.

    Raises UsageFault with the nearest name when there is none.
    """
    if is_own(name):
        return importlib.import_module(spec_of(name)).own_workload(name)
    if name.endswith(".py") and Path(name).expanduser().is_file():
        raise UsageFault(
            f"{name} is a file, and which function of it makes the model is not said",
            f"name it behind a colon: {name}:make",
        )
    if name not in WORKLOADS:
        raise UsageFault(
            f"no workload is called {name!r}" + did_you_mean(name, WORKLOADS),
            "`detente workloads` lists them; a model of your own is path/to/file.py:function",
        )
    return importlib.import_module(spec_of(name)).WORKLOAD


def find_size(workload: Workload, name: str | None) -> Size:
    """The size called ``name``, with overrides behind it as ``paper,batch=4`` (overrides.py); the workload's largest
    when None, or when there is nothing before the first comma.

    Raises UsageFault with the sizes, or the dimensions, there are.
    """
    if name is None:
        return list(workload.sizes.values())[-1]
    plain, given = split_name(name)
    if not plain and given:
        return override(workload, find_size(workload, None), given)
    if plain not in workload.sizes:
        raise UsageFault(
            f"{workload.name} has no size {plain!r}" + did_you_mean(plain, workload.sizes),
            f"its sizes are {', '.join(workload.sizes)}",
        )
    return override(workload, workload.sizes[plain], given)
