"""Charts: Altair draws them, vl-convert makes them SVG, and the page's own colours go in.

Nothing runs in the reader's browser. A chart is drawn once with stand-in colours, which are then replaced
by the style sheet's variables: light, dark and print then need one drawing. Every chart is drawn twice, for
wide and narrow screens, because scaling one would make its words unreadable on the other.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from detente.report.page import Chart, Mark, Tone
from detente.report.text import clean

# Stand-in colour -> variable of the style sheet. Unlikely ones, so that nothing else is replaced.
_STAND_IN = {
    "ink": "#010a01",
    "muted": "#010a02",
    "line": "#010a03",
    "band": "#010a04",
    "good": "#010a05",
    "warn": "#010a06",
    "bad": "#010a07",
    "accent": "#010a08",
    "soft": "#010a09",
}
_TONE: dict[Tone, str] = {"good": "good", "warn": "warn", "bad": "bad", "plain": "accent", "quiet": "muted"}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
_ROW = 30


@dataclass(frozen=True)
class Drawing:
    """A chart as SVG, drawn for both widths."""

    wide: str
    narrow: str


def draw(chart: Chart) -> Drawing:
    """The SVG of a chart. Raises ImportError when Altair or vl-convert is absent."""
    chart = _cleaned(chart)
    return Drawing(_svg(chart, 640, 210), _svg(chart, 200, 120))


# Longer than any label that a chart has room for.
_LABEL = 160


def _cleaned(chart: Chart) -> Chart:
    """The chart with words that the drawing library survives: a control character in a label ends the process
    (vl-convert, SIGABRT), and so may a lone surrogate."""
    marks = tuple(
        replace(m, row=_short(m.row), series=_short(m.series), label=_short(m.label)) for m in chart.marks
    )
    return replace(chart, title=_short(chart.title), marks=marks)


def _short(text: str) -> str:
    text = clean(text)
    half = _LABEL // 2
    return text if len(text) <= _LABEL else f"{text[:half]}…{text[-half:]}"


def _svg(chart: Chart, width: int, label: int) -> str:
    import altair as alt
    import vl_convert

    made = _KINDS[chart.kind](alt, chart, width)
    # The reader's font is often wider than the one that vl-convert measures with.
    longest = max((len(m.row) for m in chart.marks), default=0)
    spec = _dressed(made, label, min(label, round(longest * 0.9))).to_dict(context={"pre_transform": False})
    svg = vl_convert.vegalite_to_svg(spec, vl_version=_vega_lite(alt, vl_convert))
    for name, colour in _STAND_IN.items():
        svg = svg.replace(colour, f"var(--{name})")
    said = html.escape(f"{chart.title}. {'; '.join(_said(m) for m in chart.marks)}", quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)


def _vega_lite(alt: Any, vl_convert: Any) -> str:
    """The newest Vega-Lite that vl-convert carries and that is not newer than Altair's own."""
    own = tuple(int(x) for x in alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = sorted(tuple(int(x) for x in v.split(".")[:2]) for v in vl_convert.get_vegalite_versions())
    fit = [v for v in known if v <= own] or known
    return ".".join(map(str, fit[-1]))


def _said(mark: Mark) -> str:
    return " ".join(x for x in (mark.row, mark.series, mark.label) if x)


def _dressed(chart: Any, label: int, left: int) -> Any:
    c = _STAND_IN
    return (
        chart.configure(
            background="transparent",
            font=_FONT,
            padding={"left": 4 + left, "right": 4, "top": 2, "bottom": 2},
        )
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=c["muted"],
            titleColor=c["muted"],
            gridColor=c["line"],
            domainColor=c["line"],
            tickColor=c["line"],
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_axisY(
            labelColor=c["ink"],
            labelLimit=label,
            grid=False,
            domain=False,
            ticks=False,
            labelPadding=8,
            title=None,
        )
        .configure_legend(
            labelColor=c["muted"],
            labelFontSize=12,
            title=None,
            orient="top",
            symbolSize=70,
            padding=0,
            offset=6,
        )
        .configure_title(
            color=c["muted"], fontSize=12, fontWeight="normal", anchor="start", frame="group", offset=6
        )
    )


def _rows(chart: Chart, scale: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "row": m.row,
            "value": m.value * scale,
            "low": (m.value if m.low is None else m.low) * scale,
            "high": (m.value if m.high is None else m.high) * scale,
            "series": m.series,
            "label": m.label,
            "quiet": m.tone == "quiet",
            "colour": _STAND_IN[_TONE[m.tone]],
        }
        for m in chart.marks
    ]


def _y(alt: Any, chart: Chart, axis: Any = None) -> Any:
    order = list(dict.fromkeys(m.row for m in chart.marks))
    return alt.Y("row:N", sort=order, title=None, **({} if axis is None else {"axis": axis}))


def _height(chart: Chart) -> int:
    return _ROW * len({m.row for m in chart.marks})


def _ratios(alt: Any, chart: Chart, width: int) -> Any:
    margin = chart.margin or 0.0
    ends = [x for m in chart.marks for x in (m.value, m.low, m.high) if x is not None]
    low, high = min([*ends, 1 / (1 + margin)]), max([*ends, 1 + margin])
    pad = (high / low) ** 0.06
    scale = alt.Scale(type="log", domain=[low / pad, high * pad], nice=False)
    ticks = _ratio_ticks(low / pad, high * pad, 7 if width > 400 else 4)
    x = alt.X("value:Q", scale=scale, title=None, axis=alt.Axis(values=ticks, format="~r", grid=False))
    rows = alt.Data(values=_rows(chart))
    band = alt.Chart(alt.Data(values=[{"a": 1 / (1 + margin), "b": 1 + margin}])).mark_rect(
        color=_STAND_IN["band"]
    )
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(color=_STAND_IN["muted"], strokeDash=[2, 2])
    # On a narrow screen the two names of a pair stand below one another: side by side they would be cut.
    below = None if width > 400 else alt.Axis(labelExpr=f"split(datum.label, '{PAIR}')", labelLineHeight=14)
    y = _y(alt, chart, below)
    base = alt.Chart(rows).encode(y=y, color=alt.Color("colour:N", scale=None, legend=None))
    line = base.mark_rule(strokeWidth=2.5, strokeCap="round").encode(
        x=alt.X("low:Q", scale=scale), x2="high:Q"
    )
    point = base.mark_point(filled=True, size=70, opacity=1).encode(x=x)
    layers = [
        band.encode(x=alt.X("a:Q", scale=scale, title=None), x2="b:Q"),
        one.encode(x=alt.X("one:Q", scale=scale, title=None)),
        line,
        point,
    ]
    return alt.layer(*layers).properties(width=width, height=_height(chart) * (1 if below is None else 1.4))


# Between the two rows of a pair, in the name of its mark.
PAIR = " / "
# Over more than this factor, round steps leave the small end of a logarithmic axis without a tick.
_WIDE = 4.0


def _ratio_ticks(low: float, high: float, most: int) -> list[float]:
    """Round ratios in the range, 1 among them, and some where the data is."""
    if high / low > _WIDE:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [x for k in exponents for d in digits if low <= (x := float(f"{d}e{k}")) <= high]
            if len(found) <= most:
                return sorted({1.0, *found})
        return sorted({1.0, *found[:: 1 + len(found) // most]})
    for step in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5):
        first, last = max(1, math.ceil(low / step)), math.floor(high / step)
        if last - first < most:
            return sorted({1.0, *(round(k * step, 6) for k in range(first, last + 1))})
    return [1.0]


def _unit(chart: Chart) -> tuple[float, str]:
    from detente.report.numbers import SECONDS, pick

    scale = pick(max(m.value for m in chart.marks), SECONDS)
    return 1 / scale.size, scale.unit


def _intervals(alt: Any, chart: Chart, width: int) -> Any:
    factor, unit = _unit(chart)
    values = _rows(chart, factor)
    top = max(v["high"] for v in values) * (1.12 if width > 400 else 1.3)
    scale = alt.Scale(domain=[0, top], nice=False)
    axis = alt.Axis(tickCount=6 if width > 400 else 3)
    base = alt.Chart(alt.Data(values=values)).encode(y=_y(alt, chart))
    fill = alt.condition("datum.quiet", alt.value(_STAND_IN["line"]), alt.value(_STAND_IN["soft"]))
    bar = base.mark_bar(height=14, cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", scale=scale, axis=axis, title=f"{unit} per step"), color=fill
    )
    line = base.mark_rule(color=_STAND_IN["ink"], strokeWidth=2).encode(
        x=alt.X("low:Q", scale=scale), x2="high:Q"
    )
    text = base.mark_text(color=_STAND_IN["ink"], align="left", dx=7, fontSize=12).encode(
        x=alt.X("high:Q", scale=scale), text="label:N"
    )
    return alt.layer(bar, line, text).properties(width=width, height=_height(chart))


def _runs(alt: Any, chart: Chart, width: int) -> Any:
    factor, unit = _unit(chart)
    series = list(dict.fromkeys(m.series for m in chart.marks))
    colours = [_STAND_IN["bad"], _STAND_IN["warn"], _STAND_IN["accent"]][: len(series)]
    values = _rows(chart, factor)
    low, high = min(v["value"] for v in values) / 1.3, max(v["value"] for v in values) * 1.3
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    base = alt.Chart(alt.Data(values=values)).encode(y=_y(alt, chart))
    x = alt.X(
        "value:Q",
        scale=scale,
        title=f"{unit}, logarithmic",
        axis=alt.Axis(tickCount=5 if width > 400 else 3, format="~g"),
    )
    line = base.mark_line(color=_STAND_IN["line"], strokeWidth=2).encode(x=x, detail="row:N", order="value:Q")
    point = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=x,
        color=alt.Color("series:N", scale=alt.Scale(domain=series, range=colours), sort=series),
        shape=alt.Shape(
            "series:N",
            scale=alt.Scale(domain=series, range=["triangle-up", "diamond", "circle"][: len(series)]),
        ),
    )
    return alt.layer(line, point).properties(width=width, height=_height(chart))


def _labelled_bars(
    alt: Any, values: list[dict[str, Any]], y: Any, height: int, width: int, top: float
) -> Any:
    base = alt.Chart(alt.Data(values=values)).encode(y=y)
    scale = alt.Scale(domain=[0, top], nice=False)
    bar = base.mark_bar(color=_STAND_IN["soft"], height=14, cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", scale=scale, axis=None)
    )
    text = base.mark_text(color=_STAND_IN["ink"], align="left", dx=6, fontSize=12).encode(
        x=alt.X("value:Q", scale=scale, axis=None), text="label:N"
    )
    return alt.layer(bar, text).properties(width=width, height=height)


def _bars(alt: Any, chart: Chart, width: int) -> Any:
    """One small chart per label: bars of different labels must not be read against one another."""
    values = _rows(chart)
    panels = []
    for name in dict.fromkeys(v["series"] for v in values):
        own = [v for v in values if v["series"] == name]
        y = alt.Y("row:N", sort=[v["row"] for v in own], title=None)
        top = max(v["value"] for v in own) * (1.2 if width > 400 else 1.5)
        panels.append(_labelled_bars(alt, own, y, 26 * len(own), width, top).properties(title=name))
    return alt.vconcat(*panels, spacing=14)


def _shares(alt: Any, chart: Chart, width: int) -> Any:
    values = _rows(chart)
    scale = alt.Scale(domain=[0, max(1.0, *(v["value"] for v in values))], nice=False)
    base = alt.Chart(alt.Data(values=values)).encode(y=_y(alt, chart))
    axis = alt.Axis(format="~%", tickCount=5 if width > 400 else 3)
    bar = base.mark_bar(color=_STAND_IN["soft"], height=14, cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", scale=scale, axis=axis, title="of what this machine can do")
    )
    text = base.mark_text(color=_STAND_IN["ink"], align="left", dx=6, fontSize=12).encode(
        x=alt.X("value:Q", scale=scale), text="label:N"
    )
    return alt.layer(bar, text).properties(width=width, height=_height(chart))


_KINDS: dict[str, Callable[[Any, Chart, int], Any]] = {
    "ratios": _ratios,
    "intervals": _intervals,
    "runs": _runs,
    "bars": _bars,
    "shares": _shares,
}
