"""What replaces the narrowing pieces of ``transformers`` is, in float32, what it replaces, and narrows no float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.gpt_neo import in_torch as gpt_neo
from detente.workloads.llama import in_torch as llama
from detente.workloads.llama.spec import inverse_frequencies
from detente.workloads.torch_parts.at_least_float32 import become

RAISED = {"gpt_neo": (gpt_neo, gpt_neo.RaisedAttention), "llama": (llama, llama.RaisedRMSNorm)}


def as_published(model: nn.Module) -> nn.Module:
    """The same weights under transformers' own methods and loss."""
    theirs = copy.deepcopy(model)
    del theirs._loss_function
    for module in theirs.modules():
        if type(module).__name__.startswith("Raised"):
            module.__class__ = type(module).__mro__[1]
    return theirs


def run(name: str, model: nn.Module) -> dict[str, torch.Tensor]:
    size = find_size(find_workload(name), "tiny")
    tokens = torch.randint(
        size["vocab"], (size["batch"], size["sequence"]), generator=torch.Generator().manual_seed(1)
    )
    loss, outputs = RAISED[name][0].loss(model, {"input_ids": tokens})
    loss.backward()
    found = {"loss": loss.detach(), **{n: t.detach() for n, t in outputs.items()}}
    return found | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = RAISED[name][0].build(find_size(find_workload(name), "tiny"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.rand_like(parameter))
    return model


@pytest.mark.parametrize("name", RAISED)
def test_in_float32_it_is_the_librarys_own_model(name):
    ours = build(name)
    theirs = as_published(ours)
    raised = {type(m).__name__ for m in ours.modules()} - {type(m).__name__ for m in theirs.modules()}
    assert RAISED[name][1].__name__ in raised
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    expected = run(name, theirs)
    for key, value in run(name, ours).items():
        error = (value - expected[key]).abs().max() / expected[key].abs().max()
        # The same operations in the same order: what is left is the last digit, of a square or of a masked fill.
        assert error < 2e-6, (key, float(error))


@pytest.mark.parametrize("name", RAISED)
def test_the_librarys_own_narrows_float64_and_ours_does_not(name):
    """A shift of 1e-13 is lost in float32, and changes what is computed in float64."""
    for model, seen in ((build(name), True), (as_published(build(name)), False)):
        wide = model.double()
        if name == "gpt_neo":
            layer = wide.transformer.h[0].attn.attention
            q, k, v = (torch.randn(1, 4, 8, 8, dtype=torch.float64) for _ in range(3))
            found = [layer._attn(q + shift, k, v)[0] for shift in (0.0, 1e-13)]
        else:
            x = torch.randn(2, wide.config.hidden_size, dtype=torch.float64)
            found = [wide.model.norm(x + shift) for shift in (0.0, 1e-13)]
        assert (not torch.equal(*found)) == seen


@pytest.mark.parametrize("size", ["tiny", "paper"])
def test_the_rotary_frequencies_are_those_of_transformers(size):
    """Of both sizes; of the larger one no more than the configuration is made."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    at = find_workload("llama").sizes[size]
    theirs = LlamaRotaryEmbedding(llama.configuration(at)).inv_freq
    ours = torch.from_numpy(inverse_frequencies(at["hidden"] // at["heads"]))
    assert ours.dtype == theirs.dtype == torch.float32 and ours.shape == theirs.shape
    # transformers raises the base to its powers in float32.
    assert ((ours - theirs).abs() / theirs).max() < 1e-6
    assert len(set((ours / (500_000.0 ** -(torch.arange(len(ours)) / len(ours)))).tolist())) > 2


def test_only_a_subclass_may_be_become():
    with pytest.raises(TypeError, match="LayerNorm is no Linear"):
        become(nn.Linear(2, 2), nn.LayerNorm)
