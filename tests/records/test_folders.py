"""Where things are kept, and that nothing is kept where nobody asked for it."""

from __future__ import annotations

import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from detente.records.fault import MachineFault
from detente.records.folders import cache_folder, data_folder, state_folder

FOLDERS = (data_folder, cache_folder, state_folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_empty_home_is_none(folder: object) -> None:
    """It would be the current folder."""
    found = folder({"HOME": ""})  # type: ignore[operator]
    assert found.is_absolute() and found == folder({})  # type: ignore[operator]


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}])
def test_a_user_without_a_home_is_told_what_to_set(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for folder in FOLDERS:
        with pytest.raises(MachineFault, match=f"HOME is {'empty' if environ else 'not set'}") as fault:
            folder(environ)
        assert "DETENTE_HOME" in fault.value.hint
    assert data_folder({"DETENTE_HOME": "/x"}) == Path("/x/data")
    assert data_folder({"XDG_DATA_HOME": "/y"}) == Path("/y/detente")


def test_a_relative_path_is_ignored_as_the_specification_says() -> None:
    assert data_folder({"HOME": "/h", "XDG_DATA_HOME": "here"}) == Path("/h/.local/share/detente")


HOMELESS = """
import pwd, sys
def nobody(uid): raise KeyError(uid)
pwd.getpwuid = nobody
from detente.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}], ids=["not set", "empty"])
def test_the_command_says_so_and_writes_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", HOMELESS, "sessions", "list"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": source, "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 3 and "set DETENTE_HOME" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "found"), [("~", "/there"), ("~/x", "/there/x"), ("~x", "~x"), ("/a", "/a")]
)
def test_a_home_that_no_shell_expanded_is_the_users(given: str, found: str) -> None:
    """It made a folder that is called ~ in the current one."""
    assert data_folder({"DETENTE_HOME": given, "HOME": "/there"}) == Path(found) / "data"
