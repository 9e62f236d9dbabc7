"""Click-through and matching models over ids."""

from tests.third_party.row import Below, New, Row

IDS = [Below(5, 6, 4)]
FIELDS = [5, 5, 5, 5]
DEEP = {"embed_dim": 4, "mlp_dims": (8, 8), "dropout": 0.1}


def torchfm(module: str, name: str, *args: object, **options: object) -> Row:
    """A model over four fields of five ids."""
    return Row("torchfm", f"torchfm.model.{module}:{name}", (FIELDS, *args), options, IDS)


def sparse(count: int) -> list:
    """torch-rechub's features."""
    return [
        New("torch_rechub.basic.features:SparseFeature", f"f{i}", vocab_size=5, embed_dim=4)
        for i in range(count)
    ]


FED = [{f"f{i}": Below(5, 6) for i in range(3)}]
MLP = {"dims": [8], "dropout": 0.1}

ROWS = (
    torchfm("lr", "LogisticRegressionModel"),
    torchfm("fm", "FactorizationMachineModel", embed_dim=4),
    torchfm("ffm", "FieldAwareFactorizationMachineModel", embed_dim=4),
    torchfm("wd", "WideAndDeepModel", **DEEP),
    torchfm("dfm", "DeepFactorizationMachineModel", **DEEP),
    torchfm("dcn", "DeepCrossNetworkModel", embed_dim=4, num_layers=2, mlp_dims=(8,), dropout=0.1),
    torchfm("nfm", "NeuralFactorizationMachineModel", embed_dim=4, mlp_dims=(8,), dropouts=(0.1, 0.1)),
    torchfm("afm", "AttentionalFactorizationMachineModel", embed_dim=4, attn_size=4, dropouts=(0.1, 0.1)),
    torchfm(
        "afi",
        "AutomaticFeatureInteractionModel",
        embed_dim=4,
        atten_embed_dim=4,
        num_heads=2,
        num_layers=1,
        mlp_dims=(8,),
        dropouts=(0.1, 0.1, 0.1),
    ),
    torchfm(
        "xdfm",
        "ExtremeDeepFactorizationMachineModel",
        embed_dim=4,
        mlp_dims=(8,),
        dropout=0.1,
        cross_layer_sizes=(4, 4),
        split_half=True,
    ),
    torchfm(
        "fnfm", "FieldAwareNeuralFactorizationMachineModel", embed_dim=4, mlp_dims=(8,), dropouts=(0.1, 0.1)
    ),
    torchfm("pnn", "ProductNeuralNetworkModel", embed_dim=4, mlp_dims=(8,), dropout=0.1, method="inner"),
    torchfm("fnn", "FactorizationSupportedNeuralNetworkModel", embed_dim=4, mlp_dims=(8,), dropout=0.1),
    Row("torch-rechub", "torch_rechub.models.ranking:WideDeep", (sparse(3), sparse(3), MLP), {}, FED),
    Row("torch-rechub", "torch_rechub.models.ranking:DeepFM", (sparse(3), sparse(3), MLP), {}, FED),
    Row("torch-rechub", "torch_rechub.models.ranking:DCN", (sparse(3), 2, MLP), {}, FED),
    Row("torch-rechub", "torch_rechub.models.ranking:DCNv2", (sparse(3), 2, MLP), {}, FED),
    Row(
        "torch-rechub",
        "torch_rechub.models.ranking:AutoInt",
        (sparse(3),),
        {"num_layers": 1, "num_heads": 2, "mlp_params": MLP},
        FED,
    ),
    Row("torch-rechub", "torch_rechub.models.ranking:FiBiNet", (sparse(3), MLP), {}, FED),
    Row(
        "torch-rechub",
        "torch_rechub.models.multi_task:MMOE",
        (sparse(3), ["classification", "regression"], 2, MLP, [MLP, MLP]),
        {},
        FED,
    ),
    Row(
        "torch-rechub",
        "torch_rechub.models.multi_task:PLE",
        (sparse(3), ["classification", "regression"], 1, 1, 1, MLP, [MLP, MLP]),
        {},
        FED,
    ),
)
