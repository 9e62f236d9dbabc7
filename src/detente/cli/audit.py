"""``detente audit``: judge a session again, running nothing."""

from __future__ import annotations

import click

from detente.cli.judged import judged
from detente.cli.options import format_option
from detente.cli.sessions import find_session
from detente.cli.text import say


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("session", default="latest")
@format_option("text", "json")
@click.option("--all", "everything", is_flag=True, help="Also list the rules that could not be checked.")
def command(session: str, form: str, everything: bool) -> int:
    """Judge SESSION (an id, its beginning, or an exported file) from its stored evidence.

    Nothing is run and no framework is imported. Exit code 1 when a row is void.

    \b
    Examples:
      detente audit
      detente audit 20261121-1537 --all
      detente audit session.jsonl --format json
    """
    import json

    from detente.report.audit_page import audit_document, audit_lines

    found = find_session(session)
    result = judged(found)
    if form == "json":
        print(json.dumps(audit_document(result)))
    else:
        for line in audit_lines(result, everything):
            say(line)
    return 1 if any(c.status == "void" for c in result.cells) else 0
