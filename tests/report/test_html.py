"""The page as one HTML file: whole, offline, escaped, and right in a real browser."""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import zlib
from dataclasses import replace

import fabricated as f
import pytest
from golden import assert_golden

from detente.records.fault import StoreFault
from detente.report.html import render_html, write_html

VOID = {"meta", "br", "link", "img", "input", "hr", "wbr", "col"}


class Reader(html.parser.HTMLParser):
    """Collects the text, the tags and what is not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text, self.attributes, self.ids = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)
        self.ids.extend(v for k, v in attrs if k == "id")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes <{self.open[-1:]}>"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def whole():
    return render_html(f.whole())


def test_golden_without_the_drawings(whole):
    """Drawings are left out: their coordinates belong to the version of vl-convert. The browser tests look
    at them."""
    style = re.compile(r"<style>.*?</style>", re.DOTALL)
    assert_golden(
        re.sub(r"<svg.*?</svg>", "<svg/>", style.sub("<style/>", whole), flags=re.DOTALL), "report_whole.html"
    )


def test_it_is_whole_offline_and_runs_nothing(whole):
    reader = read(whole)
    assert not {"script", "link", "iframe", "object", "img", "form"} & set(reader.tags)
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name.startswith("xmlns") or not re.search(r"https?:|//|javascript:", value or ""), (
            name,
            value,
        )
    assert "default-src 'none'" in whole
    assert len(reader.ids) == len(set(reader.ids)), "two drawings share a clip path"
    assert len(whole) < 400_000


def test_every_stand_in_colour_was_replaced(whole):
    assert "#010a0" not in whole and "var(--soft)" in whole and "var(--band)" in whole


def test_what_a_user_or_a_framework_wrote_is_text():
    good = f.whole()
    evil = "<script>alert(1)</script><b onclick='x'>\"&amp;`<i>`</b>"
    finding = replace(good.cells[4].findings[0], what=evil, rule="<u>")
    cell = replace(
        good.cells[0], label=evil, workload="<h1>", reason=evil, findings=(finding,), versions={evil: evil}
    )
    session = replace(
        good.session,
        rerun=evil,
        note=evil,
        fingerprint=replace(good.session.fingerprint, machine={evil: evil}),
    )
    page = render_html(replace(good, session=session, cells=(cell, *good.cells[1:])))
    reader = read(page)
    assert not {"script", "b", "u", "i"} & set(reader.tags)
    text = "".join(reader.text)
    assert text.count("<script>alert(1)</script>") >= 5
    assert all(name != "onclick" for name, _ in reader.attributes)


def test_the_verdict_stands_before_any_figure(whole):
    lead = whole.index('<p class="lead good">')
    assert lead < whole.index("<svg") and lead < whole.index("<table")


def test_a_file_that_cannot_be_written_is_a_fault(tmp_path):
    with pytest.raises(StoreFault, match="cannot write"):
        write_html(f.empty(), tmp_path / "absent" / "report.html")
    write_html(f.empty(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: scripts/ci-packages.sh installs it")


def chromium(tmp_path, page, *flags):
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    common = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [CHROMIUM, *common, *flags, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def pixels(png):
    """Width, height and the set of colours of an 8-bit PNG, read by hand: the tests need no picture
    library."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, head = 8, b"", b""
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + size]
        head, data, at = (
            (body if kind == b"IHDR" else head),
            data + (body if kind == b"IDAT" else b""),
            at + 12 + size,
        )
    width, height, depth, form = (
        int.from_bytes(head[:4], "big"),
        int.from_bytes(head[4:8], "big"),
        head[8],
        head[9],
    )
    step = {2: 3, 6: 4}[form]
    assert depth == 8
    raw, stride, before, rows = zlib.decompress(data), width * step, bytes(width * step), []
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for x in range(stride):
            a = line[x - step] if x >= step else 0
            b, c = before[x], before[x - step] if x >= step else 0
            p = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            line[x] = (line[x] + (0, a, b, (a + b) // 2, p)[kind]) & 255
        before = bytes(line)
        rows.append(before)
    colours = [tuple(r[x : x + 3]) for r in rows for x in range(0, stride, step * 3)]
    return width, height, colours


@browser
@pytest.mark.parametrize(
    ("scheme", "paper", "bar"), [("light", 0xFDFDFC, 0xA9BFDF), ("dark", 0x15181D, 0x44608C)]
)
def test_screenshot(tmp_path, whole, scheme, paper, bar):
    """Paper and bars have the scheme's colours: the style sheet and the drawings' variables both work."""
    shot = tmp_path / "shot.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    size = ["--window-size=900,900", "--force-device-scale-factor=0.5"]
    chromium(tmp_path, whole, *dark, *size, f"--screenshot={shot}")
    _, _, colours = pixels(shot.read_bytes())
    counted = {c: colours.count(c) for c in set(colours)}
    assert max(counted, key=counted.get) == tuple(paper.to_bytes(3, "big"))
    assert counted.get(tuple(bar.to_bytes(3, "big")), 0) > 200, (
        "the bars are not drawn in this scheme's colour"
    )


MEASURE = """<script>addEventListener('load', () => {
  const d = document, wide = [...d.querySelectorAll('.wide')].some(e => e.offsetParent);
  const out = {page: d.documentElement.scrollWidth, view: innerWidth, wide, leads:
  d.querySelectorAll('.lead').length,
    cut: [...d.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length,
    tall: [...d.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().height > 20).length};
  d.body.setAttribute('data-out', Object.entries(out).map(x => x.join('=')).join(' '));
});</script></head>"""


@browser
@pytest.mark.parametrize(("width", "wide"), [(1000, True), (500, False), (400, False)])
def test_the_page_never_scrolls_sideways(tmp_path, whole, width, wide):
    # The page itself forbids scripts; the one that measures is let in for this test.
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    page = policy.sub("", whole).replace("</head>", MEASURE)
    dom = chromium(tmp_path, page, f"--window-size={width},900", "--dump-dom")
    out = dict(x.split("=") for x in re.search(r'data-out="([^"]*)"', dom).group(1).split())
    assert int(out["page"]) <= int(out["view"]), out
    # On a narrow screen no table is cut at all: its rows are cards.
    assert wide or int(out["cut"]) == 0, out
    assert out["wide"] == str(wide).lower() and int(out["tall"]) >= 2 and int(out["leads"]) >= 1


@browser
def test_folded_sections_are_on_paper(tmp_path, whole):
    """Printed, the folded sections are there: the file is longer than one made of the page without them."""

    def pages(page, name):
        chromium(tmp_path, page, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / name}")
        return len(re.findall(rb"/Type\s*/Page\b", (tmp_path / name).read_bytes()))

    without = re.sub(r"<details>.*?</details>", "", whole, flags=re.DOTALL)
    assert pages(whole, "whole.pdf") > pages(without, "without.pdf")
