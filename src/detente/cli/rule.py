"""``detente rule``: the page of an audit rule."""

from __future__ import annotations

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("code", required=False)
def command(code: str | None) -> int:
    """Print the page of the rule CODE (`clock-stops-early` or its number, P1); without CODE, list the rules.

    \b
    Examples:
      detente rule
      detente rule clock-stops-early
      detente rule P1
    """
    from detente.judge import RULES
    from detente.judge.rules.pages import rule_page
    from detente.judge.rules.planting import counts, planting

    if code is None:
        width = max(len(c) for c in RULES)
        for rule in RULES.values():
            tried = planting(rule.code)
            print(f"{rule.alias:4} {rule.code:{width}}  {rule.severity:5} {tried:11} {rule.title}")
        print(f"\n{counts()}.")
        return 0
    print(rule_page(code))
    return 0
