"""Adapters on a small base."""

from tests.third_party.row import Below, Float, New, Row

BASE = New(
    "transformers:GPT2LMHeadModel",
    New("transformers:GPT2Config", vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2),
)
LLAMA = New(
    "transformers:LlamaForCausalLM",
    New(
        "transformers:LlamaConfig",
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    ),
)
TOKENS = {"input_ids": Below(32, 2, 8), "labels": Below(32, 2, 8)}


def peft(name: str, title: str = "", base: New = LLAMA, **options: object) -> Row:
    """A language model with one of peft's methods."""
    return Row(
        "peft",
        "peft:get_peft_model",
        (base, New(f"peft:{name}", task_type="CAUSAL_LM", **options)),
        {},
        [],
        TOKENS,
        title=title or name,
    )


ROWS = (
    peft("LoraConfig", r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
    peft("LoraConfig", "LoraConfig dora", r=2, use_dora=True, target_modules=["q_proj", "v_proj"]),
    peft("LoraConfig", "LoraConfig gpt2", BASE, r=2, target_modules=["c_attn"], fan_in_fan_out=True),
    peft("LoraConfig", "LoraConfig pissa", r=2, init_lora_weights="pissa", target_modules=["q_proj"]),
    peft("AdaLoraConfig", r=2, init_r=3, total_step=10, target_modules=["q_proj", "v_proj"]),
    peft("IA3Config", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    peft("LoHaConfig", r=2, target_modules=["q_proj"]),
    peft("LoKrConfig", r=2, target_modules=["q_proj"]),
    peft("OFTConfig", r=2, oft_block_size=0, target_modules=["q_proj"]),
    peft("VeraConfig", r=2, target_modules=["q_proj", "v_proj"]),
    peft("FourierFTConfig", n_frequency=8, target_modules=["q_proj"]),
    peft("PromptTuningConfig", num_virtual_tokens=3),
    peft("PrefixTuningConfig", num_virtual_tokens=3),
    peft("PromptEncoderConfig", num_virtual_tokens=3, encoder_hidden_size=8),
    peft("LNTuningConfig"),
    peft("VBLoRAConfig", r=2, num_vectors=8, vector_length=4, topk=2, target_modules=["q_proj"]),
    peft("HRAConfig", r=2, target_modules=["q_proj"]),
    peft("BOFTConfig", boft_block_size=4, boft_n_butterfly_factor=1, target_modules=["q_proj"]),
    Row("loralib", "loralib:Linear", (8, 6), {"r": 2, "lora_dropout": 0.1}, [Float(4, 8)]),
    Row("loralib", "loralib:MergedLinear", (8, 6), {"r": 2, "enable_lora": [True, False]}, [Float(4, 8)]),
    Row("loralib", "loralib:Embedding", (9, 6), {"r": 2}, [Below(9, 4)]),
    Row("loralib", "loralib:Conv2d", (3, 4, 3), {"r": 2}, [Float(2, 3, 8, 8)]),
    Row(
        "lycoris-lora",
        "lycoris.modules.locon:LoConModule",
        ("l", New("torch.nn:Linear", 8, 6)),
        {"lora_dim": 2},
        [Float(4, 8)],
    ),
    Row(
        "lycoris-lora",
        "lycoris.modules.loha:LohaModule",
        ("l", New("torch.nn:Linear", 8, 6)),
        {"lora_dim": 2},
        [Float(4, 8)],
    ),
    Row(
        "lycoris-lora",
        "lycoris.modules.lokr:LokrModule",
        ("l", New("torch.nn:Linear", 8, 6)),
        {"lora_dim": 2},
        [Float(4, 8)],
    ),
    Row(
        "sentence-transformers",
        "tests.third_party.wrapped:Sentences",
        ("MultipleNegativesRankingLoss",),
        {},
        [Below(32, 3, 6), Below(32, 3, 6)],
    ),
    Row(
        "sentence-transformers",
        "tests.third_party.wrapped:Sentences",
        ("CosineSimilarityLoss",),
        {},
        [Below(32, 3, 6), Below(32, 3, 6), Float(3)],
        title="cosine",
    ),
    Row(
        "sentence-transformers",
        "tests.third_party.wrapped:Sentences",
        ("CoSENTLoss",),
        {},
        [Below(32, 3, 6), Below(32, 3, 6), Float(3)],
        title="cosent",
    ),
    Row(
        "sentence-transformers",
        "tests.third_party.wrapped:Sentences",
        ("SoftmaxLoss",),
        {"sentence_embedding_dimension": 16, "num_labels": 3},
        [Below(32, 3, 6), Below(32, 3, 6), Below(3, 3)],
        title="softmax",
    ),
)
