"""``detente stacks``: what can be measured here, and the environments of the stacks that need one of their own."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from detente.cli.options import format_option
from detente.environments.add import Plan, add, plan, remove
from detente.environments.place import folder_of, read_record, state_of
from detente.environments.recipe import RECIPES, find_recipe
from detente.records.codec import to_json
from detente.records.fault import UsageFault
from detente.session.layout import missing_reason, python_for
from detente.stacks.catalogue import STACKS, find_entry

SCHEMA = "detente/stacks/1"


@click.group("stacks", invoke_without_command=True)
@format_option("text", "json", "md")
@click.pass_context
def command(context: click.Context, form: str) -> None:
    """List the stacks; `add` and `remove` the environments that some of them need.

    \b
    Examples:
      detente stacks
      detente stacks add torch-xla --yes
    """
    if context.invoked_subcommand is None:
        show(form)


@command.command("list")
@format_option("text", "json", "md")
def list_command(form: str) -> None:
    """Every stack: installed, or the command that adds it.

    \b
    Example:
      detente stacks list --format json
    """
    show(form)


@command.command("add")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def add_command(name: str, yes: bool) -> None:
    """Make the environment of a stack. Says first what, how large and where; can be interrupted and repeated.

    \b
    Examples:
      detente stacks add torch-xla
      detente stacks add torch-xla --yes
    """
    chosen = plan(find_recipe(_environment(name)))
    if chosen.nothing_to_do:
        click.echo(f"{chosen.recipe.name} is installed in {chosen.folder}")
        return
    for line in announcement(chosen):
        click.echo(line, err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageFault(
                "this asks before it downloads, and standard input is no terminal", "say it with --yes"
            )
        click.confirm("Go on?", abort=True, err=True)
    try:
        record = add(chosen, lambda line: click.echo(f"detente: {line}", err=True))
    except KeyboardInterrupt:
        click.echo(
            f"detente: interrupted; `detente stacks add {chosen.recipe.name}` goes on from here", err=True
        )
        raise
    click.echo(
        f"{record.name}: {len(record.installed)} distributions, {record.bytes / 1e9:.2f} GB, Python {record.python}, "
        f"{record.installer}, in {chosen.folder}"
    )


@command.command("remove")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_command(name: str, yes: bool) -> None:
    """Delete an environment. Sessions that were measured with it stay.

    \b
    Example:
      detente stacks remove torch-xla --yes
    """
    recipe = find_recipe(_environment(name))
    folder = folder_of(recipe.name)
    if not folder.exists():
        click.echo(f"{recipe.name} is not there; nothing to remove")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageFault(
                f"this asks before it deletes {folder}, and standard input is no terminal",
                "say it with --yes",
            )
        click.confirm(f"Delete {folder}?", abort=True, err=True)
    click.echo(f"{recipe.name}: {remove(recipe.name) / 1e9:.2f} GB freed")


def _environment(name: str) -> str:
    """The environment that a stack, or an environment, of this name means."""
    if name in RECIPES or name not in STACKS:
        return name
    environment = find_entry(name).environment
    if environment == "default":
        raise UsageFault(
            f"{name} runs in detente's own environment, there is nothing to add",
            missing_reason(find_entry(name)) or "it is installed",
        )
    return environment


def announcement(chosen: Plan) -> list[str]:
    """What would be done, before it is."""
    recipe = chosen.recipe
    what = {
        "unfinished": "finishes what an interrupted try left",
        "other versions": "replaces other versions",
    }
    return [
        f"{recipe.name}: {recipe.what}",
        f"  installs  {', '.join(recipe.packages)}"
        + ("" if recipe.alone else " and what they need")
        + (f"; {what[chosen.state]}" if chosen.state in what else ""),
        f"  size      about {recipe.size / 1e9:.1f} GB on disk, {recipe.download / 1e9:.1f} GB to download"
        + (f" ({recipe.note})" if recipe.note else ""),
        f"  where     {chosen.folder} ({chosen.free / 1e9:.0f} GB free)",
        f"  with      {'uv' if chosen.installer.name == 'uv' else 'venv and pip'}; "
        f"`detente stacks remove {recipe.name}` undoes it",
    ]


def rows() -> list[dict[str, Any]]:
    """One row per stack, in the catalogue's order."""
    found = []
    for entry in STACKS.values():
        why = missing_reason(entry)
        record = None if entry.environment == "default" else read_record(folder_of(entry.environment))
        state = "installed" if not why else "not installed"
        if entry.environment in RECIPES and why:
            kept = state_of(entry.environment, RECIPES[entry.environment].packages)
            state = kept if kept == "unfinished" else state
        python = python_for(entry)
        found.append(
            {
                "stack": entry.name,
                "what": entry.what,
                "environment": entry.environment,
                "default": entry.default,
                "state": state,
                "reason": why,
                "python": str(python) if python and not why else None,
                "record": to_json(record) if record else None,
            }
        )
    return found


def others() -> list[dict[str, Any]]:
    """The environments of no stack."""
    used = {entry.environment for entry in STACKS.values()}
    found = []
    for recipe in RECIPES.values():
        if recipe.name not in used:
            record = read_record(folder_of(recipe.name))
            found.append(
                {
                    "environment": recipe.name,
                    "what": recipe.what,
                    "state": state_of(recipe.name, recipe.packages),
                    "record": to_json(record) if record else None,
                }
            )
    return found


def show(form: str) -> None:
    """Print the list."""
    listed, beside = rows(), others()
    if form == "json":
        click.echo(json.dumps({"schema": SCHEMA, "stacks": listed, "environments": beside}))
        return
    table = [
        (
            row["stack"] + ("" if row["default"] else " *"),
            row["what"],
            row["environment"],
            "installed" if row["state"] == "installed" else row["reason"] or row["state"],
        )
        for row in listed
    ]
    head = ("stack", "what", "environment", "state")
    if form == "md":
        click.echo("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
        for line in table:
            click.echo("| " + " | ".join(line) + " |")
    else:
        widths = [max(len(line[k]) for line in (head, *table)) for k in range(3)]
        for line in (head, *table):
            click.echo("  ".join(part.ljust(w) for part, w in zip(line, (*widths, 0), strict=True)).rstrip())
    click.echo("* measured only when named with --stacks", err=form != "text")
    for other in beside:
        state = (
            "installed"
            if other["state"] == "installed"
            else f"{other['state']}: `detente stacks add {other['environment']}`"
        )
        click.echo(f"\nbeside the stacks, {other['environment']}: {other['what']}; {state}")
