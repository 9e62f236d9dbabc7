"""What a timing process hands out comes back as it was: states whole, what a stretch made of them in sketches."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detente.records.job import Sampling
from detente.worker import handed
from detente.worker.handed import Changed, is_digest, keep_returned, keep_stretches, map_handed, some_of
from detente.worker.jobs import replay as replaying
from detente.worker.jobs import time as timing
from detente.worker.placing import place_fresh
from detente.worker.reference import Trace, make_reference, state_trace
from detente.worker.sketch import WHOLE
from detente.worker.window import Returned, Rotation, Stretch, Taken, Window

NAMES = frozenset({"large", "small"})


def stretch(first: int, step: float) -> Stretch:
    rng = np.random.default_rng(first)
    before = {
        "large": rng.standard_normal((WHOLE, 3)).astype(np.float32),
        "small": rng.standard_normal(5).astype(np.float32),
        "running_mean": np.ones(4, np.float32),
        "exp_avg:small": rng.standard_normal(5).astype(np.float32),
        "step": np.array(float(first)),
    }
    after = {n: (a + np.asarray(step, a.dtype)) for n, a in before.items()}
    return Stretch(first, 2, [1, 2], before, after, 1, 0.25)


def test_stretches_come_back_whole_before_and_in_sketches_after(tmp_path: Path) -> None:
    given = [stretch(3, 0.5), stretch(9, 0.25)]
    digest = keep_stretches(tmp_path, given, NAMES)
    assert is_digest(digest)
    found = map_handed(tmp_path, digest)
    assert len(found.stretches) == 2
    for kept, was in zip(found.stretches, given, strict=True):
        assert (kept.first, kept.steps, kept.batches) == (was.first, was.steps, was.batches)
        assert (kept.at, kept.loss) == (was.at, was.loss)
        assert kept.parameters == NAMES
        assert all(np.array_equal(kept.before[n], was.before[n]) for n in was.before)
        # Against a reference that did the same there is no error; against one that did more, all of the difference.
        reference = make_reference(state_trace(was.before, was.after, NAMES))
        assert max(e.err for e in reference.errors(kept.change)) < 1e-6
        other = make_reference(state_trace(was.before, {n: a + 1 for n, a in was.after.items()}, NAMES))
        errors = {f"{e.kind}|{e.name}": e.err for e in other.errors(kept.change)}
        assert errors.keys() == {
            *("update|large", "update|small", "buffer|running_mean", "moment|exp_avg:small", "moment|step")
        }
        assert all(err == pytest.approx(1.0, rel=0.1) for err in errors.values()), errors


def test_nothing_is_there_before_the_head_is(tmp_path: Path) -> None:
    with pytest.raises(Changed, match=r"handed\.json is gone"):
        map_handed(tmp_path, "0" * 64)
    digest = keep_returned(tmp_path, {"x": np.ones(2)}, {"loss": np.array(1.0)})
    found = map_handed(tmp_path, digest)
    assert not found.stretches and float(found.returned["loss"]) == 1.0


def edit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["handed.json", "before-1.safetensors", "change-0.safetensors"])
def test_what_is_changed_behind_the_window_is_no_evidence(tmp_path: Path, name: str) -> None:
    """A row left the batches of its stretches out of the head: nothing was trained, and nothing had moved."""
    digest = keep_stretches(tmp_path, [stretch(3, 0.5), stretch(9, 0.25)], NAMES)
    edit(tmp_path / name)
    with pytest.raises(Changed, match=f"{name} is another one"):
        map_handed(tmp_path, digest)
    (tmp_path / name).unlink()
    with pytest.raises(Changed, match=f"{name} is gone"):
        map_handed(tmp_path, digest)


@pytest.mark.parametrize(
    ("kept", "refused", "reason"),
    [
        ((), "", "did not say"),
        (("what was handed out could not be kept: [Errno 28]",), "", "[Errno 28]"),
        (("a" * 64,), "changed behind the window: handed.json is gone", ""),
        (("a" * 64, "b" * 64), "told more than once", ""),
        (("b" * 64, "unwanted"), "told more than once", ""),
        # The parent asked for it; the answer that the process found is not the parent's.
        (("unwanted",), "somebody else answered", ""),
    ],
)
def test_who_says_what_was_kept(tmp_path: Path, kept: tuple[str, ...], refused: str, reason: str) -> None:
    (replay,) = replaying._taken_again(None, tmp_path, kept, None)  # type: ignore[arg-type]
    assert refused in replay.refused and bool(refused) == bool(replay.refused)
    assert reason in replay.reason and bool(reason) == bool(replay.reason)


def test_a_stack_that_fills_the_memory_is_taken_again_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "_SHARE", 0.0)
    assert handed.can_hold(100_000, 8) and not handed.can_hold(100_000_000, 8)


@pytest.mark.parametrize("region", ["gradient", "forward"])
def test_a_step_that_gives_nothing_back_but_its_loss_is_not_proved_by_that(region: str) -> None:
    """A row that left its backward pass out in the window was compared by nothing but its loss, which was right."""
    given, nothing = ({"0:w": np.ones(3)} if whole else {} for whole in (True, False))

    def returned(found: dict[str, Any]) -> Any:
        outputs, gradients = (found, {}) if region == "forward" else ({}, found)
        return make_reference(Trace((2.5,), outputs, gradients, {}, {}, frozenset()))

    reference, loss = returned(given), np.array(2.5)
    for outputs, err in (({"w": np.ones(3), "loss": loss}, 0.0), ({"loss": loss}, float("inf"))):
        taken = Taken(outputs=[Returned(0, False, outputs)])
        found = {e.kind: e.err for e in timing._returned_errors(taken, reference, region)}
        assert found == {"loss": 0.0, "output" if region == "forward" else "gradient": err}
    # And of a region without any there is nothing to miss.
    alone = timing._returned_errors(
        Taken(outputs=[Returned(0, False, {"loss": loss})]), returned(nothing), region
    )
    assert [(e.kind, e.err) for e in alone] == [("loss", 0.0)]


@pytest.mark.parametrize("region", ["gradient", "forward"])
def test_nor_is_a_fresh_one_that_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    kept = keep_returned(tmp_path, {"x": np.zeros(2)}, {"loss": np.array(2.5)})
    whole = replaying._returned({"w": np.ones(3), "loss": np.array(2.5)}, region)
    monkeypatch.setattr(replaying, "_steps", lambda *_: iter([whole, whole]))
    job: Any = SimpleNamespace(cell=SimpleNamespace(contract=SimpleNamespace(region=region)))
    (replay,) = replaying._taken_again(job, tmp_path, (kept,), None)  # type: ignore[arg-type]
    assert {e.kind for e in replay.errors if e.err == float("inf")} == {
        "output" if region == "forward" else "gradient"
    }


def test_the_answer_is_heard_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "_ANSWER_S", 0.0)
    assert handed.await_answer(tmp_path) == handed.NO_ANSWER
    monkeypatch.setattr(handed, "_ANSWER_S", 60.0)
    for wanted, said in ((False, handed.UNWANTED), (True, handed.WANTED)):
        handed.answer(tmp_path, wanted)
        assert handed.await_answer(tmp_path) == said


def test_of_a_small_model_every_stretch_is_kept_and_of_a_large_one_the_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [stretch(3, 0.5), stretch(9, 0.25)]
    assert some_of(given, given[1]) == given
    monkeypatch.setattr(handed, "_ALL_BYTES", 1000)
    assert some_of(given, given[1]) == [given[1]]
    assert some_of([], None) == []


def test_a_full_disk_is_no_fault_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, "it says no")

    monkeypatch.setattr(timing, "keep_stretches", full)
    monkeypatch.setattr(timing, "keep_returned", full)
    job = SimpleNamespace(handed=str(tmp_path))
    moved = Taken(stretches=[stretch(3, 0.5)])
    stateless = Taken(outputs=[Returned(0, True, {"loss": np.array(1.0)})])
    for taken in (moved, stateless):
        number = 28
        said = timing._keep(job, taken, [{"x": np.ones(1)}], NAMES)  # type: ignore[arg-type]
        assert "could not be kept: [Errno 28]" in capsys.readouterr().err and "[Errno 28]" in said
        # A folder in a file's place is no full disk: the stack may have made it.
        number = 21
        with pytest.raises(OSError, match="it says no"):
            timing._keep(job, taken, [{"x": np.ones(1)}], NAMES)  # type: ignore[arg-type]


def test_no_collection_falls_into_the_placing_of_fresh_batches() -> None:
    """One of 73 ms did, in 32 placings of 30 us: a fair row was void for computing where it places."""
    collecting: list[bool] = []

    class Places:
        def place(self, batch: Any) -> Any:
            collecting.append(gc.isenabled())
            return batch

        def step(self, batch: Any) -> Any: ...

        def synchronise(self, *handles: Any) -> None: ...

        def outputs(self, handle: Any) -> Any:
            return {}

        def loss(self, handle: Any) -> float:
            return 1.0

    batches = [{"x": np.zeros(2)}] * 3
    running = Places()
    feed = Rotation([0])
    sampling = Sampling(block_s=0.0, samples=5, least=5, seconds=0.1)
    window = Window(running, feed, 1, 1e-4, sampling, (lambda: None, lambda: None))  # type: ignore[arg-type]
    window.of_outputs(batches, batches)
    assert collecting == [False] * 7 and gc.isenabled()


def test_the_first_placing_since_the_window_is_not_counted() -> None:
    """Of two fresh batches it made the one that was first five times as slow as those that were seen."""

    class Cold:
        placed = 0

        def place(self, batch: Any) -> Any:
            self.placed += 1
            if self.placed == 1:
                time.sleep(0.05)
            return batch

    batches = [{"x": np.zeros(2)}] * 2
    _, took = place_fresh(Cold(), batches, batches)  # type: ignore[arg-type]
    assert took.fresh_ns < 10_000_000 and took.wall_ns >= 50_000_000
