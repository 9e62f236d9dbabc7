"""A user's stack file runs in workers alone: whatever its top level does, the parent goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from detente.records.fault import UsageFault
from detente.stacks.catalogue import STACKS, find_entry

HEAD = "from detente.stacks.torch_eager import TorchEager\n"
QUICK = ("--size", "tiny", "--blocks", "1", "--no-aa", "--no-memory", "--format", "json")


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return f"{path}:Mine"


MARKED = """
import os, sys
print('{"from": "the file"}')
sys.stderr.write("also from the file")
open(os.environ["RAN"], "a").write(f"{os.getpid()}\\n")
"""


def test_the_file_runs_in_workers_alone(detente: Any, tmp_path: Path) -> None:
    """It prints: standard output is JSON all the same. It writes down who runs it: never the parent."""
    ran = tmp_path / "ran"
    name = write(
        tmp_path / "mine.py",
        HEAD + MARKED.replace('os.environ["RAN"]', repr(str(ran))) + "class Mine(TorchEager): pass\n",
    )
    done = detente("compare", "gemm", "--stacks", name, *QUICK)
    result = json.loads(done.stdout)
    assert result["cells"][0]["steady_s"]["processes"] == 1, done.stderr
    assert "from the file" not in done.stdout + done.stderr
    environment_of = ran.read_text().split()
    assert environment_of and str(os.getpid()) not in environment_of
    planned = detente("compare", "gemm", "--stacks", name, "--dry-run", "--format", "json")
    assert json.loads(planned.stdout)["cells"][0]["label"] == "Mine"
    assert ran.read_text().split() == environment_of, "a dry run loaded the file"


def test_classes_of_one_name_in_two_files_are_two_rows(detente: Any, tmp_path: Path) -> None:
    """They had one label, and the session ended with a fault of its own: one cell was planned twice."""
    names = [write(tmp_path / f"{n}.py", HEAD + "class Mine(TorchEager): pass\n") for n in ("one", "two")]
    stacks = ",".join([*names, names[1]])
    planned = detente("compare", "gemm", "--stacks", stacks, "--dry-run", "--no-aa", "--format", "json")
    labels = [c["label"] for c in json.loads(planned.stdout)["cells"]]
    assert labels == ["one:Mine", "two:Mine", "two:Mine#2"]
    # The same file name in another folder is told apart, too.
    (tmp_path / "other").mkdir()
    names[1] = write(tmp_path / "other" / "one.py", HEAD + "class Mine(TorchEager): pass\n")
    planned = detente(
        "compare", "gemm", "--stacks", ",".join(names), "--dry-run", "--no-aa", "--format", "json"
    )
    labels = [c["label"] for c in json.loads(planned.stdout)["cells"]]
    assert len(set(labels)) == 2, labels


ENDS = {
    "import sys; sys.exit(7)": "exit code 7",
    "import os; os._exit(9)": "exit code 9",
    "import no_such_module_anywhere": "no_such_module_anywhere",
    "raise RuntimeError('planted')": "planted",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
}


def test_what_ends_a_file_fails_its_row_and_nothing_else(detente: Any, tmp_path: Path) -> None:
    """Five files in one session, each with an end of its own, and a good row beside them."""
    names = []
    for number, top in enumerate(ENDS):
        file = tmp_path / f"ends{number}.py"
        file.write_text(f"{HEAD}{top}\nclass Ends{number}(TorchEager): pass\n")
        names.append(f"{file}:Ends{number}")
    done = detente("compare", "gemm", "--stacks", ",".join(("torch-eager", *names)), *QUICK)
    rows = {c["label"]: c for c in json.loads(done.stdout)["cells"]}
    assert done.returncode == 1, done.stderr
    assert rows["torch-eager"]["steady_s"]["processes"] == 1
    for number, says in enumerate(ENDS.values()):
        row = rows[f"Ends{number}"]
        assert row["status"] == "failed" and says in row["reason"], row["reason"]


def test_a_file_that_never_comes_back_is_ended_by_the_limit(detente: Any, tmp_path: Path) -> None:
    name = write(tmp_path / "mine.py", HEAD + "while True: pass\nclass Mine(TorchEager): pass\n")
    done = detente("compare", "gemm", "--stacks", name, *QUICK, DETENTE_PHASE_LIMIT="import=3,start=20")
    reason = json.loads(done.stdout)["cells"][0]["reason"]
    assert done.returncode == 1 and "no progress in phase" in reason, reason


def entry(text: str, tmp_path: Path) -> Any:
    return find_entry(write(tmp_path / "mine.py", text))


# What the source says is read; nothing of it may run (the files end the process).
READ = {
    "a base of ours": (HEAD + "class Mine(TorchEager): pass", "torch-eager"),
    "the nearest base": (
        "from detente.stacks.torch_compile import TorchCompileModel as T\nclass A(T): x = 1\nclass Mine(A): pass",
        "torch-compile-model",
    ),
    "an entry of its own": (
        "from detente.stacks.catalogue import StackEntry\nNOT = ('jax',)\nclass Mine:\n"
        "    entry = StackEntry('mine', '', 'w', 'torch', ('torch',), NOT, caches={'A': 'b'}, compiles=False)\n",
        None,
    ),
    "a changed entry of ours": (
        "from dataclasses import replace\nfrom detente.stacks.catalogue import STACKS\n"
        "class Mine:\n    entry = replace(STACKS['jax'], compiles=False)\n",
        "jax",
    ),
}


@pytest.mark.parametrize("what", READ)
def test_the_entry_is_read_from_the_source(what: str, tmp_path: Path) -> None:
    text, base = READ[what]
    # If it ran, this process would end, or one that is asked would say so.
    found = entry(text + "\nimport os; os._exit(5)\n", tmp_path)
    assert found.name == found.target == f"{tmp_path / 'mine.py'}:Mine" and not found.default
    if base:
        assert (found.definition, found.requires) == (STACKS[base].definition, STACKS[base].requires)
        assert found.layers == STACKS[base].layers and found.caches == STACKS[base].caches
    else:
        assert (found.foreign, found.caches, found.compiles) == (("jax",), {"A": "b"}, False)


# What it does not say is asked of a process that ends.
ASKED = {
    "made by a function": HEAD + "def make(): return type('Mine', (TorchEager,), {})\nMine = make()\n",
    "bound in a loop": HEAD + "for n in ('Mine', 'Other'):\n    globals()[n] = type(n, (TorchEager,), {})\n",
    "an entry that is computed": HEAD
    + "class Mine:\n    entry = TorchEager and __import__('detente.stacks.catalogue', "
    "fromlist=['STACKS']).STACKS['torch-eager']\n",
    "printing": HEAD + "print('{}')\nMine = type('Mine', (TorchEager,), {})\n",
    "with a thread that stays": HEAD
    + "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    "Mine = type('Mine', (TorchEager,), {})\n",
}


@pytest.mark.parametrize("what", ASKED)
def test_what_the_source_does_not_say_is_asked(what: str, tmp_path: Path, capfd: Any) -> None:
    found = entry(ASKED[what], tmp_path)
    assert found.requires == STACKS["torch-eager"].requires
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Mine = 1 +", "is not Python"),
        ("\x00", "is not Python"),
        ("class Other: pass", "defines no 'Mine'"),
        ("class Mine: pass", "no attribute `entry`"),
        ("import sys; Mine = sys.exit(3)", "exit code 3"),
        ("Mine = 1 / 0", "ZeroDivisionError"),
        ("import os; Mine = os._exit(0)", "exit code 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_usage(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageFault) as caught:
        entry(text, tmp_path)
    assert says in caught.value.message, caught.value.message


def test_a_question_without_an_answer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detente.stacks.own_entry.ASK_S", 1.5)
    began = time.monotonic()
    with pytest.raises(UsageFault, match="did not come back within"):
        entry("import time\nMine = time.sleep(600)", tmp_path)
    assert time.monotonic() - began < 60


def test_time_that_a_file_patches_at_import_is_not_the_parents(tmp_path: Path) -> None:
    before = time.monotonic
    entry(
        HEAD + "import time\ntime.monotonic = lambda: 0.0\nMine = type('Mine', (TorchEager,), {})\n", tmp_path
    )
    assert time.monotonic is before and "mine" not in sys.modules


@pytest.mark.long
def test_a_file_in_the_current_folder_takes_the_place_of_no_library(home: Path, tmp_path: Path) -> None:
    """A row left a torch.py there, and every later process of its rivals ran it. A module of the user's is found."""
    for name in ("torch", "numpy", "statistics"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file in the current folder ran')\n")
    (tmp_path / "mine_alone.py").write_text("from detente.stacks.torch_eager import TorchEager as Known\n")
    (tmp_path / "below").mkdir()
    name = write(tmp_path / "below" / "mine.py", "from mine_alone import Known\n\nclass Mine(Known): pass\n")
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "detente", "compare", "gemm", "--stacks", f"torch-eager,{name}", *QUICK],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
        check=False,
    )
    cells = json.loads(ran.stdout)["cells"]
    assert [cell["status"] for cell in cells] == ["ok", "ok"], ran.stderr
