from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    owner: str
    trained: bool = True


def map_weights(torch, jax, table=None):
    raise NotImplementedError
