"""What torch and JAX do not promise: each name that is used does what it is used for, and stands in one file."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from detente import bridge
from detente.bridge import private
from detente.bridge.lower.precision import x64

HERE = Path(bridge.__file__).parent
# A part of a dotted name that is torch's or JAX's own business.
_OWN = re.compile(r"^_[a-zA-Z]")
# jax.experimental.enable_x64 is what jax before 0.8 had instead of jax.enable_x64: lower/precision.py asks which.
_KNOWN = {("lower/precision.py", "jax.experimental")}


class Told(torch.Tensor):
    asked = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_recurrent_layers_find_what_is_set_in_front_of_their_kernels() -> None:
    called = []
    plain = private.recurrent_kernels.gru
    private.recurrent_kernels.gru = lambda *args: called.append(args) or plain(*args)
    try:
        torch.nn.GRU(2, 3)(torch.ones(4, 1, 2))
    finally:
        del private.recurrent_kernels.gru
    assert len(called) == 1 and "gru" not in vars(private.recurrent_kernels)


def test_an_operation_is_found_in_smaller_ones() -> None:
    aten = torch.ops.aten
    found = private.decompositions((aten._softmax, aten._log_softmax))
    x = torch.tensor([[0.5, -1.0, 2.0]])
    for operation in (aten._softmax.default, aten._log_softmax.default):
        torch.testing.assert_close(found[operation](x, -1, False), operation(x, -1, False))


def test_a_subclass_is_not_asked() -> None:
    told = torch.ones(2).as_subclass(Told)
    _ = told.requires_grad, told + 1
    assert Told.asked > 0
    before = Told.asked
    assert private.plainly(lambda: told._version) == 0
    with private.without_subclasses():
        _ = told + 1
    assert Told.asked == before


def test_a_trace_does_not_note_what_runs_outside_of_it() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        with private.outside_of_traces():
            torch.ones(1).cos()
        return x.sin()

    traced = torch.jit.trace(twice, torch.ones(2))
    assert "aten::sin" in str(traced.graph) and "aten::cos" not in str(traced.graph)


def test_transforms_wrap_where_it_is_seen() -> None:
    seen = []

    def square(x: torch.Tensor) -> torch.Tensor:
        seen.append((private.in_transform(), private.in_wrapping(x)))
        with private.outside_of_transforms():
            assert not private.in_transform()
        return x.square().sum()

    told = []
    for module, name in private.WRAPPING:
        plain = getattr(module, name)
        setattr(
            module, name, lambda t, *rest, plain=plain, name=name: (told.append(name), plain(t, *rest))[1]
        )
        try:
            torch.func.grad(square)(torch.ones(2))
            torch.vmap(square)(torch.ones(2, 2))
            torch.func.functionalize(square)(torch.ones(2))
        finally:
            setattr(module, name, plain)
    assert set(told) == {name for _, name in private.WRAPPING}
    assert all(running and wrapped for running, wrapped in seen)
    assert not private.in_wrapping(torch.ones(1))
    assert not private.in_transform()


def test_versions_are_set() -> None:
    one, two = torch.zeros(1), torch.zeros(1)
    one.add_(1)
    two.add_(1)
    private.set_versions([one, two], [0, 5])
    assert (one._version, two._version) == (0, 5)


def test_the_versions_of_a_modules_parts_go_along() -> None:
    met: list[object] = []

    class Second(torch.nn.Module):
        _version = 2

        def _load_from_state_dict(self, state, prefix, local, *rest) -> None:  # type: ignore[no-untyped-def]
            met.append(local.get("version"))

    state = Second().state_dict()
    for given in (private.versioned(dict(state), private.versions_of(state)), private.versioned({}, None)):
        Second().load_state_dict(given)
    assert met == [2, None]


def test_a_function_with_its_context_in_forward_is_told_from_one_without() -> None:
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def, override]
            return x

    class New(torch.autograd.Function):
        @staticmethod
        def forward(x):  # type: ignore[no-untyped-def, override]
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def, override]
            return None

    assert private.forward_has_context(Old)
    assert not private.forward_has_context(New)


def test_a_mode_sees_operators_and_can_be_left() -> None:
    class Sees(private.TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[object] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    with Sees() as mode:
        _ = torch.ones(1) + 1
        count = len(mode.seen)
        with private.outside_of_modes():
            _ = torch.ones(1) + 1
        assert len(mode.seen) == count > 0
    assert all(isinstance(func, private.OpOverload) for func in mode.seen)
    assert isinstance(torch.ops.aten.add, private.OpOverloadPacket)


class Mine(torch.overrides.TorchFunctionMode):
    pass


class Below(private.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


def test_modes_of_the_users_are_told_from_torchs_and_can_be_left() -> None:
    assert private.users_modes() == []
    with torch.device("cpu"), Mine() as mine, torch.overrides.BaseTorchFunctionMode(), Below() as below:
        assert private.users_modes() == [mine, below]
        assert private.users_dispatch_modes() == [below]
        with private.with_users_modes():
            assert private.users_modes() == []
            with private.with_users_modes([mine]):
                assert private.users_modes() == [mine]
        assert private.users_modes() == [mine, below]
    assert private.users_modes() == []
    with FlopCounterMode(display=False):
        assert len(private.users_modes()) == 1


def test_hooks_on_what_is_saved_can_be_left() -> None:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("packed")

    x = torch.ones(2, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autograd.graph.save_on_cpu():
        before = private.saved_tensors_hooks()
        with private.without_saved_tensors_hooks():
            x.square().sum().backward()
        assert private.saved_tensors_hooks() == before
    assert private.saved_tensors_hooks() is None


def test_fake_tensors_hold_no_values() -> None:
    with private.FakeTensorMode():
        made = torch.ones(3) + 1
    assert isinstance(made, private.FakeTensor)
    assert made.shape == (3,)


def test_operators_of_higher_order_are_told_apart() -> None:
    assert isinstance(torch.ops.higher_order.cond, private.HigherOrderOperator)
    assert isinstance(private.checkpoint_operators.tag_activation_checkpoint, private.HigherOrderOperator)


def test_an_executable_goes_through_bytes() -> None:
    compiled = jax.jit(lambda x: x * 2).lower(jnp.ones(2)).compile()
    payload, given, taken = private.executables.serialize(compiled)
    again = private.executables.deserialize_and_load(payload, given, taken)
    assert again(jnp.ones(2)).tolist() == [2.0, 2.0]


def _operation(module: Any, name: str) -> Any:
    """The only operation of that name."""
    found: list[Any] = []

    def look(op: Any) -> Any:
        found.extend([op] if op.name == name else [])
        return private.mlir.WalkResult.ADVANCE

    module.operation.walk(look)
    (op,) = found
    return op


@pytest.mark.parametrize("off", [0, 16], ids=["on 64 bytes", "beside them"])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int64", "bool", "bfloat16", "complex64", "float8_e4m3fn"]
)
def test_a_copy_on_the_host_is_xlas_own(dtype: str, off: int) -> None:
    """``device_put`` keeps what lies on 64 bytes, and whoever writes to that writes to the array."""
    memory = np.zeros(4096 + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + off
    array = memory[begin : begin + 4096].view(jnp.dtype(dtype))
    array[:] = np.ones((), jnp.dtype(dtype))
    with x64():
        made, wanted = private.on_host(array), jax.device_put(array.copy())
    assert (made.aval, made.sharding, made.committed) == (wanted.aval, wanted.sharding, wanted.committed)
    memory[:] = 0
    np.testing.assert_array_equal(np.asarray(made), np.asarray(wanted))
    run = jax.jit(lambda x: x.at[0].set(x[1]), donate_argnums=0).lower(made).compile()
    place = made.unsafe_buffer_pointer()
    assert place != array.ctypes.data and run(made).unsafe_buffer_pointer() == place, "copied once more"


def test_a_copy_on_the_host_goes_where_the_user_wants_arrays() -> None:
    device = jax.local_devices()[0]
    with jax.default_device(device):
        made, wanted = private.on_host(np.ones(3, np.float32)), jax.device_put(np.ones(3, np.float32))
    assert made.committed == wanted.committed and made.devices() == {device}


def test_a_lowered_program_is_changed_in_place_and_compiled_so() -> None:
    two = jnp.full(2, 5.0), jnp.full(2, 3.0)
    lowered = jax.jit(lambda a, b: a - b).lower(*two)
    module = lowered.compiler_ir()
    op = _operation(module, "stablehlo.subtract")
    with module.context:
        place, results = private.mlir.InsertionPoint(op), [op.results[0].type]
        other = private.mlir.Operation.create(
            "stablehlo.add", results=results, operands=list(op.operands), ip=place, loc=op.location
        )
        op.results[0].replace_all_uses_with(other.results[0])
        op.erase()
    assert lowered.compile()(*two).tolist() == [8.0, 8.0]
    product = jax.jit(lambda a, b: a.T @ b).lower(jnp.ones((3, 2)), jnp.ones((3, 4))).compiler_ir()
    dot = _operation(product, "stablehlo.dot_general")
    numbers = private.stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    assert [*numbers.lhs_contracting_dimensions] == [1] and [*numbers.rhs_contracting_dimensions] == [0]


def _dotted(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def _names(tree: ast.AST) -> set[str]:
    """Every dotted name of torch's and JAX's in a file, imported or written."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(_dotted(node))
    return {name for name in found if name.split(".")[0] in ("torch", "jax", "jaxlib")}


def _private(name: str) -> bool:
    """Not torch's operators, which are named in a table of their own, nor what every module has (``__file__``)."""
    if name.startswith("torch.ops."):
        return False
    return any(_OWN.match(part) for part in name.split(".")) or name.startswith(
        ("jax.experimental", "jax.interpreters", "jax.extend")
    )


def test_they_stand_in_one_file() -> None:
    elsewhere = {
        f"{path.relative_to(HERE)}: {name}"
        for path in HERE.rglob("*.py")
        if path.name != "private.py"
        for name in _names(ast.parse(path.read_text(encoding="utf-8")))
        if _private(name)
        and not any(str(path.relative_to(HERE)) == file and name.startswith(known) for file, known in _KNOWN)
    }
    assert not elsewhere, sorted(elsewhere)


def _scripted(parameter: torch.nn.Parameter) -> Any:
    layer = torch.nn.Linear(3, 4, bias=False)
    layer.weight = parameter
    return torch.jit.script(layer)


# What leads to a tensor's memory besides the tensor. Each is held for as long as its object is.
OTHER_WAYS: dict[str, Any] = {
    "an alias": lambda t: t.detach(),
    "a view": lambda t: t.view(-1),
    "a storage": lambda t: t.untyped_storage(),
    "an array": lambda t: t.detach().numpy(),
    "an array of the exchange": lambda t: np.from_dlpack(t.detach()),
    "a graph": lambda t: t.sin().sum(),
    "TorchScript": _scripted,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_what_else_leads_to_a_tensors_memory_is_counted(way: str) -> None:
    tensor = torch.nn.Parameter(torch.ones(4, 3))
    assert private.alone(tensor) and private.alone(tensor), "asking leaves nothing"
    held = OTHER_WAYS[way](tensor)
    assert not private.alone(tensor)
    del held
    # torch notes for good that an array has shown it, and a script may keep what it has compiled.
    assert private.alone(tensor) or way in ("an array", "TorchScript")


def test_memory_that_is_not_torchs_is_nobodys_alone() -> None:
    array = np.ones((4, 3), dtype=np.float32)
    assert not private.alone(torch.nn.Parameter(torch.from_numpy(array)))
    assert not private.alone(torch.nn.Parameter(torch.frombuffer(bytearray(48), dtype=torch.float32)))
