"""The command line: one thin file per command, imported only when its command runs."""

from __future__ import annotations

import importlib
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

import click

from detente import __version__
from detente.cli.encoding import forgive
from detente.cli.output import is_lost_output, is_machine, lost_output, machine_words, require_output
from detente.records.fault import Fault
from detente.records.folders import state_folder
from detente.records.nearest import did_you_mean

# Command -> (module, one line for the list). The list is written here so that --help imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "compare": (
        "detente.cli.compare",
        "Measure a workload on every stack, prove them equal, tell the verdict",
    ),
    "report": ("detente.cli.report", "Write a stored session as a page: text, Markdown or one HTML file"),
    "history": ("detente.cli.history", "What changed between sessions of the same cell"),
    "audit": ("detente.cli.audit", "Judge a stored or exported session again, running nothing"),
    "rule": ("detente.cli.rule", "The page of an audit rule"),
    "export": ("detente.cli.export", "Write a session as JSON lines, or for another benchmark tool"),
    "import": ("detente.cli.import_", "Take a session from another machine into the store"),
    "sessions": ("detente.cli.stored", "List, show and remove the stored sessions"),
    "doctor": ("detente.cli.doctor", "Check this machine and every stack, with a fix per line"),
    "stacks": ("detente.cli.stacks", "List, add and remove the stacks' environments"),
    "workloads": ("detente.cli.workloads", "List the workloads, their sizes and costs"),
    "fits": ("detente.cli.fits", "Plan the memory of every row, before anything runs"),
    "explain": (
        "detente.cli.explain",
        "Why one stack is faster: programs side by side, causes switched one by one",
    ),
    "programs": ("detente.cli.programs", "The captured programs of stacks side by side, as counts"),
    "bridge": ("detente.cli.bridge", "Check what the bridge would refuse in a model; tune its form"),
}


class LazyGroup(click.Group):
    """A group whose commands are named in a table and imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[cmd_name][0]).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(
                f"no command is called {args[0]!r}" + did_you_mean(args[0], COMMANDS, cutoff=0.6)
            )
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="detente")
def cli() -> None:
    """Settle PyTorch against JAX with evidence.

    `detente compare gpt2` trains GPT-2 Small on every stack that is installed, proves that they compute the same
    thing, and says which is faster and how sure that is.

    \b
    Examples:
      detente doctor
      detente compare gpt2 --budget 12m --html report.html
      detente compare path/to/model.py:build --stacks torch-eager,detente
    """


def main(arguments: list[str] | None = None) -> None:
    """The entry point: every error becomes one message and an exit code (docs/exit-codes.md)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    require_output()
    for stream in (sys.stdout, sys.stderr):
        forgive(stream)
    code = _run(arguments)
    try:
        # What is still in the buffer fails here, where it can be said, and not while the interpreter ends.
        sys.stdout.flush()
    except OSError as error:
        code = lost_output(error, code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(args=arguments, prog_name="detente", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return _tell(arguments, "interrupted", "interrupted", "", 130)
    except click.ClickException as error:
        if getattr(click.exceptions, "NoArgsIsHelpError", None) is type(error):
            # A group without its command. The help is all that there is to say, and it has lines of its own: neither
            # an error's one line nor JSON holds it. Click before 8.2 printed it itself, and exits above.
            print(error.format_message(), file=sys.stderr)
            return 2
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        hint = ctx.get_usage() if ctx else _help(arguments)
        return _tell(arguments, "usage", error.format_message(), hint, 2)
    except Fault as error:
        return _tell(arguments, error.code, error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        return _tell(arguments, "interrupted", "interrupted", "", 130)
    except OSError as error:
        if is_lost_output(error):
            return lost_output(error, 0)
        if is_machine(error):
            said, hint = machine_words(error)
            return _tell(arguments, "machine", said, hint, 3)
        return _bug(arguments, error)
    except Exception as error:
        return _bug(arguments, error)


def _help(arguments: list[str]) -> str:
    named = " ".join(["detente", *(a for a in arguments[:1] if a in COMMANDS)])
    return f"`{named} --help` says what it takes"


def _bug(arguments: list[str], error: Exception) -> int:
    said = f"this is a bug in detente: {type(error).__name__}: {error}"
    return _tell(arguments, "bug", said, _keep_traceback(), 4)


def _tell(arguments: list[str], code: str, message: str, hint: str, exit_code: int) -> int:
    """One error: text on standard error, and the JSON object on standard output where JSON was asked for. Returns the
    exit code."""
    try:
        if _wants_json(arguments):
            import json  # with what follows, a tenth of what --help takes

            print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}))
            return exit_code
        from detente.cli.text import say

        say(f"detente: {message}", error=True)
        for line in hint.splitlines():
            say(f"         {line}", error=True)
    except OSError as error:
        return lost_output(error, exit_code)
    return exit_code


def _wants_json(arguments: list[str]) -> bool:
    pairs = pairwise([*arguments, ""])
    return any(a == "--format=json" or (a == "--format" and b == "json") for a, b in pairs)


def _keep_traceback() -> str:
    """Write the traceback to a file and say where it is."""
    import traceback

    try:
        path: Path = state_folder() / "tracebacks" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc())
    except (OSError, Fault):
        return "run with DETENTE_HOME set to a folder that you may write, so that the traceback can be kept"
    return f"the traceback is in {path}; please report it"
