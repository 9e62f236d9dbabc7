"""Differential equations, operators, spikes and implicit representations."""

from tests.third_party.row import At, Float, New, Row

FIELD = New("tests.third_party.wrapped:Field", 3)
START = [Float(4, 3), New("torch:linspace", 0.0, 1.0, 4)]


def ode(method: str, title: str = "", solver: str = "torchdiffeq:odeint", **options: object) -> Row:
    """torchdiffeq with one of its solvers."""
    return Row(
        "torchdiffeq",
        "tests.third_party.wrapped:Solved",
        (FIELD, At(solver)),
        {"method": method, **options},
        START,
        title=title or method,
    )


ROWS = (
    ode("euler"),
    ode("rk4", options={"step_size": 0.1}),
    ode("midpoint"),
    ode("heun3"),
    ode("explicit_adams"),
    ode("dopri5"),
    ode("bosh3"),
    ode("rk4", "adjoint rk4", "torchdiffeq:odeint_adjoint"),
    Row("torchcde", "tests.third_party.wrapped:Controlled", (3, 4), {}, [Float(2, 6, 3)]),
    Row("torchsde", "tests.third_party.wrapped:Noisy", (3,), {}, START),
    Row(
        "neuraloperator",
        "neuralop.models:FNO",
        (),
        {"n_modes": (4, 4), "in_channels": 1, "out_channels": 1, "hidden_channels": 8, "n_layers": 2},
        [Float(2, 1, 16, 16)],
    ),
    Row(
        "neuraloperator",
        "neuralop.models:TFNO",
        (),
        {
            "n_modes": (4, 4),
            "in_channels": 1,
            "out_channels": 1,
            "hidden_channels": 8,
            "n_layers": 2,
            "factorization": "tucker",
            "rank": 0.5,
        },
        [Float(2, 1, 16, 16)],
    ),
    Row(
        "neuraloperator",
        "neuralop.models:UNO",
        (),
        {
            "in_channels": 1,
            "out_channels": 1,
            "hidden_channels": 8,
            "uno_out_channels": [8, 8, 8],
            "uno_n_modes": [[4, 4]] * 3,
            "uno_scalings": [[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]],
            "n_layers": 3,
        },
        [Float(2, 1, 16, 16)],
    ),
    Row("neuraloperator", "neuralop.layers.channel_mlp:ChannelMLP", (8,), {}, [Float(2, 8, 6, 6)]),
    Row(
        "siren-pytorch",
        "siren_pytorch:SirenNet",
        (),
        {"dim_in": 2, "dim_hidden": 16, "dim_out": 3, "num_layers": 3},
        [Float(8, 2)],
    ),
    Row(
        "siren-pytorch",
        "siren_pytorch:SirenWrapper",
        (New("siren_pytorch:SirenNet", dim_in=2, dim_hidden=16, dim_out=3, num_layers=3),),
        {"image_width": 4, "image_height": 4},
        [Float(1, 3, 4, 4)],
    ),
    Row(
        "pykan",
        "kan:MultKAN",
        (),
        {
            "width": [2, 3, 1],
            "grid": 3,
            "k": 3,
            "auto_save": False,
            "symbolic_enabled": False,
            "save_act": False,
        },
        [Float(6, 2)],
    ),
    Row("pykan", "kan:KANLayer", (), {"in_dim": 2, "out_dim": 3, "num": 3, "k": 3}, [Float(6, 2)]),
    Row(
        "snntorch",
        "tests.third_party.wrapped:Spiking",
        (New("snntorch:Leaky", beta=0.9),),
        {},
        [Float(3, 5, 4)],
        title="Leaky",
    ),
    Row(
        "snntorch",
        "tests.third_party.wrapped:Spiking",
        (New("snntorch:Leaky", beta=0.9, learn_beta=True),),
        {},
        [Float(3, 5, 4)],
        title="Leaky learned",
    ),
    Row(
        "snntorch",
        "tests.third_party.wrapped:Spiking",
        (New("snntorch:Synaptic", alpha=0.9, beta=0.8),),
        {},
        [Float(3, 5, 4)],
        title="Synaptic",
    ),
    Row("snntorch", "snntorch:SLSTM", (4, 6), {}, [Float(3, 4)]),
    Row("ncps", "ncps.torch:CfC", (4, 8), {"batch_first": True}, [Float(2, 6, 4)]),
    Row(
        "ncps",
        "ncps.torch:LTC",
        (4, New("ncps.wirings:AutoNCP", 8, 2)),
        {"batch_first": True},
        [Float(2, 6, 4)],
    ),
    Row(
        "ncps", "ncps.torch:CfC", (4, New("ncps.wirings:AutoNCP", 8, 2)), {}, [Float(2, 6, 4)], title="wired"
    ),
)
