"""Every torch optimizer x options x 10 steps, the compiled update against torch's own."""

import copy

import pytest
import torch
from update_runs import SHAPES, error, parameters, run_bridge, run_torch

from detente.bridge.optim.rule import trace
from tests.sampled import sampled

STEPS = 10

CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    ("SGD", {"lr": torch.tensor(0.1), "momentum": 0.9, "fused": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "maximize": True, "foreach": True}),
    ("Adam", {"lr": 0.01, "fused": True, "decoupled_weight_decay": True, "weight_decay": 0.05}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.0, "betas": (0.9, 0.95)}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.01}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.01, "weight_decay": 0.1, "maximize": True, "eps": 1e-5}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2}),
    ("Adagrad", {"lr": 0.05, "maximize": True, "eps": 1e-5}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1, "alpha": 0.9}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "maximize": True}),
    ("RMSprop", {"centered": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.005, "etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.05, "lambd": 1e-3, "alpha": 0.6, "t0": 4.0, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "eps": (1e-8, 1e-2), "d": 2.0, "beta2_decay": -0.6}),
    ("Adafactor", {"maximize": True}),
    ("Muon", {}),
    ("Muon", {"lr": 0.02, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}),
]


def build(name, options, dtype=torch.float32):
    shapes = {"matrix": (5, 3), "wide": (3, 6), "square": (4, 4)} if name == "Muon" else SHAPES
    if dtype == torch.float64:  # the same graphs as in float32; two shapes keep the run short
        shapes = {key: shapes[key] for key in list(shapes)[:2]}
    params = parameters(shapes, dtype)
    optimizer = getattr(torch.optim, name)(list(params.values()), **options)
    return shapes, params, optimizer


def same(name, options, dtype, bound, state_bound=None):
    shapes, params, optimizer = build(name, options, dtype)
    rule = trace(optimizer, params.items())
    values, state = run_bridge(rule, optimizer, params, shapes, dtype, range(STEPS))
    run_torch(optimizer, params, shapes, dtype, range(STEPS))
    for key, param in params.items():
        assert error(values[key], param) <= bound, (key, error(values[key], param))
        live = {k: torch.as_tensor(v) for k, v in optimizer.state.get(param, {}).items()}
        assert set(state[key]) - {"#started"} == set(live)
        for leaf, want in live.items():
            assert error(state[key][leaf], want) <= (state_bound or bound), (key, leaf)


def case_id(case):
    return f"{case[0]}-" + ",".join(f"{k}={v}" for k, v in case[1].items())


@pytest.mark.parametrize("case", sampled(CASES, 3), ids=case_id)
def test_ten_steps_in_float32_equal_torch(case):
    muon = case[0] == "Muon"  # its Newton-Schulz iteration is bfloat16 by definition
    same(*case, torch.float32, 5e-3 if muon else 1e-6, 1e-6)


OTHERS = [c for c in CASES if c[0] != "Muon" and not c[1].get("fused")]


@pytest.mark.parametrize("case", sampled(OTHERS, 3), ids=case_id)
def test_ten_steps_in_float64_are_the_same_function(case):
    if isinstance(case[1].get("lr"), torch.Tensor):
        case = (case[0], {**case[1], "lr": case[1]["lr"].double()})
    # the state's own 0-d float32 leaves (step, mu_product, eta) are float32 in torch too
    same(*case, torch.float64, 2e-12, 1e-6)


def test_the_live_optimizer_is_left_as_it_was():
    _, params, optimizer = build("AdamW", {})
    before = copy.deepcopy(optimizer.state_dict())
    values = {k: p.detach().clone() for k, p in params.items()}
    trace(optimizer, params.items())
    assert optimizer.state_dict() == before
    assert all(torch.equal(p, values[k]) and p.grad is None for k, p in params.items())
