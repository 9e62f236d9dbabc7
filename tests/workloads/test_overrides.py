"""A size whose name carries overrides: one way to write it, and one clear error where there is no such size."""

from __future__ import annotations

import pytest

from detente.records.fault import UsageFault
from detente.workloads.catalogue import WORKLOADS, find_size, find_workload

GPT2 = find_workload("gpt2")
ROWS = [(name, size) for name in WORKLOADS for size in find_workload(name).sizes.values()]


def test_the_name_says_what_differs_and_finds_the_same_size_again():
    size = find_size(GPT2, "tiny,sequence=8,batch=4")
    assert size.name == "tiny,batch=4,sequence=8"
    assert (size["batch"], size["sequence"], size["hidden"]) == (4, 8, 64)
    assert find_size(GPT2, size.name) == size == find_size(GPT2, "tiny, batch = 4, sequence = 008")


def test_nothing_before_the_comma_is_the_largest_size():
    assert find_size(GPT2, ",batch=4").name == "paper,batch=4"


def test_what_a_size_has_anyway_is_no_override():
    assert find_size(GPT2, "tiny,batch=2") is find_size(GPT2, "tiny")


def test_a_size_of_a_users_model_keeps_what_it_is_loaded_by():
    own = find_workload("hf:gpt2?n_layer=2,batch=3")
    size = find_size(own, ",batch=5")
    assert (size.name, size["batch"], size["sequence"]) == ("own,batch=5", 5, 64)
    assert size.target == own.name and size.settings == (("n_layer", 2),)


WRONG = {
    "tiny,haeds=2": "gpt2 has no dimension 'haeds'; did you mean 'heads'",
    "tiny,zzz=2": "gpt2 has no dimension 'zzz'",
    "tiny,batch": "'batch' is not key=value",
    "tiny,=4": "'=4' is not key=value",
    "tiny,": "'' is not key=value",
    "tiny,batch=0": "batch=0 is not a positive whole number",
    "tiny,batch=-1": "batch=-1 is not a positive",
    "tiny,batch=1.5": "batch=1.5 is not a positive",
    "tiny,batch=1e3": "batch=1e3 is not a positive",
    "tiny,batch=": "batch= is not a positive",
    "tiny,batch=٣": "batch=٣ is not a positive",
    "tiny,batch=1234567890": "up to nine digits",
    "tiny,batch=4,batch=4": "batch is given twice",
    "tiny,heads=5": "gpt2 at tiny with heads=5: hidden must be a multiple of heads",
    "tiny,sequence=33": "sequence must be at most positions",
    "tiny,batch=999999999,vocab=999999999": "is larger than any machine",
    "tniy,batch=4": "gpt2 has no size 'tniy'; did you mean 'tiny'",
    "": "gpt2 has no size ''",
}


@pytest.mark.parametrize("name", WRONG)
def test_one_clear_error(name):
    with pytest.raises(UsageFault) as caught:
        find_size(GPT2, name)
    assert WRONG[name] in caught.value.message
    assert caught.value.hint


def test_an_unknown_key_is_answered_with_the_keys_there_are():
    with pytest.raises(UsageFault) as caught:
        find_size(GPT2, "tiny,zzz=2")
    assert all(f"{key}=" in caught.value.hint for key in GPT2.sizes["tiny"].dims)


REFUSED = {
    "bert": ("heads=5", "labels=1", "sequence=33"),
    "vit": ("patch=3", "heads=5", "labels=1"),
    "gpt_neo": ("layers=3", "heads=5", "sequence=33"),
    "llama": ("heads=3", "key_heads=3", "heads=64", "sequence=131073"),
    "resnet50": ("width=18", "labels=1", "image=7", "batch=1", "depth_1=999999999"),
    "resnet": ("batch=1", "stages=999999999", "blocks=999999999"),
    "mha": ("heads=5",),
}


@pytest.mark.parametrize(("name", "pair"), [(n, p) for n, pairs in REFUSED.items() for p in pairs])
def test_what_a_model_cannot_be_is_refused_before_anything_runs(name, pair):
    with pytest.raises(UsageFault, match="must be"):
        find_size(find_workload(name), f"tiny,{pair}")


@pytest.mark.parametrize(("name", "size"), ROWS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_our_own_sizes_satisfy_their_constraints(name, size):
    wrong = [c.says for c in find_workload(name).constraints if not c.holds(size.dims)]
    assert not wrong


def test_a_model_of_a_file_has_no_dimensions(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def make(): ...\n")
    with pytest.raises(UsageFault, match="has no dimension 'batch'") as caught:
        find_size(find_workload(f"{file}:make"), ",batch=4")
    assert "it has none" in caught.value.hint
