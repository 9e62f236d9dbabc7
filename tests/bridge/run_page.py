"""``python run_page.py PAGE``: run the Python blocks of a page in order, in one namespace, and compare what each
prints with the ``text`` block that follows it."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path


def run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", text, re.DOTALL)
    names: dict[str, object] = {"__name__": "__page__"}
    for code, expected in blocks:
        line = text[: text.index(code)].count("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(page), "exec"), names)
        if printed.getvalue() != expected:
            raise SystemExit(f"{page}:{line + 1} printed\n{printed.getvalue()}and the page says\n{expected}")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
