"""README's printed session and the pages of the stored sessions, from the sessions themselves. Nothing is measured.

python benchmarks/readme_session.py             # README.md and docs/results/ from docs/results/demo/session.jsonl
python benchmarks/readme_session.py FILE.jsonl  # make this exported session the stored one first
python benchmarks/readme_session.py --check     # exit 1 where README or a page is not what the session says
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from detente.judge import judge
from detente.records.result import Result
from detente.report.markdown import render_markdown
from detente.report.numbers import duration
from detente.report.terminal import render_text
from detente.store.spool import parse_spool

ROOT = Path(__file__).resolve().parent.parent
SESSION = ROOT / "docs/results/demo/session.jsonl"
PAGES = {
    ROOT / "docs/results/gpt2-small-cpu.md": SESSION,
    ROOT / "docs/results/gpt2-kept-memory.md": ROOT / "docs/results/gpt2-kept-memory.jsonl",
    ROOT / "docs/results/four-models-cpu.md": ROOT / "docs/results/four-models-cpu.jsonl",
    ROOT / "docs/results/torch-xla-cpu.md": ROOT / "docs/results/torch-xla-cpu.jsonl",
    ROOT / "docs/results/llama-8b-cpu.md": ROOT / "docs/results/llama-8b-cpu.jsonl",
    ROOT / "docs/results/nine-tiny-cpu.md": ROOT / "docs/results/nine-tiny-cpu.jsonl",
}
BEGIN, END = "<!-- the stored session -->\n", "<!-- end of the stored session -->\n"


def told(file: Path) -> Result:
    """What the file's session says, as `detente report FILE` judges it: to every reader it is another's."""
    return judge(replace(parse_spool(file).session, imported=0.0))


def block(result: Result) -> str:
    """README's part: where the session comes from, and what `make demo` prints."""
    s = result.session
    cores = s.fingerprint.machine.get("cores", "?")
    took = f", {duration(s.wall_s)}" if s.wall_s is not None else ""
    head = (
        f"`make demo` prints this, from a stored session of {s.blocks} whole blocks{took} on {cores} cores of "
        f"{s.fingerprint.machine.get('processor', 'an unnamed processor')}."
    )
    return f"{BEGIN}{_wrapped(head)}\n\n```\n{render_text(result).rstrip()}\n```\n{END}"


def _wrapped(text: str, width: int = 118) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def readme(result: Result) -> str:
    """README.md with the part between the marks made anew."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return before + block(result) + after


def _text(page: Path) -> str:
    """Nothing of a page that is new."""
    return page.read_text(encoding="utf-8").rstrip() if page.exists() else ""


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    files = [a for a in arguments if not a.startswith("--")]
    if files:
        shutil.copyfile(files[0], SESSION)
    wanted = {ROOT / "README.md": readme(told(SESSION))}
    wanted |= {page: render_markdown(told(file)) for page, file in PAGES.items()}
    stale = [page for page, text in wanted.items() if _text(page) != text.rstrip()]
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is not what its session says' if check else 'written'}")
        if not check:
            page.write_text(wanted[page].rstrip() + "\n", encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
