"""A small table as HTML, for notebooks: ``_repr_html_`` of what a step is made of.

No colours, scripts or files of its own: it takes those of the page, light or dark. Every text is escaped, because names
of classes and tensors are the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;padding:0.1em 0.8em 0.1em 0;color:inherit;background:transparent"


def table(caption: str, rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """``rows`` of texts below ``caption``; without ``head`` the first text of a row is its head.

    >>> table("a < b", [["one", "1 & 2"]]).count("&lt;"), "1 &amp; 2" in table("", [["one", "1 & 2"]])
    (1, True)
    """

    def cell(kind: str, text: str) -> str:
        return f'<{kind} style="{_CELL}">{escape(text)}</{kind}>'

    lines = ["".join(cell("th", text) for text in head)] if head else []
    lines += [
        "".join(cell("td" if head or place else "th", text) for place, text in enumerate(row)) for row in rows
    ]
    body = "".join(f'<tr style="background:transparent">{line}</tr>' for line in lines)
    said = f'<caption style="text-align:left;color:inherit"><b>{escape(caption)}</b></caption>'
    return f'<table style="border:none;color:inherit">{said}<tbody>{body}</tbody></table>'


def size(count: int) -> str:
    """Bytes to three significant digits, in binary units.

    >>> size(16_600_000_000)
    '15.5 GiB'
    """
    value, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, bigger
    return f"{value:.3g} {unit}"
