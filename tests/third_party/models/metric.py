"""Metric learning: an embedding and a loss over its labels."""

from tests.third_party.row import Below, Float, New, Row

NETWORK = New("torch.nn:Linear", 12, 8)
LABELLED = [Float(9, 12), Below(3, 9)]
CLASSES = {"num_classes": 3, "embedding_size": 8}
PML = (
    ("TripletMarginLoss", {}),
    ("ContrastiveLoss", {}),
    ("NTXentLoss", {}),
    ("SupConLoss", {}),
    ("MultiSimilarityLoss", {}),
    ("CircleLoss", {}),
    ("LiftedStructureLoss", {}),
    ("GeneralizedLiftedStructureLoss", {}),
    ("FastAPLoss", {}),
    ("NCALoss", {}),
    ("SignalToNoiseRatioContrastiveLoss", {}),
    ("AngularLoss", {}),
    ("IntraPairVarianceLoss", {}),
    ("MarginLoss", {}),
    ("ArcFaceLoss", CLASSES),
    ("CosFaceLoss", CLASSES),
    ("SubCenterArcFaceLoss", CLASSES),
    ("NormalizedSoftmaxLoss", CLASSES),
    ("LargeMarginSoftmaxLoss", CLASSES),
    ("ProxyNCALoss", CLASSES),
    ("ProxyAnchorLoss", CLASSES),
    ("SoftTripleLoss", CLASSES),
    ("ManifoldLoss", {"l": 8}),
)

ROWS = (
    *(
        Row(
            "pytorch-metric-learning",
            "tests.third_party.wrapped:Compared",
            (NETWORK, New(f"pytorch_metric_learning.losses:{name}", **options)),
            {},
            LABELLED,
            title=name,
        )
        for name, options in PML
    ),
    Row(
        "pytorch-metric-learning",
        "tests.third_party.wrapped:Compared",
        (
            NETWORK,
            New(
                "pytorch_metric_learning.losses:CrossBatchMemory",
                New("pytorch_metric_learning.losses:ContrastiveLoss"),
                8,
                memory_size=32,
            ),
        ),
        {},
        LABELLED,
        title="CrossBatchMemory",
    ),
    Row(
        "pytorch-metric-learning",
        "tests.third_party.wrapped:Mined",
        (
            NETWORK,
            New("pytorch_metric_learning.miners:MultiSimilarityMiner"),
            New("pytorch_metric_learning.losses:TripletMarginLoss"),
        ),
        {},
        LABELLED,
    ),
)
