"""Any optimizer, options, shapes and dtypes: the compiled update is torch's."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from update_runs import error, parameters, run_bridge, run_torch

from detente.bridge.optim.rule import trace

# relative to a tensor's largest entry, after three steps. The 16-bit ones are two units in the last place: torch
# rounds between the operators of an update, and so do we, but a different association can move a tie
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-9}

numbers = {
    "lr": st.floats(1e-4, 0.2),
    "weight_decay": st.sampled_from([0.0, 0.01, 0.3]),
    "eps": st.floats(1e-6, 1e-3),
    "momentum": st.sampled_from([0.0, 0.5, 0.95]),
    "dampening": st.sampled_from([0.0, 0.4]),
    "betas": st.tuples(st.floats(0.0, 0.95), st.floats(0.5, 0.9999)),
    "alpha": st.floats(0.5, 0.99),
    "rho": st.floats(0.5, 0.99),
}
flags = {name: st.booleans() for name in ("maximize", "amsgrad", "centered", "decoupled_weight_decay")}
OPTIONS = {
    "SGD": ("lr", "weight_decay", "momentum", "dampening", "maximize"),
    "Adam": ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay"),
    "AdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    "NAdam": ("lr", "betas", "eps", "weight_decay", "maximize", "decoupled_weight_decay"),
    "RAdam": ("lr", "betas", "eps", "weight_decay", "maximize", "decoupled_weight_decay"),
    "Adamax": ("lr", "betas", "eps", "weight_decay", "maximize"),
    "Adagrad": ("lr", "eps", "weight_decay", "maximize"),
    "Adadelta": ("lr", "rho", "eps", "weight_decay", "maximize"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"),
    "Rprop": ("lr", "maximize"),
    "ASGD": ("lr", "weight_decay", "maximize"),
    "Adafactor": ("lr", "weight_decay", "maximize"),
}
shapes = st.lists(st.lists(st.integers(1, 5), max_size=4).map(tuple), min_size=1, max_size=3)


@st.composite
def optimizers(draw):
    name = draw(st.sampled_from(sorted(OPTIONS)))
    strategies = numbers | flags
    return name, {key: draw(strategies[key]) for key in OPTIONS[name] if draw(st.booleans()) or key == "lr"}


@given(case=optimizers(), shapes=shapes, dtype=st.sampled_from(list(BOUNDS)))
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_three_steps_equal_torch(case, shapes, dtype):
    check(case, shapes, dtype)


@pytest.mark.matrix
@given(case=optimizers(), shapes=shapes, dtype=st.sampled_from(list(BOUNDS)))
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_three_steps_equal_torch_on_many_more(case, shapes, dtype):
    check(case, shapes, dtype)


def check(case, shapes, dtype):
    name, options = case
    named = {f"p{i}": shape for i, shape in enumerate(shapes)}
    params = parameters(named, dtype)
    optimizer = getattr(torch.optim, name)(list(params.values()), **options)
    rule = trace(optimizer, params.items())
    values, state = run_bridge(rule, optimizer, params, named, dtype, range(3))
    run_torch(optimizer, params, named, dtype, range(3))
    for key, param in params.items():
        assert str(values[key].dtype) == str(dtype).removeprefix("torch.")
        assert error(values[key], param) <= BOUNDS[dtype], (key, error(values[key], param))
        for leaf, live in optimizer.state.get(param, {}).items():
            assert str(state[key][leaf].dtype) == str(live.dtype).removeprefix("torch.")
            assert tuple(state[key][leaf].shape) == tuple(live.shape)
