"""What makes a training of a part: a loss needs a network before it, a solver a field, an adapter a base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Compared(nn.Module):
    """A network, and a loss of its result beside a target."""

    def __init__(self, network: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.network, self.criterion = network, criterion

    def forward(self, x: torch.Tensor, *target: torch.Tensor) -> Any:
        return self.criterion(self.network(x), *target)


class Fed(nn.Module):
    """One module after the other; a channel axis of one is dropped between them."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> Any:
        for part in self.parts[:-1]:
            x = part(x)
        return self.parts[-1](x.squeeze(1) if x.ndim == 3 and x.shape[1] == 1 else x)


class Spiking(nn.Module):
    """Neurons over time whose state begins anew in each forward, as snntorch's tutorials have it."""

    def __init__(self, neuron: nn.Module) -> None:
        super().__init__()
        self.linear, self.neuron = nn.Linear(4, 6), neuron

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.neuron.reset_mem()
        state = state if isinstance(state, tuple) else (state,)
        spikes = []
        for now in x.unbind(1):
            spike, *state = self.neuron(self.linear(now), *state)
            spikes.append(spike + state[-1])
        return torch.stack(spikes)


class TwoViews(nn.Module):
    """A network on two views of the same examples, and a loss between what it makes of them."""

    def __init__(self, network: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.network, self.criterion = network, criterion

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        return self.criterion(self.network(one), self.network(other))


class Solved(nn.Module):
    """A differential equation whose field is the network."""

    def __init__(self, field: nn.Module, solver: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.field, self.solver, self.options = field, solver, options

    def forward(self, y: torch.Tensor, times: torch.Tensor) -> Any:
        return self.solver(self.field, y, times, **self.options)


class Field(nn.Module):
    """dy/dt of a small network, with the signature that solvers call."""

    def __init__(self, width: int, hidden: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y)


class Mined(nn.Module):
    """A loss of the pairs that a miner takes."""

    def __init__(self, network: nn.Module, miner: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.network, self.miner, self.criterion = network, miner, criterion

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        found = self.network(x)
        return self.criterion(found, labels, self.miner(found, labels))


class Dino(nn.Module):
    """Student and teacher of one network; the loss keeps the centre."""

    def __init__(self, network: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.network, self.criterion = network, criterion

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        students = [self.network(one), self.network(other)]
        return self.criterion([s.detach() for s in students], students, epoch=1)


class Swav(nn.Module):
    def __init__(self, network: nn.Module, prototypes: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.network, self.prototypes, self.criterion = network, prototypes, criterion

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        scores = [self.prototypes(nn.functional.normalize(self.network(x), dim=1)) for x in (one, other)]
        return self.criterion(scores, [])


class Encoder(nn.Module):
    """A small network of pictures."""

    def __init__(self, width: int = 8, out: int = 12) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Likely(nn.Module):
    """The negative likelihood under a flow that is a function of its context."""

    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.flow().log_prob(x).mean()


class Kernelled(nn.Module):
    """A covariance matrix, as numbers."""

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x).to_dense()


class Process(nn.Module):
    """An exact Gaussian process and its marginal likelihood, as gpytorch's first tutorial has it."""

    def __init__(self) -> None:
        super().__init__()
        import gpytorch

        class Exact(gpytorch.models.ExactGP):
            def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
                super().__init__(x, y, likelihood)
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

            def forward(self, x: torch.Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        self.x = torch.linspace(0, 1, 8)
        self.y = torch.sin(6 * self.x)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.model = Exact(self.x, self.y, self.likelihood)
        self.criterion = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.model)

    def forward(self) -> torch.Tensor:
        return -self.criterion(self.model(self.x), self.y)


def normalizing(kind: str) -> nn.Module:
    """A flow of normflows with two layers of a kind."""
    import normflows as nf

    def layer() -> nn.Module:
        return {
            "planar": lambda: nf.flows.Planar((4,)),
            "affine": lambda: nf.flows.AffineCouplingBlock(nf.nets.MLP([2, 8, 4], init_zeros=False)),
            "spline": lambda: nf.flows.AutoregressiveRationalQuadraticSpline(4, 1, 8, num_bins=4),
            "residual": lambda: nf.flows.Residual(nf.nets.LipschitzMLP([4, 8, 4]), reduce_memory=False),
        }[kind]()

    return nf.NormalizingFlow(nf.distributions.DiagGaussian(4), [layer(), layer()])


class Controlled(nn.Module):
    """A neural controlled differential equation, as torchcde's first example has it."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.channels, self.hidden = channels, hidden
        self.initial = nn.Linear(channels, hidden)
        self.field = nn.Linear(hidden, hidden * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import torchcde

        path = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))

        def change(t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.field(z).tanh().view(*z.shape[:-1], self.hidden, self.channels)

        begin = self.initial(path.evaluate(path.interval[0]))
        return torchcde.cdeint(
            path, change, begin, path.interval, adjoint=False, method="rk4", options={"step_size": 1.0}
        )


class Noisy(nn.Module):
    """A stochastic differential equation, as torchsde's first example has it."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.drift, self.spread = nn.Linear(width, width), nn.Linear(width, width)

    def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.drift(y)

    def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.spread(y).sigmoid()

    def forward(self, y: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        import torchsde

        return torchsde.sdeint(self, y, times, dt=0.2, method="euler")


class Sentences(nn.Module):
    """A loss of sentence-transformers on a small BERT."""

    def __init__(self, criterion: str, **options: Any) -> None:
        super().__init__()
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses
        from sentence_transformers.sentence_transformer.modules import Pooling
        from transformers import BertConfig, BertModel

        class Bert(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                config = BertConfig(
                    vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=32, max_position_embeddings=16,
                )  # fmt: skip
                self.bert = BertModel(config)

            def forward(self, features: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
                mask = torch.ones_like(features["input_ids"])
                found = self.bert(features["input_ids"], mask).last_hidden_state
                return features | {"token_embeddings": found, "attention_mask": mask}

        model = SentenceTransformer(modules=[Bert(), Pooling(16)], device="cpu")
        self.criterion = getattr(losses, criterion)(model, **options)

    def forward(self, one: torch.Tensor, other: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return self.criterion([{"input_ids": one}, {"input_ids": other}], labels)


def eyes(*shape: int) -> torch.Tensor:
    """As many rotations by nothing."""
    return torch.eye(3).expand(*shape, 3, 3).clone()


def policy(name: str, actions: int, **options: Any) -> nn.Module:
    """A policy of stable-baselines3 over four numbers; ``actions`` numbers out, or 0: one of three."""
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common import policies

    seen = spaces.Box(-1.0, 1.0, (4,), np.float32)
    done = spaces.Box(-1.0, 1.0, (actions,), np.float32) if actions else spaces.Discrete(3)
    return getattr(policies, name)(seen, done, lambda _: 1e-3, net_arch=[8], **options)


def part(name: str) -> nn.Module:
    """A critic or an actor of stable-baselines3."""
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.policies import ContinuousCritic
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from stable_baselines3.dqn.policies import QNetwork
    from stable_baselines3.sac.policies import Actor

    seen = spaces.Box(-1.0, 1.0, (4,), np.float32)
    done = spaces.Box(-1.0, 1.0, (2,), np.float32)
    extractor = FlattenExtractor(seen)
    if name == "QNetwork":
        return QNetwork(seen, spaces.Discrete(3), extractor, 4, [8])
    kind: Any = {"ContinuousCritic": ContinuousCritic, "Actor": Actor}[name]
    return kind(seen, done, [8], extractor, 4)
