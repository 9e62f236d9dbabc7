"""The page as Markdown (GitHub's dialect): for an issue, a pull request, a wiki."""

from __future__ import annotations

import re

from detente.records.result import Result
from detente.report.compose import compose
from detente.report.page import (
    Command,
    Facts,
    Items,
    Page,
    Part,
    Section,
    Statement,
    Table,
    Words,
)
from detente.report.text import clean

_SIGNS = {"good": "✓", "bad": "✗", "warn": "!", "quiet": "·", "plain": "·"}
# Everything that means something to Markdown or to HTML inside it.
_SPECIAL = re.compile(r"([\\*_{}\[\]<>#|~&])")
_CODE = re.compile(r"(`[^`]+`)")


def render_markdown(result: Result) -> str:
    """A judged session as Markdown, with every section."""
    return markdown_page(compose(result))


def markdown_page(page: Page) -> str:
    """Any page as Markdown. Charts are left out: what they show stands in the tables."""
    blocks = [f"# {escape(page.title)}", escape(page.kicker)]
    for part in page.parts:
        blocks.extend(_part(part, 2))
    return "\n\n".join(blocks) + "\n"


def _part(part: Part, level: int) -> list[str]:
    if isinstance(part, Statement):
        text = _words(part.words)
        return [f"> {text}" if part.leads else text]
    if isinstance(part, Section):
        found = [f"{'#' * min(level, 6)} {escape(part.title)}"]
        for child in part.parts:
            found.extend(_part(child, level + 1))
        return found
    if isinstance(part, Table):
        return [_table(part), *(f"_{escape(''.join(s.text for s in note))}_" for note in part.notes)]
    if isinstance(part, Items):
        return ["\n".join(f"- {_SIGNS[i.tone]} {_words(i.words)}" for i in part.items)]
    if isinstance(part, Facts):
        return ["\n".join(f"- {escape(k)}: {escape(v) or '–'}" for k, v in part.pairs)] if part.pairs else []
    if isinstance(part, Command):
        fence = "```" + "`" * max((len(x) for x in re.findall(r"`+", part.text)), default=0)
        return [f"{fence}console\n{clean(part.text)}\n{fence}"]
    return []


def _table(table: Table) -> str:
    lines = [
        "| " + " | ".join(escape(c.name) for c in table.columns) + " |",
        "|" + "|".join("---:" if c.align == "right" else "---" for c in table.columns) + "|",
    ]
    lines.extend("| " + " | ".join(_words(c) for c in row.cells) + " |" for row in table.rows)
    return "\n".join(lines)


def _words(run: Words) -> str:
    found = []
    for s in run:
        text = escape(s.text)
        inner = text.strip()
        if not inner:
            found.append(text)
        elif s.style in ("strong", "bad"):
            # The stars must touch the word, or they are stars.
            found.append(text.replace(inner, f"**{inner}**", 1))
        else:
            found.append(text)
    return "".join(found)


def escape(text: str) -> str:
    """Text that means to Markdown what it says. Code between backticks stays."""
    # Code between backticks is left as it is, but for the bar that would end a table's cell.
    pieces = _CODE.split(clean(text))
    return "".join(
        p.replace("|", "\\|") if _CODE.fullmatch(p) else _SPECIAL.sub(r"\\\1", p).replace("`", "\\`")
        for p in pieces
    )
