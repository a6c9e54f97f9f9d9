"""log.txt of a run: what the terminal showed, and what ended the training."""

import contextlib
import errno
import io
import logging
import os
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console
from small_run import changed, interrupted, quiet

from transformer import Run, UserError
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import Stopped
from transformer.trainer import journal as transcript
from transformer.trainer.journal import NAME, Transcript, transcribed
from transformer.trainer.train import train

TIMED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ")


def lines_of(run_dir: Path) -> list[str]:
    return (run_dir / NAME).read_text().splitlines()


@pytest.mark.thorough
def test_what_was_shown_is_kept_and_a_resumed_run_appends(config, finished, tmp_path):
    first = (finished / NAME).read_text()
    run_dir = interrupted(finished, tmp_path / "run")
    out = io.StringIO()
    train(config, run_dir, watch=ProgressReporter(Console(file=out, width=1000)))
    before, _, after = (run_dir / NAME).read_text().rpartition("\n=== ")
    assert before == first
    assert re.match(r"[\d-]+ [\d:]+ [+-]\d{4}, transformer .*jax .*, process \d+ ===\n", after)
    # but for the frame of the table
    shown = [line.strip() for line in out.getvalue().splitlines() if line[:1] not in "┏┗│┌└"]
    copied = [
        line.removeprefix(line[:19] if TIMED.match(line) else "").strip() for line in after.splitlines()
    ]
    assert [line for line in shown if line and line not in copied] == ["Trained"]
    for line in (
        "Preparing the corpus ...",
        "step 12/12 ",
        "step 12: validation ",
        "Trained:",
        "  best step ",
    ):
        assert line in before
    assert f"Resuming {run_dir} from step 8" in after
    assert all(
        TIMED.match(line) or line.startswith((" " * 21, "===")) or not line for line in lines_of(run_dir)
    )


def test_an_average_leaves_it(run_dir):
    before = (run_dir / NAME).read_bytes()
    run = Run(run_dir)
    run.checkpoints.store_average(run.averaged(), run.checkpoints.newest())
    assert (run_dir / NAME).read_bytes() == before


def test_the_message_of_a_signal_is_in_it(config, tmp_path):
    def stop(record):
        if record["step"] == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped) as stopped:
        train(changed(config, evaluate_every=12), tmp_path / "run", watch=quiet(), track=stop)
    *_, asked, end = lines_of(tmp_path / "run")
    assert asked.endswith("  Stopping after this step; again after a second to stop without saving.")
    assert end[21:] == str(stopped.value)


def nested():
    raise ZeroDivisionError("of a task")


def interrupt():
    error = KeyboardInterrupt()
    error.add_note("Resume with: train")
    raise error


def full():
    raise OSError(errno.ENOSPC, "No space left on device")


def missing():
    (Path("no") / "such").read_text()


@pytest.mark.parametrize(
    ("ends", "last"),
    [
        (
            nested,
            [
                "Traceback .most recent call last.:",
                "line .*, in nested\n.*raise",
                "ZeroDivisionError: of a task",
            ],
        ),
        (interrupt, ["Interrupted. Resume with: train"]),
        (full, ["Error: could not write to .*: No space left on device. Earlier .* make room"]),
        (missing, ["Error: could not write to .*: No such file"]),
    ],
)
def test_what_ends_a_training_is_in_it(run_dir, ends, last):
    with pytest.raises(BaseException) as ended, transcribed(Run(run_dir), quiet()):  # noqa: PT011
        ends()
    assert not isinstance(ended.value, AssertionError)
    (text,) = (run_dir / NAME).read_text().rpartition("===\n")[2:]
    for words in last:
        assert re.search(words, text), text


def test_the_error_of_a_user_is_in_it(config, finished, tmp_path):
    run_dir = interrupted(finished, tmp_path / "run")
    with pytest.raises(UserError, match="tracked") as refused:
        with transcribed(Run(run_dir), quiet()):
            raise UserError("not tracked:\x1b[2J see the options")
    assert lines_of(run_dir)[-1][21:] == r"Error: not tracked:\x1b[2J see the options"
    assert refused.value


def test_warnings_are_in_it_and_still_shown(run_dir, capsys, monkeypatch):
    log = logging.getLogger("transformer")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with transcribed(Run(run_dir), quiet()):
        log.warning("a damaged %s", "program")
    assert not logging.getLogger().handlers
    assert lines_of(run_dir)[-1][21:] == "Warning: a damaged program"
    assert capsys.readouterr().err == "a damaged program\n"


def test_a_bar_has_lines_without_control_sequences(run_dir, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    watch = ProgressReporter(console)
    watch.message("of another run")
    watch.forget()
    watch.message("a long line, which is wrapped at the width of the terminal but not here " * 2)
    with transcribed(Run(run_dir), watch), watch.training(0, 200):
        watch.compiling()
        watch.step(100, 200, {"loss": 1.253}, 34_584, "tokens", 61.0)
        list(watch.progress("reading", range(3), total=3))
    text = (run_dir / NAME).read_text().rpartition("===\n")[2]
    assert "\x1b[" in console.file.getvalue()
    assert [line[21:25] for line in text.splitlines()] == ["a lo", "comp", "step", "  re"]
    assert "step 100/200  loss  1.253   34,584 tokens/s  ETA 1:01" in text


def test_other_processes_write_none(run_dir, monkeypatch):
    (run_dir / NAME).unlink()
    monkeypatch.setattr(transcript, "is_main_process", lambda: False)
    with contextlib.suppress(UserError), transcribed(Run(run_dir), quiet()):
        raise UserError("of process 1")
    assert not (run_dir / NAME).exists()


@pytest.mark.thorough
def test_a_folder_in_its_place_costs_a_warning(config, finished, tmp_path, caplog):
    run_dir = interrupted(finished, tmp_path / "run")
    (run_dir / NAME).unlink()
    (run_dir / NAME).mkdir()
    train(config, run_dir, watch=quiet())
    assert [each.message for each in caplog.records] == [
        f"{run_dir}/log.txt cannot be written: Is a directory"
    ]


def test_a_disk_that_is_full_costs_a_warning(run_dir, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    watch = quiet()
    with transcribed(Run(run_dir), watch):
        with monkeypatch.context() as disk:
            disk.setattr(transcript, "append_flags", refuse)
            watch.message("one")
            watch.message("two")
        watch.message("three")
    assert [each.message for each in caplog.records] == [
        f"{run_dir}/log.txt cannot be written: No space left on device"
    ]
    assert lines_of(run_dir)[-1].endswith("  three")


def test_its_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "MOST", 4000)
    monkeypatch.setattr(transcript, "KEPT", 2000)
    path = tmp_path / NAME
    for start in range(3):
        log = Transcript(path, "run")
        log.begin()
        assert path.stat().st_size < 2300
        for number in range(1000):
            log.write(0.0, f"line {start}.{number}")
        log.write(0.0, "\n".join(["x" * 99] * 9999), is_last=True)
        text = path.read_text()
        assert transcript.FULL in text
        assert text.count("(...)") == 1
        assert len(text) < 4200 + transcript.LONGEST_BLOCK * 1.3
        path.write_text(text.partition("(...)")[0][:4100] + "cut off by a kill")
    Transcript(path, "run").begin()
    assert path.read_text().startswith(transcript.REMOVED)
    assert "cut off by a kill\n\n=== " in path.read_text()


def test_nothing_outside_is_written(tmp_path, caplog):
    """Through a link that is made while it trains, or another name of a file, and a pipe does not hang it."""
    outside = tmp_path / "outside"
    outside.write_text("precious\n")
    os.link(outside, tmp_path / NAME)
    log = Transcript(tmp_path / NAME, "run")
    log.begin()
    log.write(0.0, "a line")
    assert outside.read_text() == "precious\n"
    assert "precious" in (tmp_path / NAME).read_text()
    for make in (lambda path: path.symlink_to(outside), os.mkfifo):
        (tmp_path / NAME).unlink()
        make(tmp_path / NAME)
        log = Transcript(tmp_path / NAME, "run")
        log.write(0.0, "a line")
    assert outside.read_text() == "precious\n"
    assert len(caplog.records) == 2
