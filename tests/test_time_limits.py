"""A training that stops when its time is over, and checkpoints by time."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_run import changed, quiet, same
from test_run import told

from transformer import Config, Run
from transformer.runs.log import scores_of
from transformer.runtime.errors import Stopped
from transformer.trainer import evaluator, loop
from transformer.trainer import profile as signals
from transformer.trainer.train import train


def clock_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock that decides whether the time is over. It is an hour late once `is_late` is true."""
    clock = SimpleNamespace(is_late=False)
    clock.monotonic = lambda: time.monotonic() + 3600 * clock.is_late
    monkeypatch.setattr(signals, "time", clock)
    return clock


def late_from(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when the metrics of a step are read."""
    clock, ordinary = clock_of_the_limit(monkeypatch), loop.Loop._read

    def read(self, at, metrics, pace):
        ordinary(self, at, metrics, pace)
        clock.is_late |= at == step

    monkeypatch.setattr(loop.Loop, "_read", read)


@pytest.mark.thorough
@pytest.mark.by_default("5")
@pytest.mark.parametrize("step", [3, 4, 5, 12])
def test_stopped_in_time_and_resumed_is_as_if_never_stopped(
    config: Config, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    limited, run_dir = changed(config, minutes=30.0), tmp_path / "run"
    with monkeypatch.context() as patch:
        late_from(step, patch)
        message = r"^Stopped after 30 minutes \(--training.minutes\) at step \d+ and saved. Continue with: "
        with pytest.raises(Stopped, match=message + "python train.py --run-dir") as stopped:
            train(limited, run_dir, watch=quiet())
    assert stopped.value.signal == 0
    assert "minutes 30" not in str(stopped.value)  # the run has it
    assert step <= Run(run_dir).checkpoints.steps()[-1] <= step + 1
    assert not (run_dir / "results.json").exists()
    train(changed(config, minutes=20.0), run_dir, watch=quiet())
    assert same(run_dir, finished)
    assert told(run_dir) == told(finished)
    assert (run_dir / "results.json").read_bytes() == (finished / "results.json").read_bytes()


@pytest.mark.slow
def test_time_that_is_no_longer_than_an_evaluation(
    config: Config, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, ordinary = tmp_path / "run", evaluator.Evaluator._decoded
    limited = changed(config, minutes=30.0)
    for split, steps, step in (("validation", [4, 4], 4), ("test", [12, 12], 12)):
        for _ in steps:
            with monkeypatch.context() as patch:
                clock = clock_of_the_limit(patch)

                def decoded(self, variables, name, records, request, clock=clock, split=split):
                    clock.is_late |= name == split
                    return ordinary(self, variables, name, records, request)

                patch.setattr(evaluator.Evaluator, "_decoded", decoded)
                with pytest.raises(Stopped, match=f"at step {step} and saved") as stopped:
                    train(limited, run_dir, watch=quiet())
        assert "No update was made in that time: give it more" in str(stopped.value)
    assert not (run_dir / "results.json").exists()
    train(limited, run_dir, watch=quiet())
    assert same(run_dir, finished)
    assert told(run_dir) == told(finished)


def test_the_line_that_continues_has_the_time_if_the_run_has_another(
    config: Config, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_from(13, monkeypatch)
    with pytest.raises(Stopped, match="--training.steps 16 --training.minutes 30.0 "):
        train(changed(config, steps=16, minutes=30.0), run_dir, watch=quiet())


@pytest.mark.thorough
def test_checkpoints_by_time_change_no_result(
    config: Config, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, ordinary, kept = tmp_path / "run", loop.Loop._save, {}
    often = changed(config, save_minutes=1e-9)

    def saved(self, scores=None):
        ordinary(self, scores)
        self.run.checkpoints.finish_saving()
        kept[self.step] = self.run.checkpoints.steps()

    def killed(self, at, metrics, pace):
        if at == 7:
            raise KeyboardInterrupt
        read(self, at, metrics, pace)

    read = loop.Loop._read
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_save", saved)
        patch.setattr(loop.Loop, "_read", killed)
        with pytest.raises(KeyboardInterrupt):
            train(often, run_dir, watch=quiet())
        patch.setattr(loop.Loop, "_read", read)
        assert kept == {1: [1], 2: [2], 3: [3], 4: [4], 5: [4, 5], 6: [4, 6]}
        assert [bool(scores_of(run_dir / "checkpoints" / str(step))) for step in (4, 6)] == [True, False]
        kept.clear()
        train(often, run_dir, watch=quiet())
    assert kept.keys() == set(range(7, 13))
    assert Run(run_dir).checkpoints.steps() == Run(finished).checkpoints.steps()
    assert same(run_dir, finished)
    assert told(run_dir) == told(finished)


@pytest.mark.thorough
def test_checkpoints_by_time_are_as_far_apart_as_asked(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation saves too, so the time begins anew. An update takes a minute here."""
    now, saved, ordinary = [0.0], [], loop.Loop._save
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def is_due(self):
        now[0] = self.step * 60.0
        return due(self)

    def save(self, scores=None):
        saved.append(self.step)
        now[0] = self.step * 60.0
        ordinary(self, scores)

    due = loop.Loop._save_is_due
    monkeypatch.setattr(loop.Loop, "_save_is_due", is_due)
    monkeypatch.setattr(loop.Loop, "_save", save)
    initialise = loop.Loop.__init__

    def started(self, *given):
        initialise(self, *given)
        self.last_save = 0.0

    monkeypatch.setattr(loop.Loop, "__init__", started)
    train(changed(config, save_minutes=3.0), tmp_path / "run", watch=quiet())
    assert saved == [3, 4, 7, 8, 11, 12]


def test_both_are_options_that_a_run_may_change(run_dir: Path, config: Config) -> None:
    train(changed(config, minutes=9.0, save_minutes=9.0), run_dir, watch=quiet())
    assert dataclasses.asdict(Run(run_dir).config.training)["minutes"] is None
