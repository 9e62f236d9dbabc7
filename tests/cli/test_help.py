"""Every `--help` shows how it is typed, and what it shows can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from detente.cli import cli


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its path, the groups and the root among them."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, name
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


ALL = list(commands(cli))


def help_of(path: tuple[str, ...]) -> str:
    return CliRunner().invoke(cli, [*path, "--help"], prog_name="detente").output


@pytest.mark.parametrize("path", [p for p, _ in ALL], ids=lambda p: " ".join(p) or "detente")
def test_every_help_has_an_example_of_that_command(path: tuple[str, ...]) -> None:
    shown = help_of(path)
    examples = re.findall(r"^(?: {4,}|  Example: )(detente .+)$", shown, re.MULTILINE)
    assert examples, shown
    for line in examples:
        words = shlex.split(line)
        assert tuple(words[1 : 1 + len(path)]) == path, line
        # Every option of an example is one that its command has.
        command = next(
            c for p, c in reversed(ALL) if p == tuple(words[1 : 1 + len(p)]) and (p or not words[1:])
        )
        known = {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)}
        assert {w.partition("=")[0] for w in words if w.startswith("--")} <= known, line


def test_the_lock_and_its_variable_are_in_a_help_text() -> None:
    assert "DETENTE_LOCK" in help_of(("compare",))
