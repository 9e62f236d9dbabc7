"""Clipping, accumulation and averaging against torch's own functions."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from update_runs import SHAPES, arrays, error, gradients, parameters

from detente.bridge.capture.capture import capture
from detente.bridge.lower.precision import torch_numerics, x64
from detente.bridge.optim.accumulate import accumulated, microbatches
from detente.bridge.optim.clip import clip_norm, clip_value, total_norm
from detente.bridge.optim.rule import trace
from detente.bridge.optim.update import Update
from detente.bridge.program.program import Program
from detente.bridge.random import twin
from detente.bridge.random.keys import step_key

SEED = 3


def with_grads(dtype):
    params = parameters(SHAPES, dtype)
    grads = gradients(SHAPES, dtype, 0)
    for name, param in params.items():
        param.grad = grads[name].clone()
    return params, arrays(grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norm_clipping_is_torchs(dtype, norm_type, max_norm):
    params, grads = with_grads(dtype)
    want = torch.nn.utils.clip_grad_norm_(params.values(), max_norm, norm_type, foreach=False)
    with x64():
        got, norm = jax.jit(lambda g: clip_norm(g, max_norm, norm_type))(grads)
    bound = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-8}[dtype]
    assert norm.dtype.name == str(want.dtype).removeprefix("torch.")
    assert abs(float(norm) - float(want)) <= bound * float(want)
    for name, param in params.items():
        assert error(got[name], param.grad) <= bound


def test_value_clipping_is_torchs_and_keeps_nan():
    params, grads = with_grads(torch.float32)
    params["vector"].grad[2] = float("nan")
    grads["vector"] = grads["vector"].at[2].set(jnp.nan)
    torch.nn.utils.clip_grad_value_(params.values(), 0.3)
    got = clip_value({**grads, "none": None}, 0.3)
    assert got["none"] is None
    for name, param in params.items():
        assert np.array_equal(got[name], param.grad.numpy(), equal_nan=True)


def test_a_stacked_gradient_counts_as_its_layers():
    params, grads = with_grads(torch.float32)
    stacked = {"kernel.*": jnp.stack([grads["kernel"]] * 3)}
    apart = {f"kernel.{i}": grads["kernel"] for i in range(3)}
    np.testing.assert_allclose(total_norm(stacked), total_norm(apart), rtol=1e-6)
    assert float(total_norm({"a": None})) == 0.0
    assert params


@pytest.mark.parametrize(("clip", "value", "decay"), [(0.7, None, 0.9), (None, 0.2, 0.999), (1.0, 0.5, 0.3)])
def test_clip_update_average_for_ten_steps(clip, value, decay):
    module = nn.ParameterDict({k: p for k, p in parameters(SHAPES, torch.float32).items()})
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    params = dict(module.named_parameters())
    update = Update(trace(optimizer, params.items()), clip_norm=clip, clip_value=value, ema=decay)
    with x64():
        values, state = arrays(params), update.read_state(optimizer, params)
        apply = jax.jit(update.apply)
        for step in range(10):
            grads = arrays(gradients(SHAPES, torch.float32, step))
            values, state = apply(values, grads, state, update.hyper(optimizer))
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))
    for step in range(10):
        for name, g in gradients(SHAPES, torch.float32, step).items():
            params[name].grad = g.clone()
        if value is not None:
            torch.nn.utils.clip_grad_value_(module.parameters(), value)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        averaged.update_parameters(module)
    means = update.averages(state)
    for name, param in params.items():
        assert error(values[name], param) <= 1e-6
        assert error(means[name], dict(averaged.module.named_parameters())[name]) <= 1e-6
    # the torch optimizer gets its own leaves only
    update.write_state(optimizer, state, params)
    assert all(set(entry) == {"step", "exp_avg", "exp_avg_sq"} for entry in optimizer.state.values())


def test_an_eager_step_clips_alike():
    params, grads = with_grads(torch.float32)
    rule = trace(torch.optim.SGD(params.values(), lr=0.1), params.items())
    Update(rule, clip_norm=0.7, clip_value=0.5, norm_type=1.0).clip_live(params.values())
    want, _ = clip_norm(clip_value(grads, 0.5), 0.7, 1.0)
    assert all(error(want[name], param.grad) <= 1e-6 for name, param in params.items())


def test_bad_numbers_are_refused():
    params = parameters(SHAPES, torch.float32)
    rule = trace(torch.optim.SGD(params.values(), lr=0.1), params.items())
    with pytest.raises(ValueError, match="clip_norm must be positive"):
        Update(rule, clip_norm=0.0)
    with pytest.raises(ValueError, match="decay in"):
        Update(rule, ema=1.5)
    with pytest.raises(ValueError, match="no average is kept"):
        Update(rule).averages({})
    with pytest.raises(ValueError, match=r"leaf 0 has shape \(5, 2\)"):
        microbatches([jnp.zeros((5, 2))], 2)


class Net(nn.Module):
    """Batch-norm statistics go from one micro-batch to the next, and each has its own dropout mask."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)
        )

    def forward(self, x):
        return self.body(x)


def test_accumulation_is_the_torch_loop():
    torch.manual_seed(0)
    parts, count = 3, 2
    model, batch = Net().double(), (torch.randn(12, 6).double(), torch.randn(12, 1).double())

    def loss(model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    eager = copy.deepcopy(model)
    total = 0.0
    for i, part in enumerate(zip(*(leaf.split(4) for leaf in batch), strict=True)):
        with twin(SEED, count * parts + i):
            value = loss(eager, part)
            (value / parts).backward()
        total += value.item() / parts
    program = Program(capture(model, loss, tuple(leaf[:4] for leaf in batch)).graph)
    values = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    with torch_numerics():
        run = accumulated(program.gradients(program.connected), parts)
        (mean, (_, buffers, word)), grads = jax.jit(
            lambda v, b: run(
                v, b, lambda i: step_key(np.uint32(SEED), (count * parts + i).astype(jnp.uint32))
            )
        )(values, [leaf.numpy() for leaf in batch])
    assert abs(float(mean) - total) <= 1e-12
    assert int(word) == 2**31 - 1
    for name, param in eager.named_parameters():
        assert error(grads[name], param.grad) <= 1e-9
    for name, buffer in eager.named_buffers():
        assert error(buffers[name], buffer) <= 1e-12
