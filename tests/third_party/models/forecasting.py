"""Forecasting models."""

from tests.third_party.row import Float, New, Row

SERIES = [Float(2, 24, 3)]
BATCH = {
    "insample_y": Float(2, 24, 1),
    "insample_mask": New("torch:ones", 2, 24, 1),
    "futr_exog": None,
    "hist_exog": None,
    "stat_exog": None,
}


def neural(name: str, **options: object) -> Row:
    """A model of neuralforecast on one window batch, univariate."""
    return Row(
        "neuralforecast",
        f"neuralforecast.models:{name}",
        (),
        {"h": 6, "input_size": 24, "max_steps": 1, "logger": False, "enable_checkpointing": False, **options},
        [BATCH],
    )


MANY = {
    "insample_y": Float(2, 24, 3),
    "insample_mask": New("torch:ones", 2, 24, 3),
    "futr_exog": None,
    "hist_exog": None,
    "stat_exog": None,
}

ROWS = (
    neural("MLP", hidden_size=8, num_layers=2),
    neural("NBEATS", mlp_units=[[8, 8]] * 3),
    neural("NHITS", mlp_units=[[8, 8]] * 3),
    neural("DLinear", moving_avg_window=5),
    neural("NLinear"),
    neural("TCN", encoder_hidden_size=8, decoder_hidden_size=8, dilations=[1, 2]),
    neural("GRU", encoder_hidden_size=8, encoder_n_layers=1, decoder_hidden_size=8),
    neural("LSTM", encoder_hidden_size=8, encoder_n_layers=1, decoder_hidden_size=8),
    neural(
        "PatchTST", hidden_size=8, n_heads=2, encoder_layers=1, linear_hidden_size=8, patch_len=8, stride=4
    ),
    neural("BiTCN", hidden_size=8),
    neural("TiDE", hidden_size=8, decoder_output_dim=4, temporal_decoder_dim=8),
    neural("DeepNPTS", hidden_size=8),
    neural(
        "VanillaTransformer", hidden_size=8, n_head=2, conv_hidden_size=8, encoder_layers=1, decoder_layers=1
    ),
    neural(
        "Informer",
        hidden_size=8,
        n_head=2,
        conv_hidden_size=8,
        encoder_layers=2,
        decoder_layers=1,
        distil=True,
    ),
    neural(
        "FEDformer",
        hidden_size=16,
        n_head=8,
        conv_hidden_size=8,
        encoder_layers=1,
        decoder_layers=1,
        modes=4,
        MovingAvg_window=5,
    ),
    neural("TimesNet", hidden_size=8, conv_hidden_size=8, encoder_layers=1, top_k=2, num_kernels=2),
    neural("KAN", hidden_size=8),
    Row(
        "neuralforecast",
        "neuralforecast.models:TSMixer",
        (),
        {
            "h": 6,
            "input_size": 24,
            "n_series": 3,
            "ff_dim": 8,
            "n_block": 1,
            "logger": False,
            "enable_checkpointing": False,
        },
        [MANY],
    ),
    Row(
        "neuralforecast",
        "neuralforecast.models:iTransformer",
        (),
        {
            "h": 6,
            "input_size": 24,
            "n_series": 3,
            "hidden_size": 8,
            "n_heads": 2,
            "e_layers": 1,
            "d_ff": 8,
            "logger": False,
            "enable_checkpointing": False,
        },
        [MANY],
    ),
    Row(
        "neuralforecast",
        "neuralforecast.models:SOFTS",
        (),
        {
            "h": 6,
            "input_size": 24,
            "n_series": 3,
            "hidden_size": 8,
            "d_core": 8,
            "e_layers": 1,
            "d_ff": 8,
            "logger": False,
            "enable_checkpointing": False,
        },
        [MANY],
    ),
    Row(
        "itransformer",
        "iTransformer:iTransformer",
        (),
        {
            "num_variates": 3,
            "lookback_len": 24,
            "dim": 16,
            "depth": 1,
            "heads": 2,
            "dim_head": 8,
            "pred_length": 6,
        },
        SERIES,
    ),
    Row(
        "itransformer",
        "iTransformer:iTransformer",
        (),
        {
            "num_variates": 3,
            "lookback_len": 24,
            "dim": 16,
            "depth": 1,
            "heads": 2,
            "dim_head": 8,
            "pred_length": 6,
            "use_reversible_instance_norm": True,
        },
        SERIES,
        title="reversible norm",
    ),
    Row(
        "itransformer",
        "iTransformer:iTransformer2D",
        (),
        {
            "num_variates": 3,
            "num_time_tokens": 4,
            "lookback_len": 24,
            "dim": 16,
            "depth": 1,
            "heads": 2,
            "dim_head": 8,
            "pred_length": 6,
        },
        SERIES,
    ),
    Row(
        "itransformer",
        "iTransformer:iTransformerFFT",
        (),
        {
            "num_variates": 3,
            "lookback_len": 24,
            "dim": 16,
            "depth": 1,
            "heads": 2,
            "dim_head": 8,
            "pred_length": 6,
        },
        SERIES,
    ),
    Row(
        "nbeats-pytorch",
        "nbeats_pytorch.model:NBeatsNet",
        (),
        {"backcast_length": 24, "forecast_length": 6, "hidden_layer_units": 8, "nb_blocks_per_stack": 1},
        [Float(2, 24)],
    ),
    Row(
        "nbeats-pytorch",
        "nbeats_pytorch.model:NBeatsNet",
        (),
        {
            "stack_types": ("trend", "seasonality"),
            "thetas_dim": (4, 4),
            "backcast_length": 24,
            "forecast_length": 6,
            "hidden_layer_units": 8,
            "nb_blocks_per_stack": 1,
        },
        [Float(2, 24)],
        title="interpretable",
    ),
)
