"""Processes that live at the same time and take one step each in turns, so that each is measured on the same machine:
two processes apart differ by a tenth here, which is more than what is to be told."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

REST = 0.02  # seconds: until the threads of who stepped last, which look for work a while, are asleep


class Failed(RuntimeError):
    """A process that ended before it answered; the message is its exit code."""


class Live:
    """A process of ``command``, which ends in ``serve``. ``alone``: what it told of itself before its first turn."""

    def __init__(self, command: list[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.alone: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        """It ends with its input; whoever does not, as where it was interrupted in a compilation, is ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # it had ended, with a turn unread
            self._process.stdin.close()
        self._process.stdout.close()
        if reason[0] is not None:
            self._process.kill()
        self._process.wait()

    def begin(self) -> None:
        self.alone = self._answer()

    def step(self) -> float:
        """Seconds of one step."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise self._ended()

    def _ended(self) -> Failed:
        return Failed(f"exit code {self._process.wait()}")


def serve(alone: Callable[[], tuple[dict[str, Any], Callable[[], Any]]]) -> None:
    """The process's side: tells what ``alone`` measured, then takes the step that it gave whenever a line comes."""
    # What a framework prints is no answer: from here on it goes where errors do.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        found, step = alone()
        print(json.dumps(found), file=answers, flush=True)
        for _ in sys.stdin:
            begun = time.perf_counter()
            step()
            print(time.perf_counter() - begun, file=answers, flush=True)


def in_turns(live: Mapping[str, Live], turns: int) -> dict[str, list[float] | Failed]:
    """Seconds of ``turns`` steps of each by name, a new random order in every turn. Who fails leaves, the others go
    on."""
    found: dict[str, list[float]] = {name: [] for name in live}
    failed: dict[str, Failed] = {}
    for _ in range(turns):
        there = [name for name in live if name not in failed]
        for name in random.sample(there, len(there)):
            time.sleep(REST)
            try:
                found[name].append(live[name].step())
            except Failed as error:
                failed[name] = error
    return found | failed
