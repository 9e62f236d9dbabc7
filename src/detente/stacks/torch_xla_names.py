"""Names of modules in the lazy programs of PyTorch/XLA: while a step is traced for a capture, every part of it opens a
scope, which ends up in the metadata of the operations that are traced in it.

torch_xla numbers its scopes (``ln_1.7``), which reads like a place in a list; ours end in a sign of their own
(programs/scope.py takes both off). Backward, the scopes are opened again around each node of autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detente.programs.scope import NUMBERED, OPTIMIZER, ROOT, scope_name
from detente.stacks.torch_scopes import Scopes


class Names:
    """The scopes of a lazy step of ``module``."""

    def __init__(self, module: Any) -> None:
        import torch_xla.debug.profiler

        self._trace = torch_xla.debug.profiler.Trace
        self._open: list[Any] = []
        self._paths: list[str] = [""]
        self.scopes = Scopes(module, self._changed)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While it lasts, what is traced is named."""
        from torch.optim import optimizer as optimizers

        handles = [
            optimizers.register_optimizer_step_pre_hook(lambda *_: self._enter(OPTIMIZER)),
            optimizers.register_optimizer_step_post_hook(lambda *_: self._leave()),
        ]
        try:
            with self.scopes.watched():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def backward(self, loss: Any) -> None:
        """``loss.backward()``, every node in the scope of the module that it belongs to."""
        handles = []
        for node in _nodes(loss.grad_fn):
            path = self.scopes.of_node(node)
            if path is None:
                continue
            name = "/".join(filter(None, (f"transpose({ROOT})", scope_name(path))))
            handles.append(node.register_prehook(lambda *_, name=name: self._enter(name)))
            handles.append(node.register_hook(lambda *_: self._leave()))
        try:
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()
            while self._open:
                self._leave()

    def _changed(self, begins: bool, path: str) -> None:
        if not begins:
            self._paths.pop()
            self._leave()
            return
        above = self._paths[-1]
        below = path.removeprefix(f"{above}.") if above else path
        self._paths.append(path)
        self._enter(scope_name(below) if path != above and below else ROOT)

    def _enter(self, name: str) -> None:
        one = self._trace(name + NUMBERED)
        one.__enter__()
        self._open.append(one)

    def _leave(self) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)


def _nodes(root: Any) -> list[Any]:
    """Every node that a backward from ``root`` runs."""
    seen, wanted, found = set(), [root], []
    while wanted:
        node = wanted.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.append(node)
        wanted += [n for n, _ in node.next_functions]
    return found
