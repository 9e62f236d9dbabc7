"""Models on the meta device: a checkpoint or an initialisation goes straight into the step."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from torch import nn

from detente import bridge
from detente.bridge.state import meta

IDS = torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))
TEXT = {"input_ids": IDS, "labels": IDS}


def gpt2(device="cpu", layers=1):
    config = hf.GPT2Config(
        n_layer=layers, n_embd=32, n_head=4, vocab_size=96, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    with torch.device(device):
        return hf.GPT2LMHeadModel(config).train()


def llama(device="cpu"):
    config = hf.LlamaConfig(
        vocab_size=96,
        max_position_embeddings=16,
        num_key_value_heads=2,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=64,
        num_hidden_layers=1,
    )
    with torch.device(device):
        return hf.LlamaForCausalLM(config).train()


def loss(model, batch):
    return model(**batch).loss


def compiled(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return bridge.compile(model, loss, optimizer, example_batch=TEXT, seed=3, **options)


def one_file(model, folder):
    model.save_pretrained(folder)
    return folder / "model.safetensors"


def sharded(model, folder):
    """As transformers writes big models: an index and several files."""
    state = {n: t.clone() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    names = sorted(state)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in files.items():
        save_file({n: state[n] for n in mine}, folder / file)
    table = {n: file for file, mine in files.items() for n in mine}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return folder


@pytest.mark.parametrize(
    ("make", "write"), [(gpt2, sharded), pytest.param(llama, one_file, marks=pytest.mark.long)]
)
def test_a_meta_model_with_a_checkpoint_runs_as_the_ordinary_one_bit_for_bit(make, write, tmp_path):
    torch.manual_seed(1)
    model = make()
    path = write(model, tmp_path)
    ordinary = compiled(model, certificate="none")
    hollow = make("meta")
    step = compiled(hollow, certificate="full", weights=path)
    assert [float(step(TEXT)) for _ in range(3)] == [float(ordinary(TEXT)) for _ in range(3)]
    assert all(p.is_meta for p in hollow.parameters()) and not any(b.is_meta for b in hollow.buffers())
    state, expected = step.state_dict(), ordinary.state_dict()
    assert state.keys() == expected.keys() and all(torch.equal(state[n], expected[n]) for n in state)
    assert step.certificate.ok and step.certificate.level == "full", str(step.certificate)


def test_sync_gives_the_parameters_memory_and_they_stay_the_same_objects(tmp_path):
    torch.manual_seed(1)
    path = one_file(gpt2(), tmp_path)
    model = gpt2("meta")
    step = compiled(model, weights=path, certificate="none")
    step(TEXT)
    before = dict(model.named_parameters())
    step.sync_to_torch()
    for name, tensor in model.named_parameters():
        assert tensor is before[name] and torch.equal(tensor, step.state_dict()[name])
    assert model.lm_head.weight is model.transformer.wte.weight
    assert float(step.optimizer.state[model.lm_head.weight]["step"]) == 1
    first = float(step.eager(TEXT))
    assert float(step(TEXT)) < first


@pytest.mark.parametrize("make", [gpt2, pytest.param(llama, marks=pytest.mark.long)])
def test_initialisation_is_seeded_and_trains(make):
    step = compiled(make("meta"), weights="init")
    again = make("meta")
    value = meta.initialised(again, 3)
    states = [step.state_dict(), {n: value(n) for n, _ in again.named_parameters()}]
    states[0] = {n: states[0][n] for n in states[1]}
    assert all(torch.equal(states[0][n], states[1][n]) and states[0][n].isfinite().all() for n in states[0])
    if make is gpt2:  # scaled by depth, by a module above the one that owns it
        projections = [t for n, t in states[0].items() if n.endswith("c_proj.weight")]
        assert all(abs(float(t.std()) - 0.02 / 2**0.5) < 0.002 for t in projections)
        assert abs(float(states[0]["transformer.wte.weight"].std()) - 0.02) < 0.002
    values = [float(step(TEXT)) for _ in range(4)]
    assert values[-1] < values[0] and step.certificate.ok


class Plain(nn.Module):
    def __init__(self, forgotten=False):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        if forgotten:
            self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x)))) * getattr(self, "scale", 1.0)


def plain(optimizer=torch.optim.SGD, forgotten=False, **options):
    with torch.device("meta"):
        model = Plain(forgotten)
    mine = optimizer(model.parameters(), lr=0.1)
    return bridge.compile(
        model, lambda m, b: m(b).pow(2).mean(), mine, example_batch=torch.ones(3, 4), **options
    )


def test_a_plain_module_initialises_itself_by_reset_parameters():
    step = plain(weights="init", seed=0)
    state = step.state_dict()
    assert (
        torch.equal(state["norm.running_var"], torch.ones(8)) and int(state["norm.num_batches_tracked"]) == 0
    )
    assert 0 < float(state["first.weight"].abs().max()) <= 0.5
    values = [float(step(torch.eye(3, 4))) for _ in range(3)]
    assert values[-1] < values[0] and step.certificate.ok


def test_what_cannot_be_filled_is_refused(tmp_path):
    with pytest.raises(
        bridge.Refused, match=r"1 reason\b[\s\S]*have no values \(the first: first.weight\)[\s\S]*weights="
    ):
        plain()
    with pytest.raises(bridge.Refused, match=r"no _init_weights or reset_parameters: scale \[2\]"):
        plain(forgotten=True, weights="init")
    with pytest.raises(bridge.Refused, match="Adagrad made its state when it was constructed"):
        plain(torch.optim.Adagrad, weights="init")
    file = tmp_path / "model.safetensors"
    state = Plain().state_dict()
    state["first.weight"] = torch.ones(3, 4)
    del state["second.bias"]
    save_file({n: t.contiguous() for n, t in state.items()}, file)
    with pytest.raises(bridge.Refused, match=r"lacks 1 tensors: second.bias[\s\S]*first.weight is \[3, 4\]"):
        plain(weights=file)
    with pytest.raises(bridge.Refused, match="there is no file"):
        plain(weights=tmp_path / "nothing.safetensors")
    with pytest.raises(bridge.Refused, match="this one has values"):
        compiled(gpt2(), weights=file)
