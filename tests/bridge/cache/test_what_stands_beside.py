"""What a stored program depends on beside its name: what stood in libraries when it was captured, and what its code
asks for by a string. Another thing there is another program; the same again is found."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import detente

X, Y = torch.linspace(-1, 1, 18).view(3, 6), torch.tensor([0, 1, 2])
LOG_PROB, PLAIN = torch.distributions.Normal.log_prob, F.cross_entropy
RATE = 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


def entropy(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Whether the program of a model and a loss was there already; what it gives is eager's, either way."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "cache"))

    def compiled(build: Any = Net, loss: Any = entropy) -> bool:
        torch.manual_seed(0)
        model = build()
        with torch.no_grad():
            expected = float(loss(model, (X, Y)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        options = {"certificate": "none", "quiet": True}
        step = detente.compile(model, loss, optimizer, example_batch=(X, Y), **options)
        assert float(step((X, Y))) == pytest.approx(expected, rel=1e-5)
        (program,) = step.programs
        assert not program.uncached
        return program.cached

    return compiled


def likelihood(model: Any, batch: Any) -> torch.Tensor:
    normal = torch.distributions.Normal(model(batch[0]), 1.0, validate_args=False)
    return -normal.log_prob(batch[0][:, :3]).mean()


class Smooth:
    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return PLAIN(*args, **{**kwargs, "label_smoothing": 0.4})


OTHERS: dict[str, tuple[Any, str, Any, Any]] = {
    "a partial": (F, "cross_entropy", functools.partial(PLAIN, label_smoothing=0.4), entropy),
    "an object that is called": (F, "cross_entropy", Smooth(), entropy),
    "a wrapper with its name": (
        F, "cross_entropy", functools.wraps(PLAIN)(lambda *a, **k: PLAIN(*a, **{**k, "label_smoothing": 0.3})), entropy,
    ),
    "another of torch's": (F, "relu", F.silu, entropy),
    "a method of a distribution": (
        torch.distributions.Normal, "log_prob", lambda self, value: 3 * LOG_PROB(self, value), likelihood,
    ),
    "a method that the class had not": (
        nn.Linear, "__call__", lambda self, x: 2 * nn.Module.__call__(self, x), entropy,
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", OTHERS)
def test_a_function_of_torchs_that_was_replaced(which: str, found: Any, monkeypatch: Any) -> None:
    owner, name, other, loss = OTHERS[which]
    assert not found(loss=loss)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, other, raising=False)
        assert not found(loss=loss)
        assert found(loss=loss)
    found(loss=loss)  # and back again: from whichever file, it is of what stands there


PACKAGE = {
    "__init__.py": "",
    "model.py": """
        from torch import nn

        from timm import helpers
        from timm.numbers import SCALE

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

            def forward(self, x):
                return SCALE * self.b(helpers.KINDS["plain"](helpers.squash(self.a(x))))
        """,
    "numbers.py": "SCALE = 1.0\n",
    "helpers.py": """
        def squash(x):
            return x.tanh()

        def keep(x):
            return x

        KINDS = {"plain": keep}
        """,
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the package as another process does; ``edit`` puts another text into a file of it."""
    place = tmp_path / "site-packages" / "timm"
    place.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(place.parent))

    def imported(**edit: str) -> Any:
        for name, text in PACKAGE.items():
            wanted = textwrap.dedent(edit.get(name.removesuffix(".py"), text))
            if not (place / name).exists() or (place / name).read_text() != wanted:
                (place / name).write_text(wanted)
        forget()
        importlib.invalidate_caches()
        return importlib.import_module("timm.model")

    yield imported
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        del sys.modules[name]


def louder(x: torch.Tensor) -> torch.Tensor:
    return 2.0 * x


@pytest.mark.parametrize(
    "edit",
    [
        {"helpers": PACKAGE["helpers.py"].replace("x.tanh()", "2.25 * x.tanh()")},
        {"numbers": "SCALE = 3.0\n"},
        {"__init__": "# a release that runs nothing else\n"},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_another_file_of_a_package_that_is_known(edit: dict[str, str], found: Any, package: Any) -> None:
    assert not found(package().Net)
    assert found(package().Net)
    assert not found(package(**edit).Net)
    assert found(package(**edit).Net)


def test_a_registry_of_a_package_holds_the_users_function(found: Any, package: Any) -> None:
    assert not found(package().Net)
    model = package()
    model.helpers.KINDS["plain"] = louder
    assert not found(model.Net)
    model = package()
    model.helpers.KINDS["plain"] = louder
    assert found(model.Net)
    assert not found(package().Net)


def test_a_function_of_a_package_that_was_not_imported_yet(found: Any, package: Any) -> None:
    """As long as nobody has, nobody has replaced it."""
    lazily = (
        PACKAGE["model.py"]
        .replace("from timm import helpers", "")
        .replace("return SCALE", "from timm import helpers\n                return SCALE")
    )
    assert not found(package(model=lazily).Net)
    module = package(model=lazily)
    assert "timm.helpers" not in sys.modules
    assert _found_only(module.Net)


def _found_only(build: Any) -> bool:
    """As ``found``, without eager, which would import."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"certificate": "none", "quiet": True}
    step = detente.compile(model, entropy, optimizer, example_batch=(X, Y), **options)
    return step.programs[0].cached


def by_globals(model: Any, batch: Any) -> torch.Tensor:
    return entropy(model, batch) * globals()["RATE"]


def by_its_own_module(model: Any, batch: Any) -> torch.Tensor:
    return entropy(model, batch) * sys.modules[__name__].RATE  # type: ignore[attr-defined]


def by_eval(model: Any, batch: Any) -> torch.Tensor:
    return entropy(model, batch) * eval("RATE")


def by_import_module(model: Any, batch: Any) -> torch.Tensor:
    return entropy(model, batch) * importlib.import_module(__name__).RATE


@pytest.mark.parametrize(
    "loss", [by_globals, by_its_own_module, by_eval, by_import_module], ids=lambda f: f.__name__
)
def test_a_value_that_is_asked_for_by_a_string(loss: Any, found: Any, monkeypatch: Any) -> None:
    assert not found(loss=loss)
    assert found(loss=loss)
    monkeypatch.setattr(sys.modules[__name__], "RATE", 2.0)
    assert not found(loss=loss)


def test_a_module_that_is_imported_when_the_loss_runs(tmp_path: Path, found: Any, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def loss(model: Any, batch: Any) -> torch.Tensor:
        import settings_of_this_loss  # type: ignore[import-not-found]

        return entropy(model, batch) * settings_of_this_loss.RATE

    told = []
    for rate in (1.0, 1.0, 22.0):
        (tmp_path / "settings_of_this_loss.py").write_text(f"RATE = {rate}\n")
        sys.modules.pop("settings_of_this_loss", None)
        importlib.invalidate_caches()
        told.append(_told(loss))
    sys.modules.pop("settings_of_this_loss", None)
    assert [cached for cached, _ in told] == [False, True, False]
    assert told[2][1] == pytest.approx(22 * told[0][1])


def _told(loss: Any) -> tuple[bool, float]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"certificate": "none", "quiet": True}
    step = detente.compile(model, loss, optimizer, example_batch=(X, Y), **options)
    return step.programs[0].cached, float(step((X, Y)))


def test_a_name_that_is_made_while_the_code_runs_keeps_a_program_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    name = "".join(("RA", "TE"))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = detente.compile(
        model,
        lambda m, b: entropy(m, b) * globals()[name],
        optimizer,
        example_batch=(X, Y),
        certificate="none",
    )
    assert "asks globals by a name that it makes itself" in step.programs[0].uncached
    assert not [file for file in os.listdir(tmp_path) if file.endswith(".program")]
