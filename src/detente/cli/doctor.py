"""``detente doctor``: is this machine fit to measure, and does every stack work here?"""

from __future__ import annotations

import json

import click

from detente.cli.options import format_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--device", default="auto", show_default=True, help="Device that the stacks are probed on.")
@format_option("text", "json")
def command(device: str, form: str) -> int:
    """Check machine and stacks, a line each, with the fix where something is wrong. Exit code 3 when no stack works.

    \b
    Examples:
      detente doctor
      detente doctor --device cuda --format json
    """
    from detente.records.codec import to_json
    from detente.session.doctor import examine

    checks = []
    for check in examine(device):
        checks.append(check)
        if form == "text":
            mark = {"ok": "ok  ", "warn": "warn", "bad": "BAD ", "absent": "-   "}[check.state]
            print(
                f"{mark} {check.name:22} {check.what}"
                + (f"\n     {'':22} fix: {check.fix}" if check.fix else ""),
                flush=True,
            )
    if form == "json":
        print(json.dumps({"schema": "detente/doctor/1", "checks": to_json(checks)}))
    works = [c for c in checks if c.name.startswith("stack ") and c.state in ("ok", "warn")]
    return 0 if works else 3
