"""Compulsory memory traffic: what no implementation can avoid, however it fuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from detente.workloads.workload import Size

# (size, region, bytes per parameter element, bytes per activation element) -> bytes
Traffic = Callable[[Size, str, int, int], int]
Count = Callable[[Size], int]

# How often every element of a parameter must cross the memory bus, by region or contract name. ``gradient``
# reads the parameter and writes its gradient. An AdamW step reads and writes parameter, first and second moment;
# its gradient is an intermediate value that a fused program never stores. SGD with momentum keeps one moment.
PARAMETER_PASSES: dict[str, int] = {
    "forward": 1,
    "gradient": 2,
    "train-step": 6,
    "train-step-sgd": 4,
}


def parameter_traffic(count: int, region: str, element: int) -> int:
    """Bytes that ``count`` parameters of ``element`` bytes cost in one step of ``region``.

    ``region`` is a contract's region, or a contract's name where the optimizer matters. Raises KeyError on
    another.
    """
    return count * element * PARAMETER_PASSES[region]


def step_traffic(
    region: str,
    parameter: int,
    activation: int,
    *,
    parameters: int,
    read: int = 0,
    integers: int = 0,
    written: Mapping[str, int] | None = None,
    unread: int = 0,
    buffers: int = 0,
) -> int:
    """Bytes of one step of ``region``.

    parameter, activation  bytes of an element of each
    parameters  trained elements, each passing as often as PARAMETER_PASSES says
    read        elements of floating point that the batch brings
    integers    whole numbers that it brings, 4 bytes each
    written     region -> elements that it hands out beside state: ``forward`` its outputs, ``gradient`` those of the
                batch
    unread      of ``parameters``, those in rows of tables that no token of the batch looks up. An update moves them all
                the same, and a gradient writes their zeros; only reading them can be avoided
    buffers     elements of running buffers: ``forward`` reads them, every other region writes them as well
    """
    total = parameter_traffic(parameters, region, parameter)
    if region in ("forward", "gradient"):
        total -= unread * parameter
    total += (read + (written or {}).get(region, 0)) * activation + 4 * integers
    return total + buffers * parameter * (1 if region == "forward" else 2)


def of_hidden_states(parameters: Count) -> Traffic:
    """``batches.hidden_states``: x and target read; ``forward`` writes y, ``gradient`` x's gradient."""

    def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
        one = size["batch"] * size["sequence"] * size["hidden"]
        written = {"forward": one, "gradient": one}
        return step_traffic(
            region, parameter, activation, parameters=parameters(size), read=2 * one, written=written
        )

    return traffic


def of_tokens(parameters: Count, unread: Count) -> Traffic:
    """``batches.tokens``: the tokens read; ``forward`` writes the logits of every position."""

    def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
        tokens = size["batch"] * size["sequence"]
        return step_traffic(
            region,
            parameter,
            activation,
            parameters=parameters(size),
            integers=tokens,
            written={"forward": tokens * size["vocab"]},
            unread=unread(size),
        )

    return traffic


def of_labelled_pictures(
    parameters: Count, *, labels: str = "labels", buffers: Count = lambda size: 0
) -> Traffic:
    """``batches.labelled_pictures``: pictures and labels read; ``forward`` writes the logits of every picture."""

    def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
        return step_traffic(
            region,
            parameter,
            activation,
            parameters=parameters(size),
            read=size["batch"] * 3 * size["image"] ** 2,
            integers=size["batch"],
            written={"forward": size["batch"] * size[labels]},
            buffers=buffers(size),
        )

    return traffic


def positions_unread(size: Size) -> int:
    """Elements of a table of positions behind the end of the sequence."""
    return (size["positions"] - size["sequence"]) * size["hidden"]
