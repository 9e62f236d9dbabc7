"""Losses between two views, with their centres, queues and prototypes."""

from tests.third_party.row import Below, Float, New, Row

NETWORK = New("torch.nn:Linear", 12, 8)
VIEWS = [Float(6, 12), Float(6, 12)]


def views(path: str, title: str = "", **options: object) -> Row:
    """A criterion of lightly between two views."""
    last = path.partition(":")[2]
    return Row(
        "lightly",
        "tests.third_party.wrapped:TwoViews",
        (NETWORK, New(path, **options)),
        {},
        VIEWS,
        title=title or last,
    )


ROWS = (
    views("lightly.loss:NTXentLoss"),
    views("lightly.loss:NTXentLoss", "NTXentLoss memory bank", memory_bank_size=(32, 8)),
    views("lightly.loss:NegativeCosineSimilarity"),
    views("lightly.loss:BarlowTwinsLoss"),
    views("lightly.loss:VICRegLoss"),
    views("lightly.loss:DCLLoss"),
    views("lightly.loss:DCLWLoss"),
    views("lightly.loss:TiCoLoss"),
    views("lightly.loss:MMCRLoss"),
    views("lightly.loss:WMSELoss", w_size=6),
    Row(
        "lightly",
        "lightly.loss:DINOLoss",
        (),
        {"output_dim": 8},
        title="alone",
        inputs=[[Float(6, 8), Float(6, 8)], [Float(6, 8)]],
        named={"epoch": 0},
    ),
    Row(
        "lightly",
        "tests.third_party.wrapped:Dino",
        (NETWORK, New("lightly.loss:DINOLoss", output_dim=8)),
        {},
        VIEWS,
    ),
    Row(
        "lightly",
        "tests.third_party.wrapped:Compared",
        (NETWORK, New("lightly.loss:MSNLoss")),
        {},
        [Float(6, 12), Float(6, 8), Float(5, 8)],
        title="MSNLoss",
    ),
    Row(
        "lightly",
        "tests.third_party.wrapped:Swav",
        (NETWORK, New("lightly.models.modules:SwaVPrototypes", 8, 6), New("lightly.loss:SwaVLoss")),
        {},
        VIEWS,
    ),
    Row("lightly", "lightly.models.modules:SimCLRProjectionHead", (12, 16, 8), {}, [Float(6, 12)]),
    Row("lightly", "lightly.models.modules:BYOLProjectionHead", (12, 16, 8), {}, [Float(6, 12)]),
    Row("lightly", "lightly.models.modules:DINOProjectionHead", (12, 16, 8, 6), {}, [Float(6, 12)]),
    Row(
        "lightly",
        "lightly.models.modules:DINOProjectionHead",
        (12, 16, 8, 6),
        {"freeze_last_layer": 1, "norm_last_layer": False},
        [Float(6, 12)],
        title="not normed",
    ),
    Row("lightly", "lightly.models:ResNetGenerator", ("resnet-9",), {}, [Float(2, 3, 32, 32)]),
    Row(
        "byol-pytorch",
        "byol_pytorch:BYOL",
        (New("tests.third_party.wrapped:Encoder"),),
        {
            "image_size": 16,
            "hidden_layer": -1,
            "projection_size": 8,
            "projection_hidden_size": 16,
            "augment_fn": New("torch.nn:Identity"),
            "augment_fn2": New("torch.nn:Identity"),
        },
        [Float(4, 3, 16, 16)],
    ),
    Row(
        "info-nce-pytorch",
        "tests.third_party.wrapped:TwoViews",
        (NETWORK, New("info_nce:InfoNCE")),
        {},
        VIEWS,
        title="InfoNCE",
    ),
    Row(
        "info-nce-pytorch",
        "tests.third_party.wrapped:Compared",
        (NETWORK, New("info_nce:InfoNCE", negative_mode="unpaired")),
        {},
        [Float(6, 12), Float(6, 8), Float(9, 8)],
        title="unpaired",
    ),
    Row(
        "x-clip",
        "x_clip:CLIP",
        (),
        {
            "dim_text": 16,
            "dim_image": 16,
            "dim_latent": 16,
            "num_text_tokens": 32,
            "text_enc_depth": 1,
            "text_seq_len": 8,
            "text_heads": 2,
            "visual_enc_depth": 1,
            "visual_image_size": 16,
            "visual_patch_size": 8,
            "visual_heads": 2,
            "visual_patch_dropout": 0.0,
        },
        [Below(32, 3, 8), Float(3, 3, 16, 16)],
        {"return_loss": True},
    ),
    Row(
        "x-clip",
        "x_clip:CLIP",
        (),
        {
            "dim_text": 16,
            "dim_image": 16,
            "dim_latent": 16,
            "num_text_tokens": 32,
            "text_enc_depth": 1,
            "text_seq_len": 8,
            "text_heads": 2,
            "visual_enc_depth": 1,
            "visual_image_size": 16,
            "visual_patch_size": 8,
            "visual_heads": 2,
            "use_all_token_embeds": True,
            "decoupled_contrastive_learning": True,
        },
        [Below(32, 3, 8), Float(3, 3, 16, 16)],
        {"return_loss": True},
        title="fine grained",
    ),
)
