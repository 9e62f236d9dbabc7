"""Graph networks: a fixed graph of ten nodes, features that change."""

from tests.third_party.row import Below, Float, New, Row, Uniform

EDGES = Below(10, 2, 30)
GRAPH = [Float(10, 8), EDGES]
GROUPS = New("torch:tensor", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1])


def conv(name: str, *args: object, inputs: list | None = None, title: str = "", **options: object) -> Row:
    """One convolution of PyG."""
    return Row(
        "torch-geometric",
        f"torch_geometric.nn:{name}",
        args,
        options,
        inputs or GRAPH,
        fixed=True,
        title=title,
    )


MODEL = {"in_channels": 8, "hidden_channels": 8, "num_layers": 2, "out_channels": 4}
ROWS = (
    conv("GCN", **MODEL, dropout=0.1),
    conv("GAT", **MODEL, heads=2),
    conv("GAT", **MODEL, v2=True, norm="batch_norm", title="v2"),
    conv("GraphSAGE", **MODEL, jk="cat"),
    conv("GIN", **MODEL),
    conv(
        "PNA",
        **MODEL,
        aggregators=["mean", "max", "std"],
        scalers=["identity", "amplification"],
        deg=New("torch:tensor", [0, 2, 3, 4, 1]),
    ),
    conv("EdgeCNN", **MODEL),
    conv("GCNConv", 8, 4),
    conv("GCNConv", 8, 4, cached=True, title="cached"),
    conv("ChebConv", 8, 4, K=3),
    conv("SAGEConv", 8, 4, aggr="max"),
    conv("GraphConv", 8, 4),
    conv("GatedGraphConv", 8, 2),
    conv("ResGatedGraphConv", 8, 4),
    conv("TransformerConv", 8, 4, heads=2, dropout=0.1),
    conv("TAGConv", 8, 4),
    conv("ARMAConv", 8, 4, num_stacks=2),
    conv("SGConv", 8, 4, K=2),
    conv("APPNP", 2, 0.1, title="alone"),
    conv("FeaStConv", 8, 4, heads=2),
    conv("GMMConv", 8, 4, dim=2, kernel_size=2, inputs=[*GRAPH, Uniform(30, 2)]),
    conv("NNConv", 8, 4, New("torch.nn:Linear", 3, 32), inputs=[*GRAPH, Float(30, 3)]),
    conv("CGConv", 8, 3, inputs=[*GRAPH, Float(30, 3)]),
    conv("RGCNConv", 8, 4, num_relations=3, inputs=[*GRAPH, Below(3, 30)]),
    conv("LEConv", 8, 4),
    conv("ClusterGCNConv", 8, 4),
    conv("GENConv", 8, 4),
    conv("SuperGATConv", 8, 4, heads=2),
    conv("FAConv", 8, inputs=[Float(10, 8), Float(10, 8), EDGES]),
    conv("PDNConv", 8, 4, edge_dim=3, hidden_channels=4, inputs=[*GRAPH, Float(30, 3)]),
    conv("GPSConv", 8, New("torch_geometric.nn:GCNConv", 8, 8), heads=2, inputs=[*GRAPH, GROUPS]),
    conv("TopKPooling", 8, inputs=[*GRAPH]),
    conv("SAGPooling", 8, inputs=[*GRAPH]),
    conv("GraphNorm", 8, inputs=[Float(10, 8), GROUPS]),
    conv("InstanceNorm", 8, track_running_stats=True, affine=True, inputs=[Float(10, 8), GROUPS]),
    conv("PairNorm", title="alone", inputs=[Float(10, 8)]),
    conv(
        "SchNet",
        hidden_channels=8,
        num_filters=8,
        num_interactions=1,
        num_gaussians=5,
        inputs=[Below(9, 10), Float(10, 3), GROUPS],
    ),
    conv(
        "DimeNetPlusPlus",
        hidden_channels=8,
        out_channels=1,
        num_blocks=1,
        int_emb_size=4,
        basis_emb_size=4,
        out_emb_channels=8,
        num_spherical=2,
        num_radial=2,
        inputs=[Below(9, 10), Float(10, 3), GROUPS],
    ),
    conv(
        "Node2Vec",
        New("torch:tensor", [[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]),
        embedding_dim=8,
        walk_length=4,
        context_size=2,
        num_nodes=5,
        inputs=[Below(5, 4)],
    ),
    conv("SetTransformerAggregation", 8, heads=2, inputs=[Float(10, 8), GROUPS]),
    conv("LSTMAggregation", 8, 8, inputs=[Float(10, 8), GROUPS]),
    conv("SoftmaxAggregation", learn=True, inputs=[Float(10, 8), GROUPS]),
)
