"""PyTorch, eager: the reference that every other stack is proved against."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from detente.records.arm import Arm
from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.stacks.best_seconds import best_seconds
from detente.stacks.brought_along import by_torch
from detente.stacks.installed_versions import installed_versions
from detente.stacks.moments import by_name, is_count
from detente.stacks.process_memory import forget_peak, keeps_freed, resident
from detente.stacks.protocol import Arrays, Capture, CompileCount, Unavailable
from detente.stacks.torch_form import AS_IT_IS, TorchForm, torch_form
from detente.stacks.torch_trace import operators_of
from detente.workloads.names_asked import names_are_asked
from detente.workloads.narrow import of_torch, to_torch
from detente.workloads.workload import OptimizerSettings, Size, Workload

# What torch's optimizers keep that is not born as zeros, by its key, from the settings of its group.
_BORN: dict[str, Callable[[dict[str, Any]], float]] = {
    "mu_product": lambda group: 1.0,  # NAdam
    "mu": lambda group: 1.0,  # ASGD
    "eta": lambda group: float(group["lr"]),  # ASGD
    "step_size": lambda group: float(group["lr"]),  # Rprop
    "sum": lambda group: float(group.get("initial_accumulator_value", 0.0)),  # Adagrad
}


class TorchRunning:
    """A torch module with its loss and optimizer. Subclasses choose what is compiled by overriding ``_wrap``."""

    def __init__(self, stack: TorchEager, workload: Workload, size: Size, contract: Contract) -> None:
        import torch

        self.torch, self.stack, self.contract, self.workload = torch, stack, contract, workload
        self.definition = importlib.import_module(workload.definitions["torch"])
        self.precision = PRECISIONS[contract.precision]
        self.dtype = getattr(torch, self.precision.parameters)
        # A user's own model in float64 is raised, from its making on and in its backward too.
        build, back = (
            getattr(self.definition, name, None) if self.dtype is torch.float64 else None
            for name in ("build_raised", "backward")
        )
        self._backward: Callable[[Any], None] = back or torch.Tensor.backward
        placed = self._place_module((build or self.definition.build)(size))
        self.module = stack.form.laid_out(torch, placed)
        self.module.train(contract.region != "forward")
        self._example: Any = None
        self.persistent = set(self.module.state_dict())
        self._integers = {
            n: b.clone()
            for n, b in self.module.named_buffers()
            if not b.is_floating_point() and n in self.persistent
        }
        self.optimizer = optimizer_for(
            self.definition, contract, self.module, workload.optimizer, fused=stack.fused
        )
        self._loss = self._attending(self._wrap_loss(self._loss_of))
        self._run: Callable[[Any], Any] = self._wrap_step(
            {"forward": self._forward, "gradient": self._gradient, "train-step": self._train}[contract.region]
        )

    def _attending(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Around what is compiled, too: a compiler takes attention apart by what is allowed while it traces."""
        form = self.stack.form
        if form == AS_IT_IS:
            return loss

        def attending(batch: Any) -> Any:
            with form.attending(self.torch):
                return loss(batch)

        return attending

    # What a compiled stack replaces -------------------------------------------------------------------------

    def _place_module(self, module: Any) -> Any:
        """To the stack's device and the contract's dtype. Ties between parameters survive."""
        return module.to(device=self.stack.device, dtype=self.dtype)

    def _wrap_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The module and its loss, forward; autograd follows whatever this returns."""
        return loss

    def _wrap_step(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The whole region."""
        return step

    def _update(self) -> None:
        self.optimizer.step()

    # The three regions --------------------------------------------------------------------------------------

    def _autocast(self) -> Any:
        if self.precision.compute == self.precision.parameters:
            return nullcontext()
        return self.torch.autocast(self.stack.device.type, dtype=getattr(self.torch, self.precision.compute))

    def _loss_of(self, batch: Any) -> Any:
        with self._autocast():
            return self.definition.loss(self.module, batch)

    def _forward(self, batch: Any) -> Any:
        with self.torch.no_grad():
            return self._loss(batch)

    def _gradient(self, batch: Any) -> Any:
        wanted = [batch[name] for name in self.workload.batch_gradients]
        for tensor in wanted:
            tensor.requires_grad_(True)
            tensor.grad = None
        self._clear_gradients()
        loss, _ = self._loss(batch)
        self._backward(loss)
        found = {n: p.grad for n, p in self.module.named_parameters()}
        found |= {f"batch:{n}": batch[n].grad for n in self.workload.batch_gradients}
        # The parameters let go of their gradients: the handle owns them now, and the next run makes new ones.
        self._clear_gradients()
        return loss.detach(), found

    def _train(self, batch: Any) -> Any:
        self._clear_gradients()
        loss, _ = self._loss(batch)
        self._backward(loss)
        self._update()
        return loss.detach(), {}

    def _clear_gradients(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None

    # The Protocol -------------------------------------------------------------------------------------------

    def load(self, tensors: Arrays) -> None:
        torch = self.torch
        with torch.no_grad():
            for name, target in self._named():
                target.copy_(to_torch(torch, tensors[name]))
            # State is zeroed in place rather than dropped: a compiled step guards on the state's identity, and a
            # zero state is the initial one for AdamW, and for SGD too (mu * 0 + g = g).
            kept = self.optimizer.state if self.optimizer is not None else {}
            for group in self.optimizer.param_groups if self.optimizer is not None else ():
                for parameter in group["params"]:
                    for key, value in kept.get(parameter, {}).items():
                        if isinstance(value, torch.Tensor):
                            value.fill_(_BORN.get(key, lambda group: 0.0)(group))
            for (
                name,
                value,
            ) in self._integers.items():  # num_batches_tracked, and whatever else a module counts
                self.module.get_buffer(name).copy_(value)
        self._clear_gradients()

    @property
    def takes_pinned(self) -> bool:
        """Whether ``place`` wants tensors in page-locked memory: a GPU copies from it without a detour."""
        return self.stack.device.type == "cuda"

    def place(self, batch: Arrays) -> Any:
        torch = self.torch
        placed = {}
        for name, array in batch.items():
            held: Any = array  # of a loader that pins: a tensor already
            if not isinstance(held, torch.Tensor):
                held = torch.from_numpy(np.array(held))
            tensor = held.to(self.stack.device)
            tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            placed[name] = self.stack.form.placed(torch, tensor)
        self.stack.wait()
        return placed

    def step(self, batch: Any) -> Any:
        self._example = batch
        return self._run(batch)

    def synchronise(self, *handles: Any) -> None:
        self.stack.wait()

    def loss(self, handle: Any) -> float:
        return float(handle[0])

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return {n: self._to_host(t) for n, t in handle[1].items() if t is not None}

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        torch = self.torch
        buffers = {n: t.clone() for n, t in self.module.named_buffers()}
        self._clear_gradients()
        loss, _ = self._loss(batch)
        self._backward(loss)
        found = self.held_gradients()
        self._clear_gradients()
        with torch.no_grad():
            for name, target in self.module.named_buffers():
                target.copy_(buffers[name])
        return found

    def held_gradients(self) -> dict[str, np.ndarray]:
        """The gradients that the parameters hold now, on the host."""
        return {n: self._to_host(p.grad) for n, p in self.module.named_parameters() if p.grad is not None}

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: np.array(of_torch(self.torch, t)) for name, t in self._named()}

    def views(self) -> dict[str, np.ndarray]:
        """``tensors`` without a copy: good until the next step, and as long as somebody holds them."""
        return {name: of_torch(self.torch, t) for name, t in self._named()}

    def state(self) -> dict[str, np.ndarray]:
        return {**self.views(), **self._moments()}

    def _moments(self) -> dict[str, np.ndarray]:
        """The optimizer's tensors by torch's key and parameter; its counts of steps as one, where they agree."""
        names = {p: n for n, p in self.module.named_parameters()}
        kept: dict[str, dict[str, np.ndarray]] = {}
        for parameter, state in self.optimizer.state.items() if self.optimizer is not None else ():
            own = kept.setdefault(names[parameter], {})
            for key, value in state.items():
                if isinstance(value, self.torch.Tensor) and value.shape == parameter.shape:
                    own[key] = self._widened(value)
                elif isinstance(value, self.torch.Tensor | float | int) and not isinstance(value, bool):
                    own[key] = np.array(float(value))
        return by_name(kept, {n: tuple(p.shape) for p, n in names.items()})

    def adopt(self, state: Arrays) -> None:
        """Go on from a state that any stack handed out (``state``): the reference takes a stretch of a window again.
        For an optimizer of torch whose state is tensors like its parameters and a count of steps."""
        torch = self.torch
        self.load({n: state[n] for n, _ in self._named()})
        if self.optimizer is None:
            return
        names = {p: n for n, p in self.module.named_parameters()}
        kept: dict[str, list[str]] = {}
        for full in state:
            key, colon, name = full.partition(":")
            kept.setdefault(name if colon else "", []).append(key)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                mine = self.optimizer.state[parameter]
                mine.clear()
                name = names[parameter]
                for key in kept.get(name, ()):
                    array = to_torch(torch, state[f"{key}:{name}"])
                    mine[key] = array.to(self.stack.device).to(
                        parameter.dtype if array.dim() or not is_count(key) else torch.get_default_dtype()
                    )
                if mine and "step" in state:
                    # The count's own dtype is torch's default at the time the state was made.
                    mine["step"] = torch.tensor(float(state["step"]), dtype=torch.get_default_dtype())

    def parameter_names(self) -> frozenset[str]:
        return frozenset(n for n, p in self.module.named_parameters() if p.requires_grad)

    def compiled(self) -> CompileCount:
        return CompileCount()

    def memory(self) -> dict[str, int]:
        if self.stack.device.type == "cuda":
            return {"live_tensors": self.torch.cuda.max_memory_allocated()}
        return {}

    def devices(self, handle: Any) -> tuple[str, ...]:
        tensors = [handle[0], *handle[1].values()]
        return tuple(sorted({self.stack.platform_of(t) for t in tensors if t is not None}))

    def practice(self) -> str:
        """What of the framework's documented practice this row follows, read from the objects that run."""
        said = []
        if self.optimizer is not None:
            fused = any(group.get("fused") for group in self.optimizer.param_groups)
            said.append(f"{type(self.optimizer).__name__}, {'fused' if fused else 'default implementation'}")
        attention = getattr(getattr(self.module, "config", None), "_attn_implementation", None)
        if attention:
            said.append(f"attention: {attention}{', decomposed' if self.stack.form.decomposed else ''}")
        if self.stack.form.channels_last:
            said.append("channels last")
        left_out = getattr(self.definition, "left_out", None)
        if left_out is not None and left_out(self.module):
            said.append(left_out(self.module))
        return "; ".join(said) + keeps_freed()

    def programs(self) -> tuple[Capture, ...]:
        """No program, but to a capture the operators of a step; takes some."""
        if not names_are_asked() or self._example is None:
            return ()
        timed = self.stack.device.type == "cpu"
        return (operators_of(lambda: self.step(self._example), self.module, timed),)

    # -----------------------------------------------------------------------------------------------------------

    def _named(self) -> list[tuple[str, Any]]:
        """Parameters (tied ones once) and persistent floating-point buffers."""
        named = list(self.module.named_parameters())
        return named + [
            (n, b) for n, b in self.module.named_buffers() if n in self.persistent and b.is_floating_point()
        ]

    def _to_host(self, tensor: Any) -> np.ndarray:
        # A copy: on the CPU ``numpy()`` shares the memory that the next step or ``load`` overwrites.
        return np.array(self._widened(tensor))

    def _widened(self, tensor: Any) -> np.ndarray:
        tensor = tensor.detach().cpu()
        if tensor.dtype in (self.torch.bfloat16, self.torch.float16):
            tensor = tensor.float()
        return tensor.numpy()


class TorchEager:
    """torch, op by op."""

    running: type[TorchRunning] = TorchRunning
    # PyTorch's own advice for speed: one kernel per dtype and device instead of a loop over parameters
    # (docs.pytorch.org/docs/stable/optim.html). GPT-2 Small's step on an Intel processor: 0.69 s with it, 1.05 to 1.22
    # without.
    fused: ClassVar[bool] = True
    # Of the arm that the worker runs under.
    form: TorchForm = AS_IT_IS

    def start(self, device: str, precision: str, threads: int) -> str:
        import torch

        self.torch = torch
        torch.set_num_threads(threads)
        # For the fp64 proof the optimizer's step counter must be float64 too: a compiled AdamW forms 1 - beta^step in
        # the counter's dtype, which torch takes from this default, and float32 leaves 1e-8 in the update.
        torch.set_default_dtype(getattr(torch, PRECISIONS[precision].parameters))
        kind = self._device_kind(device)
        self.device = torch.device(kind)
        self.compute = getattr(torch, PRECISIONS[precision].compute)
        if precision == "tf32" and not self._has_tf32():
            raise Unavailable(f"tf32: this device ({kind}) has no TF32 unit")
        # Both switches, always: cuDNN's is on by default and products' is off, which is neither fp32 nor tf32.
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        return self.platform_of(torch.empty(0, device=self.device))

    def _device_kind(self, device: str) -> str:
        torch = self.torch
        if device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            return "cpu"
        if device in ("cuda", "rocm"):
            built = "rocm" if torch.version.hip else "cuda"
            if torch.cuda.is_available() and built == device:
                return "cuda"
            raise Unavailable(f"{device}: torch {torch.__version__} sees no such device")
        raise Unavailable(f"{device}: torch has no such device here")

    def _has_tf32(self) -> bool:
        return self.device.type == "cuda" and self.torch.cuda.get_device_capability()[0] >= 8

    def platform_of(self, tensor: Any) -> str:
        kind = tensor.device.type
        return "rocm" if kind == "cuda" and self.torch.version.hip else kind

    def wait(self) -> None:
        """Everything that was queued on the device is done. The CPU runs eagerly, so there it is a no-op."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def versions(self) -> dict[str, str]:
        return installed_versions("torch", "transformers", "numpy")

    def threads(self) -> dict[str, int]:
        torch = self.torch
        return {
            "torch.get_num_threads": torch.get_num_threads(),
            "torch.get_num_interop_threads": torch.get_num_interop_threads(),
            "affinity": len(os.sched_getaffinity(0)),
        }

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        torch = self.torch
        x, y = (torch.from_numpy(np.array(v)).to(self.device).to(self.compute) for v in (a, b))
        return (x @ y).detach().to(torch.float64).cpu().numpy()

    def product_seconds(self, m: int, k: int, n: int, repeats: int) -> float:
        torch = self.torch
        x = torch.rand(m, k, device=self.device).to(self.compute)
        y = torch.rand(k, n, device=self.device).to(self.compute)
        return best_seconds(lambda: x @ y, lambda _: self.wait(), repeats)

    def copy_seconds(self, elements: int, repeats: int) -> float:
        x = self.torch.ones(elements, device=self.device)
        y = self.torch.empty_like(x)
        return best_seconds(lambda: y.copy_(x), lambda _: self.wait(), repeats)

    def plan(self, workload: Workload, size: Size, contract: Contract, batch: Arrays) -> dict[str, int]:
        """As eager runs it; of a compiled row what its tensors are at most."""
        importlib.import_module(workload.definitions["torch"])
        self._import_all()
        if self.device.type == "cpu":
            by_torch(self.torch, updates=contract.region == "train-step")
            forget_peak()
        base = resident()  # before what only a plan imports
        left = self._left_behind(workload, size, contract, batch)
        from detente.stacks.torch_plan import plan

        return {**plan(self, workload, size, contract, batch), "planned_base": base, **left}

    def _import_all(self) -> None:
        """What the first step of such a row imports."""

    def _left_behind(
        self, workload: Workload, size: Size, contract: Contract, batch: Arrays
    ) -> dict[str, int]:
        """``planned_compiler``: what a compiler leaves in the process. Eager has none."""
        return {}

    def build_under(self, arm: Arm, workload: Workload, size: Size, contract: Contract) -> TorchRunning:
        """The same under an arm. Raises Unavailable for one that this step cannot be built under."""
        self.form = torch_form(type(self).__name__, arm)
        return self.build(workload, size, contract)

    def build(self, workload: Workload, size: Size, contract: Contract) -> TorchRunning:
        if "torch" not in workload.definitions:
            raise Unavailable(f"{workload.name} has no definition in torch")
        return self.running(self, workload, size, contract)


class TorchEagerDefault(TorchEager):
    """torch, op by op, with its optimizers' default implementation: the recipe out of the box."""

    fused = False


def optimizer_for(
    definition: Any, contract: Contract, module: Any, settings: OptimizerSettings, *, fused: bool = False
) -> Any:
    """The optimizer of a contract over a torch module: the one that a user's own definition made, where it made one
    (as they made it), else the contract's."""
    own = getattr(definition, "optimizer", None)
    found = own(module) if own is not None and contract.optimizer is not None else None
    return found if found is not None else make_optimizer(contract.optimizer, module, settings, fused=fused)


def make_optimizer(name: str | None, module: Any, settings: OptimizerSettings, *, fused: bool = False) -> Any:
    """``torch.optim.AdamW`` or ``SGD`` with the workload's settings; ``fused`` as torch means it, else its default."""
    import torch

    if name is None:
        return None
    parameters = [p for p in module.parameters() if p.requires_grad]
    choice = {"fused": True} if fused else {}
    if name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            **choice,
        )
    return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, **choice)
