"""The page as one HTML file: no script, no font, no picture from elsewhere; it can be mailed and opened in
ten years."""

from __future__ import annotations

import html
import re
from pathlib import Path

from detente.records.fault import MachineFault
from detente.records.result import Result
from detente.report.compose import compose
from detente.report.numbers import NOTHING
from detente.report.page import Chart, Page, Words, plain_text
from detente.report.page_template import template_environment, write_page
from detente.report.text import clean

# A number stays on one line with its unit. (Not inside code: that is there to be copied.)
_UNIT = re.compile(
    r"(?<=\d) (?=(%|[numkMGT]?s|min|h|[kMGTP]?(B|FLOP))(\b|\W|$))(?![^`]*`[^`]*(`[^`]*`[^`]*)*$)"
)
_DOT = re.compile(r"(?<=\w)\.(?=[a-z_]{2})")
_CODE = re.compile(r"`([^`]+)`")


def render_html(result: Result) -> str:
    """A judged session as one HTML document: light and dark after the reader's setting, printable, no script.

    Raises MachineFault when Jinja2, Altair or vl-convert is absent.
    """
    return html_page(compose(result))


def write_html(result: Result, path: Path | str) -> None:
    """Write the document to a file. Raises StoreFault when the file cannot be written."""
    write_page(render_html(result), Path(path))


def html_page(page: Page) -> str:
    """Any page as one HTML document."""
    try:
        import altair  # noqa: F401
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
        from markupsafe import Markup
    except ImportError as error:
        raise MachineFault(
            f"the HTML report needs {error.name}, which is not installed",
            "pip install 'detente[judge]'; `--format md` needs nothing",
        ) from None
    from detente.report.charts import draw

    drawn = 0

    def figure(chart: Chart) -> Markup:
        # Vega numbers the clip paths of every drawing from 0: two drawings in one document must not share
        # them.
        nonlocal drawn
        found = []
        drawing = draw(chart)
        for name, svg in (("wide", drawing.wide), ("narrow", drawing.narrow)):
            drawn += 1
            own = re.sub(r'(id="|url\(#)(clip|gradient)', rf"\g<1>d{drawn}-\g<2>", svg)
            found.append(f'<div class="{name}">{own}</div>')
        return Markup("".join(found))

    environment = template_environment()
    environment.filters["inline"] = lambda run: Markup(_inline(run))
    environment.filters["plain"] = lambda text: Markup(_escaped(text))
    environment.filters["nothing"] = lambda run: plain_text(run) in ("", NOTHING)
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["figure"] = figure
    return environment.get_template("page.html.j2").render(page=page)


def _inline(run: Words) -> str:
    return "".join(
        _escaped(s.text) if s.style == "plain" else f'<span class="{s.style}">{_escaped(s.text)}</span>'
        for s in run
    )


def _escaped(text: str) -> str:
    """Text that is nothing but text: escaped first, and only then what stands between backticks made code."""
    joined = _UNIT.sub("\u00a0", html.escape(clean(text), quote=True))
    # A tensor's name may break after a dot.
    return _CODE.sub(r"<code>\1</code>", _DOT.sub(".<wbr>", joined))
