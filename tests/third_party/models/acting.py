"""Reinforcement learning: policies, critics, and what an update of them costs."""

from tests.third_party.row import Below, Float, Row

SEEN = Float(6, 4)

ROWS = (
    Row(
        "stable-baselines3",
        "tests.third_party.wrapped:policy",
        ("ActorCriticPolicy", 2),
        {},
        [SEEN, Float(6, 2)],
        loss="evaluate_actions",
    ),
    Row(
        "stable-baselines3",
        "tests.third_party.wrapped:policy",
        ("ActorCriticPolicy", 0),
        {},
        [SEEN, Below(3, 6)],
        loss="evaluate_actions",
        title="discrete",
    ),
    Row(
        "stable-baselines3",
        "tests.third_party.wrapped:policy",
        ("ActorCriticPolicy", 2),
        {"use_sde": True},
        [SEEN, Float(6, 2)],
        loss="evaluate_actions",
        title="state dependent",
    ),
    Row("stable-baselines3", "tests.third_party.wrapped:part", ("QNetwork",), {}, [SEEN]),
    Row(
        "stable-baselines3",
        "tests.third_party.wrapped:part",
        ("ContinuousCritic",),
        {},
        [SEEN, Float(6, 2)],
        title="critic",
    ),
    Row("stable-baselines3", "tests.third_party.wrapped:part", ("Actor",), {}, [SEEN], title="actor"),
)
