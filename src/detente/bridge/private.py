"""Every name of torch's and of JAX's that they do not promise to keep, for the whole bridge.

Tested with torch 2.9 to 2.13 and jax 0.7 to 0.12. ``tests/bridge/test_private.py`` tries each for what it is used for,
and holds the other files of the bridge against this one: where a release takes something away, one test names it.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import jax
import jax.experimental.serialize_executable as executables  # noqa: F401
import numpy as np
import torch
import torch._decomp
import torch._dispatch.python
import torch._dynamo  # torch.compiler's checkpoint regions are looked up in it
import torch._export.utils
import torch._functorch.apis as functorch_apis  # noqa: F401
import torch._functorch.eager_transforms as functorch_transforms
import torch._functorch.vmap as functorch_vmap
import torch._higher_order_ops.wrap as checkpoint_operators  # noqa: F401
import torch._ops
import torch._subclasses.fake_tensor
import torch._VF
import torch._vmap_internals as older_vmap  # noqa: F401
import torch.utils._python_dispatch
import torch.utils._pytree as pytree  # noqa: F401
from jax._src.lib import xla_client
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx.experimental import proxy_tensor
from torch.fx.node import _side_effectful_functions
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

# A lowered program, as objects that can be changed, and its dialect.
mlir: Any = ir
stablehlo: Any = hlo

HigherOrderOperator = torch._ops.HigherOrderOperator
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
FakeTensor = torch._subclasses.fake_tensor.FakeTensor
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
# The mode of fake tensors, or None; and what composite operators are taken apart under while a program is traced.
fake_mode_of = torch._guards.detect_fake_mode
python_dispatcher = torch._dispatch.python.enable_python_dispatcher
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
outside_of_modes = torch.utils._python_dispatch._disable_current_modes
# ``with outside_of_transforms():`` none of ``torch.func``'s transforms is running.
outside_of_transforms = temporarily_clear_interpreter_stack
make_subclass = torch.Tensor._make_subclass
# A view that notes, and does not compute, that it is the negative.
neg_view = torch._neg_view
# Every batch norm, and every instance norm.
BatchNorm, InstanceNorm = _BatchNorm, _InstanceNorm
# Functions of a captured graph that elimination of dead nodes leaves alone; may be added to.
kept_in_graphs = _side_effectful_functions
# What torch.autograd.grad and backward() call.
run_backward: Callable[..., Any] = torch.autograd.graph._engine_run_backward

# The module through which recurrent layers and packing call their kernels; what is set there is found first.
recurrent_kernels = torch._VF

# Where ``torch.func``'s transforms and ``torch.vmap`` wrap a tensor, past every ``__torch_function__``.
WRAPPING = (
    (functorch_transforms, "_wrap_for_grad"),
    (functorch_transforms, "_wrap_functional_tensor"),
    (functorch_vmap, "_add_batch_dim"),
)

# Where ``torch.jit.script`` and ``torch.jit.trace`` take a module's tensors into C, where nobody is asked any more.
SCRIPTING = (torch.jit._recursive, "create_script_module")

# ``with without_functions():`` nobody's ``__torch_function__`` is asked, a mode's neither; ``with
# without_subclasses():`` no ``__torch_function__`` of a subclass is asked.
without_functions = torch._C.DisableTorchFunction
without_subclasses = torch._C.DisableTorchFunctionSubclass
# ``with without_modes():`` no dispatch mode is asked, a capture's fake tensors and its trace among them.
without_modes = torch.utils._python_dispatch._disable_current_modes


# Modes that a step does not have to know of: torch's own change no value (a default device), ours are active only in
# what we do. But torch's counter of operations hooks every module, and would count none.
_KNOWN_MODES, _COUNTS = ("torch.", "detente.bridge."), "torch.utils.flop_counter"


def _is_users(mode: Any) -> bool:
    module = type(mode).__module__
    return module == _COUNTS or not module.startswith(_KNOWN_MODES)


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _dispatch_modes() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]


def users_dispatch_modes() -> list[Any]:
    """Those of the user's ``TorchDispatchMode``s that are active."""
    return [mode for mode in _dispatch_modes() if _is_users(mode)]


def users_modes() -> list[Any]:
    """Modes of the user's own that are active (``TorchFunctionMode``, ``TorchDispatchMode``): Python code that runs at
    every function of torch's, or below every operator."""
    return [mode for mode in (*_function_modes(), *_dispatch_modes()) if _is_users(mode)]


@contextmanager
def with_users_modes(modes: Sequence[Any] = ()) -> Iterator[None]:
    """Of the user's modes these function modes are on inside, and no others."""
    functions = _function_modes()
    wanted = [*(mode for mode in functions if not _is_users(mode)), *modes]
    below = outside_of_modes() if any(map(_is_users, _dispatch_modes())) else nullcontext()
    if wanted == functions:
        with below:
            yield
        return
    _stand(functions, wanted)
    try:
        with below:
            yield
    finally:
        _stand(wanted, functions)


def _stand(before: Sequence[Any], after: Sequence[Any]) -> None:
    """The function modes that are ``after``, the outermost first, in the place of those that were ``before``."""
    for _ in before:
        torch._C._pop_torch_function_stack()
    for mode in after:
        torch._C._push_on_torch_function_stack(mode)


# What torch keeps of the last export until the next one: its whole graph, and through that every tensor of the module,
# weakly; ``torch.utils.swap_tensors`` refuses such ones.
left_of_export: dict[int, Any] = getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {})

# torch's own writing of some operations in smaller ones.
decompositions = torch._decomp.get_decompositions


def stays_whole(op: Any) -> bool:
    """Whether ``run_decompositions({})`` leaves an operator as it is, but for what it writes."""
    composite = torch._export.utils._is_cia_op(op)
    return not composite or torch._export.utils._is_preservable_cia_op(op)


def plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function`` with no ``__torch_function__`` asked. In C, and not a ``with``, which an interrupt can leave by a
    way on which nothing is switched on again."""
    return torch._C._disabled_torch_function_impl(function, (), args, kwargs)


def hooks_at_node(leaf: torch.Tensor) -> list[Callable[..., Any]]:
    """Hooks at the node that adds up a leaf's gradient, which no table of the leaf's shows (those of DDP, of Horovod).
    They are asked for by a hook of our own: torch gives its handle the table that the others are in."""
    try:
        node = plainly(torch.autograd.graph.get_gradient_edge, leaf).node
    except RuntimeError:  # it takes no gradient
        return []
    found, before, asked = [], RemovableHandle.next_id, 0
    for register in (node.register_hook, node.register_prehook):
        handle = register(_nothing)
        asked += 1
        table = handle.hooks_dict_ref() or {}
        found += [hook for key, hook in table.items() if key != handle.id]
        handle.remove()
    # Who counts what was registered (live/sources.py) is not to find that something was.
    if RemovableHandle.next_id == before + asked:
        RemovableHandle.next_id = before
    return found


def _nothing(*given: Any) -> None:
    """A hook that is gone before it runs."""


def holders(tensor: torch.Tensor) -> int:
    """How many tensors hold the memory of this one, itself among them."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1  # the object that was made to ask


def alone(tensor: torch.Tensor) -> bool:
    """Whether nothing but this object leads to the tensor's memory, which torch has allocated: no other tensor, no
    storage that somebody holds, and nothing of C's (a graph of autograd, TorchScript, a transfer)."""
    storage = tensor.untyped_storage()
    held = sys.getrefcount(storage) > _references() or tensor._use_count() > 1 or holders(tensor) > 1
    return not held and storage.resizable() and not tensor.is_pinned()


@cache
def _references() -> int:
    """What Python counts of a storage that nobody else holds: newer versions of torch keep the object themselves."""
    tensor = torch.empty(1)
    storage = tensor.untyped_storage()
    return sys.getrefcount(storage)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """The tensors' version counters: what was written and taken back was not written."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def forward_has_context(function: type[torch.autograd.Function]) -> bool:
    """Whether ``forward`` takes the context itself, and there is no ``setup_context``."""
    plain: Any = torch.autograd.function._SingleLevelFunction.setup_context
    return function.setup_context is plain


def set_grad(on: bool) -> None:
    """As ``torch.set_grad_enabled``, which is a node of a captured program."""
    torch._C._set_grad_enabled(on)


@contextmanager
def outside_of_traces() -> Iterator[None]:
    """What runs in the block is no part of what ``torch.jit.trace`` notes."""
    state = torch._C._get_tracing_state()
    if state is None:
        yield
        return
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def active_modes() -> int:
    """How many dispatch modes are active, whose Python code runs below every operator."""
    return torch._C._len_torch_dispatch_stack()


def packs_saved_tensors() -> bool:
    """Whether ``torch.autograd.graph.saved_tensors_hooks`` are active, which operators call."""
    return saved_tensors_hooks() is not None


def saved_tensors_hooks() -> Any:
    """The innermost (pack, unpack) of ``torch.autograd.graph.saved_tensors_hooks`` that is active, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """None of them packs what is saved inside."""
    held: list[Any] = []
    while (hooks := saved_tensors_hooks()) is not None:
        held.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(held):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def on_host(array: np.ndarray[Any, Any]) -> jax.Array:
    """A copy of an array in memory that is XLA's own, made once and before this returns, where JAX's default device is
    the host. ``device_put`` keeps an array that lies on 64 bytes as it is, and the first program that it is donated to
    copies it; of others, and of what must be ours, it makes a second copy."""
    if jax.config.jax_default_device is None:
        device, *_ = jax.local_devices()
        own = jax.sharding.SingleDeviceSharding(device)
        # A release that has these otherwise copies twice.
        with suppress(AttributeError, TypeError):
            aval = jax.core.ShapedArray(array.shape, array.dtype)
            return xla_client.batched_device_put(aval, own, [array], [device], False, True)
    return jax.device_put(array.copy())


_NAMESPACES = ("aten", "prims", "prim")
_DIFFERENTIATE, _BACKWARD = ("torch.autograd", "torch._functorch"), torch.Tensor.backward


def is_torchs(function: Callable[..., Any], types: Sequence[type]) -> bool:
    """Whether a function that a ``__torch_function__`` is asked about, with the tensor classes among its arguments, is
    torch's own, and neither differentiates nor runs functions (an operator of a higher order does)."""
    if not all(kind.__module__.partition(".")[0] == "torch" for kind in types):
        return False
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace in _NAMESPACES
    if isinstance(function, torch._ops.OpOverloadPacket):
        return function._qualified_op_name.partition("::")[0] in _NAMESPACES
    if isinstance(function, torch._ops.OperatorBase) or function is _BACKWARD:
        return False
    # Methods of builtin types have no module.
    module = getattr(function, "__module__", None) or "torch"
    return module.partition(".")[0] == "torch" and not module.startswith(_DIFFERENTIATE)


def in_transform() -> bool:
    """Whether one of ``torch.func``'s transforms is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def in_wrapping(tensor: torch.Tensor) -> bool:
    """Whether one of ``torch.func``'s transforms has wrapped it: it has no memory of its own."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def versions_of(state: Mapping[str, Any]) -> Any:
    """The versions of a module's parts, which its ``state_dict()`` tells beside the values, as a copy; None where it
    tells none."""
    return copy.deepcopy(getattr(state, "_metadata", None))


def versioned(values: Mapping[str, Any], versions: Any) -> dict[str, Any]:
    """Values by name with such versions, where ``load_state_dict`` looks for them: without, a module that migrates
    older files takes these for the oldest."""
    made: Any = OrderedDict(values)
    if versions is not None:
        made._metadata = versions
    return made
