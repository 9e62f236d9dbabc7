"""The rule around the graphs: groups, schedulers, state in torch's layout, stacks, refusals."""

import copy
import math
from collections import ChainMap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler
from update_runs import SHAPES, arrays, error, gradients, parameters, run_bridge, run_torch

from detente.bridge.lower.precision import x64
from detente.bridge.optim.accept import no_closure
from detente.bridge.optim.hyper import Stale, encode
from detente.bridge.optim.rule import trace
from detente.bridge.refusal import Refused

MIXED = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1},
    "AdamW": {"lr": 0.01, "amsgrad": True},
    "Adagrad": {},
    "NAdam": {},
    "ASGD": {},
    "Rprop": {},
    "Adafactor": {},
}


def close(values, params, bound=1e-6):
    for name, param in params.items():
        assert error(values[name], param) <= bound, name


def test_groups_with_their_own_numbers_and_flags():
    params = parameters(SHAPES, torch.float32)
    names = list(params)
    optimizer = torch.optim.AdamW(
        [
            {"params": [params[names[0]]], "weight_decay": 0.3, "lr": 0.1},
            {"params": [params[names[1]], params[names[2]]], "weight_decay": 0.0, "betas": (0.5, 0.6)},
            {"params": [params[names[3]]], "amsgrad": True, "maximize": True},
        ],
        lr=0.01,
    )
    rule = trace(optimizer, params.items())
    values, _ = run_bridge(rule, optimizer, params, SHAPES, torch.float32, range(10))
    run_torch(optimizer, params, SHAPES, torch.float32, range(10))
    close(values, params)


@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "warmup"])
def test_torch_schedulers_drive_one_compiled_update(schedule):
    def build():
        params = parameters(SHAPES, torch.float32)
        optimizer = torch.optim.AdamW(params.values(), lr=0.05)
        made = {
            "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 10),
            "onecycle": lambda: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12),  # moves betas too
            "warmup": lambda: lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 5)),
        }
        return params, optimizer, made[schedule]()

    params, optimizer, scheduler = build()
    for step in range(10):
        run_torch(optimizer, params, SHAPES, torch.float32, [step])
        scheduler.step()
    mine, live, ticking = build()
    rule = trace(live, mine.items())
    with x64():
        values, state = arrays(mine), rule.read_state(live, mine)
        apply = jax.jit(rule.apply)
        for step in range(10):
            values, state = apply(
                values, arrays(gradients(SHAPES, torch.float32, step)), state, rule.hyper(live)
            )
            ticking.step()  # warns where the optimizer was never told that it was stepped
    assert apply._cache_size() == 1
    close(values, params)


@pytest.mark.parametrize("name", MIXED)
def test_state_goes_back_into_torch_and_on_from_there(name):
    params = parameters(SHAPES, torch.float32)
    twin_params = {k: torch.nn.Parameter(p.detach().clone()) for k, p in params.items()}
    optimizer, reference = (
        getattr(torch.optim, name)(p.values(), **MIXED[name]) for p in (params, twin_params)
    )
    rule = trace(optimizer, params.items())
    values, state = run_bridge(rule, optimizer, params, SHAPES, torch.float32, range(4))
    rule.write_state(optimizer, state, params)
    with torch.no_grad():
        for key, param in params.items():
            param.copy_(torch.from_numpy(np.array(values[key])))
    run_torch(reference, twin_params, SHAPES, torch.float32, range(4))
    mine, theirs = optimizer.state_dict(), reference.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for index, entry in theirs["state"].items():
        assert list(mine["state"][index]) == list(entry)
        for key, want in entry.items():
            got = mine["state"][index][key]
            assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device)
            assert error(got.numpy(), want) <= 1e-6
    # torch goes on from our state, and a fresh rule goes on from torch's
    later = trace(optimizer, params.items())
    values, _ = run_bridge(later, optimizer, params, SHAPES, torch.float32, range(4, 8))
    for run, p in ((optimizer, params), (reference, twin_params)):
        run_torch(run, p, SHAPES, torch.float32, range(4, 8))
    close(values, twin_params)
    close(arrays(params), twin_params)


def test_reading_and_writing_state_is_exact():
    params = parameters(SHAPES, torch.bfloat16)
    optimizer = torch.optim.AdamW(params.values())
    run_torch(optimizer, params, SHAPES, torch.bfloat16, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    rule = trace(optimizer, params.items())
    rule.write_state(optimizer, rule.read_state(optimizer, params), params)
    after = optimizer.state_dict()
    for index, entry in before["state"].items():
        for key, want in entry.items():
            assert torch.equal(after["state"][index][key], want)
            assert after["state"][index][key].dtype == want.dtype


def test_a_parameter_without_a_gradient_is_left_alone():
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.AdamW(params.values(), weight_decay=0.5)
    rule = trace(optimizer, params.items())
    grads = {**arrays(gradients(SHAPES, torch.float32, 0)), "vector": None}
    with x64():
        before, state = arrays(params), rule.read_state(optimizer, params)
        values, new = rule.apply(before, grads, state, rule.hyper(optimizer))
    assert np.array_equal(values["vector"], before["vector"])
    assert new["vector"]["step"] == 0
    assert not np.array_equal(values["matrix"], before["matrix"])


def test_frozen_parameters_are_left_out():
    params = parameters(SHAPES, torch.float32)
    params["kernel"].requires_grad_(False)
    rule = trace(torch.optim.SGD(params.values(), lr=0.1), params.items())
    assert set(rule.programs) == set(SHAPES) - {"kernel"}


@pytest.mark.parametrize("name", [*MIXED, "RAdam", "RMSprop", "Adamax", "Adadelta"])
def test_a_stack_of_layers_is_updated_slice_by_slice(name):
    shapes = {f"h.{i}.w": (4, 3) for i in range(3)}
    params = parameters(shapes, torch.float32)
    groups = [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(params.values())]
    optimizer = getattr(torch.optim, name)(groups, **MIXED.get(name, {}))
    rule = trace(optimizer, params.items())
    assert rule.stackable(shapes)
    stacks = {"h.*.w": tuple(shapes)}
    with x64():
        flat, state = arrays(params), rule.read_state(optimizer, params)
        values = {"h.*.w": jnp.stack([flat[k] for k in shapes])}
        stacked = {"h.*.w": jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state[k] for k in shapes))}
        apply = jax.jit(lambda *a: rule.apply(*a, stacks=stacks))
        for step in range(6):
            grads = arrays(gradients(shapes, torch.float32, step))
            hyper = rule.hyper(optimizer)
            values, stacked = apply(values, {"h.*.w": jnp.stack([grads[k] for k in shapes])}, stacked, hyper)
    run_torch(optimizer, params, shapes, torch.float32, range(6))
    close({k: values["h.*.w"][i] for i, k in enumerate(shapes)}, params)


def test_layers_of_different_rules_do_not_stack():
    shapes = {f"h.{i}.w": (4, 3) for i in range(2)}
    params = parameters(shapes, torch.float32)
    first, second = params.values()
    optimizer = torch.optim.AdamW([{"params": [first], "weight_decay": 0.0}, {"params": [second]}])
    rule = trace(optimizer, params.items())
    assert not rule.stackable(shapes)
    with pytest.raises(ValueError, match=r"h\.0\.w, h\.1\.w"):
        rule.program_of(tuple(shapes))


def test_the_update_does_not_need_x64_around_it():
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.AdamW(params.values(), lr=0.01)
    rule = trace(optimizer, params.items())
    values, state = arrays(params), rule.read_state(optimizer, params)
    apply = jax.jit(rule.apply)
    for step in range(5):
        values, state = apply(
            values, arrays(gradients(SHAPES, torch.float32, step)), state, rule.hyper(optimizer)
        )
    run_torch(optimizer, params, SHAPES, torch.float32, range(5))
    close(values, params)


def test_gradients_flow_through_an_update():
    params = parameters({"w": (3,)}, torch.float32)
    optimizer = torch.optim.SGD(params.values(), lr=0.25, momentum=0.9)
    rule = trace(optimizer, params.items())
    state, hyper = rule.read_state(optimizer, params), rule.hyper(optimizer)

    def after(w):
        new, _ = rule.apply({"w": w}, {"w": w**2}, state, hyper)
        return new["w"].sum()

    w = jnp.array([1.0, 2.0, -3.0])
    np.testing.assert_allclose(jax.grad(after)(w), 1 - 0.25 * 2 * w, rtol=1e-6)


@pytest.mark.parametrize("order", [("half", "full"), ("full", "half")])
def test_adafactor_in_a_group_of_two_dtypes(order):
    """torch takes eps from the dtype of the group's first parameter, for all of them."""
    both = {
        "half": torch.nn.Parameter(torch.full((4, 3), 0.5, dtype=torch.bfloat16)),
        "full": torch.nn.Parameter(torch.full((4, 3), 0.5)),
    }
    params = {name: both[name] for name in order}
    optimizer = torch.optim.Adafactor(params.values(), lr=0.1)
    rule = trace(optimizer, params.items())
    grads = {name: torch.full_like(p, 1e-4) for name, p in params.items()}  # small: the floor eps decides
    values, _ = rule.apply(
        arrays(params), arrays(grads), rule.read_state(optimizer, params), rule.hyper(optimizer)
    )
    for name, param in params.items():
        param.grad = grads[name]
    optimizer.step()
    assert error(values["full"], params["full"]) <= 1e-6
    assert error(values["half"], params["half"]) <= 2**-8


def test_numbers_survive_in_three_floats():
    values = {"a": 0.999, "b": 1e-8, "c": math.pi, "d": 0.0, "e": 1e6, "f": math.inf}
    coded = encode(values, tuple(values)).astype(np.float64).sum(-1)
    assert list(coded) == list(values.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda o, p: o.param_groups[0].update(amsgrad=True),
        lambda o, p: o.param_groups[0].update(weight_decay=0.1),
        lambda o, p: o.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]}),
    ],
    ids=["flag", "zero becomes non-zero", "group added"],
)
def test_a_change_of_structure_is_noticed(change):
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.AdamW(params.values(), weight_decay=0.0)
    rule = trace(optimizer, params.items())
    rule.hyper(optimizer)
    change(optimizer, params)
    with pytest.raises(Stale):
        rule.hyper(optimizer)


@pytest.mark.parametrize(
    "kind", [np.float32, np.float64, np.array, torch.tensor], ids=lambda kind: kind.__name__
)
def test_a_schedule_of_another_kind_of_number_is_no_other_structure(kind):
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.AdamW(params.values(), lr=0.01)
    rule = trace(optimizer, params.items())
    for at in (0.02, 0.03):
        optimizer.param_groups[0].update(lr=kind(at), weight_decay=kind(at), betas=(kind(0.9), kind(at)))
        row = np.asarray(rule.hyper(optimizer)[0], np.float64).sum(-1)
        wanted = (*(float(kind(v)) for v in (at, 0.9, at)), 1e-8, float(kind(at)))
        assert sorted(row) == sorted(wanted)


def test_numbers_of_numpy_when_it_is_traced_update_as_pythons_do():
    own = {"lr": np.float32(0.01), "weight_decay": np.float32(0.1), "eps": np.float32(1e-8)}
    pythons = {key: float(value) for key, value in own.items()}
    results = []
    for how in (own, pythons):
        params = parameters(SHAPES, torch.float32)
        optimizer = torch.optim.AdamW(params.values(), **how)
        rule = trace(optimizer, params.items())
        results.append(run_bridge(rule, optimizer, params, SHAPES, torch.float32, range(3))[0])
    for name in SHAPES:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def refused(optimizer, params):
    with pytest.raises(Refused) as caught:
        trace(optimizer, params.items())
    assert len(caught.value.reasons) == 1
    return str(caught.value)


def test_lbfgs_and_sparse_adam_are_refused():
    params = parameters(SHAPES, torch.float32)
    assert "closure" in refused(torch.optim.LBFGS(params.values()), params)
    assert "torch.optim.Adam" in refused(torch.optim.SparseAdam(list(params.values())), params)


def test_a_state_that_is_no_dictionary_is_refused():
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    optimizer.state = ChainMap({}, {})
    assert "SGD.state is no dictionary" in refused(optimizer, params)


def test_closures_hooks_and_differentiable_are_refused():
    params = parameters(SHAPES, torch.float32)
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    assert "step hooks" in refused(optimizer, params)
    assert "differentiable" in refused(torch.optim.SGD(params.values(), lr=0.1, differentiable=True), params)
    with pytest.raises(Refused, match="without a closure"):
        no_closure(lambda: 0.0)


def test_an_optimizer_of_other_parameters_is_refused():
    params = parameters(SHAPES, torch.float32)
    other = torch.nn.Parameter(torch.zeros(9))
    assert "shapes [[9]]" in refused(torch.optim.SGD([*params.values(), other], lr=0.1), params)


def test_something_that_is_no_optimizer_is_a_type_error():
    with pytest.raises(TypeError, match="optax"):
        trace(object(), {}.items())
