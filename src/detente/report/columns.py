"""A table as lines: columns for a terminal, or Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from detente.report.markdown import escape


def columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: str,
    right: Collection[int] = (),
    indent: str = "",
    headed: bool = True,
) -> list[str]:
    """Lines of Markdown where ``style`` is ``md``, else of text. ``right``: the columns that are set to the right;
    ``indent`` and ``headed`` are for text alone, Markdown has no table without a head.

    >>> columns(("part", "us"), [("attn", "12")], "text", right={1}, indent="  ")
    ['  part  us', '  attn  12']
    >>> columns(("part", "us"), [("a|b", "12")], "md", right={1})
    ['| part | us |', '| --- | ---: |', '| a\\\\|b | 12 |']
    """
    if style == "md":
        rule = ["---:" if k in right else "---" for k in range(len(head))]
        cells = [[escape(c) for c in row] for row in rows]
        return ["| " + " | ".join(row) + " |" for row in (head, rule, *cells)]
    shown = [head, *rows] if headed else list(rows)
    widths = [max((len(row[k]) for row in shown), default=0) for k in range(len(head))]
    return [
        indent
        + "  ".join(
            c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
