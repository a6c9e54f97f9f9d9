"""Interrupted translations of files: results are kept, and no line is lost or duplicated."""

import contextlib
import fcntl
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from invented_sound import write_digits
from small_run import WORDS
from small_translator import small_translator, stored
from test_serving_systems import one_run

from transformer import UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.cli.output_file import LongOutput
from transformer.commands.decode_lines import decode_lines
from transformer.commands.translations import Translations
from transformer.runtime.errors import Stopped

LINES = [f"{WORDS[i % 9]} {WORDS[i % 7]}" if i % 5 else "" for i in range(23)]
FORMS = [[], ["--format", "scores", "--n-best", "2"], ["--format", "json", "--n-best", "3", "--alignments"]]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(small_translator(), tmp_path_factory.mktemp("resume") / "run")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "in").write_text("".join(line + "\n" for line in LINES))
    return tmp_path / "in"


def decode(run_dir: object, *arguments: object) -> None:
    decode_lines(parse_decode([str(run_dir), *map(str, arguments)]))


def cut_off(fours: int, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """`decode`, interrupted after four times this number of lines. Returns the notes of the interrupt."""
    ordinary = Translations.of

    def of(self, lines):
        yield from itertools.islice(ordinary(self, lines), 4 * fours)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Translations, "of", of)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            decode(*arguments)
    return "\n".join(getattr(interrupt.value, "__notes__", ()))


NUMBER = re.compile(r"-?[0-9]+[.][0-9]+")


def assert_alike(found: str, expected: str) -> None:
    """The same text; scores and alignments up to the rounding of a batch of other sentences."""
    assert NUMBER.sub("x", found) == NUMBER.sub("x", expected)
    numbers = ([float(x) for x in NUMBER.findall(text)] for text in (found, expected))
    np.testing.assert_allclose(*numbers, atol=2e-4)


@pytest.mark.by_default("scores")
@pytest.mark.parametrize("form", FORMS, ids=["text", "scores", "json"])
def test_cut_off_and_continued_is_as_if_never_cut_off(run_dir, text, form, monkeypatch, capfd):
    whole, parts = text.with_name("whole"), text.with_name("parts")
    options = ["--method", "sample", *form, "--input", text]  # samples depend on the number of the line
    decode(run_dir, *options, "--output", whole)
    for windows, count in (2, 8), (0, 8), (1, 12):
        note = cut_off(windows, monkeypatch, run_dir, *options, "--output", parts, "--resume")
        assert f"the unfinished output, {count} lines, is saved: to continue it, add --resume" in note
        assert not parts.exists()
    (kept,) = text.parent.glob(".parts.*")
    with open(kept, "a") as file:
        file.write("half a li")  # as a kill leaves it
    decode(run_dir, *options, "--output", parts, "--resume", "--reference", text)
    assert_alike(parts.read_text(), whole.read_text())
    said = capfd.readouterr().err
    assert "continuing after line 12" in said
    assert "exact match" in said
    assert not list(text.parent.glob(".parts.*"))


def test_a_finished_output_is_not_made_again(run_dir, text, monkeypatch):
    out = text.with_name("out")
    options = [run_dir, "--input", text, "--output", out]
    decode(*options)
    if "user.transformer.job" not in os.listxattr(out):
        pytest.skip("the file system has no attributes")
    monkeypatch.setattr(Translations, "of", None)
    with pytest.raises(Stopped, match="out is finished: there is nothing to resume") as stopped:
        decode(*options, "--resume")
    assert stopped.value.signal == 0
    for more in (["--beam-size", "2"], ["--format", "scores"], ["--reference", text]):
        with pytest.raises(TypeError):  # it is decoded
            decode(*options, "--resume", *more)


def test_without_resume_it_begins_anew(run_dir, text, monkeypatch):
    cut_off(1, monkeypatch, run_dir, "--input", text, "--output", text.with_name("out"))
    decode(run_dir, "--input", text, "--output", text.with_name("out"))
    assert len(text.with_name("out").read_text().splitlines()) == len(LINES)


def test_another_job_does_not_go_on_with_it(run_dir, text, monkeypatch, capfd):
    cut_off(1, monkeypatch, run_dir, "--input", text, "--output", text.with_name("out"))
    decode(run_dir, "--input", text, "--output", text.with_name("out"), "--resume", "--beam-size", "2")
    assert "continuing" not in capfd.readouterr().err


def test_another_text_does_not_go_on_with_it(run_dir, text, monkeypatch, capfd):
    cut_off(1, monkeypatch, run_dir, "--input", text, "--output", text.with_name("out"))
    text.write_text("red cat\n")
    decode(run_dir, "--input", text, "--output", text.with_name("out"), "--resume")
    assert "continuing" not in capfd.readouterr().err
    assert text.with_name("out").read_text().count("\n") == 1


def test_nothing_stays_of_what_has_not_begun(run_dir, text, monkeypatch):
    assert not cut_off(0, monkeypatch, run_dir, "--input", text, "--output", text.with_name("out"))
    assert [path.name for path in text.parent.iterdir()] == ["in"]


def test_two_that_write_the_same(run_dir, text, monkeypatch):
    cut_off(1, monkeypatch, run_dir, "--input", text, "--output", text.with_name("out"))
    (kept,) = text.parent.glob(".out.*")
    before = kept.read_bytes()
    with open(kept) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is writing it"):
            decode(run_dir, "--input", text, "--output", text.with_name("out"), "--resume")
    assert kept.read_bytes() == before


def test_resume_needs_files(run_dir, text):
    with pytest.raises(UserError, match="--resume needs --input and --output"):
        decode(run_dir, "--input", text, "--resume")


@pytest.mark.slow
def test_killed_while_it_writes(run_dir, text):
    """kill -9, in a separate process."""
    text.write_text("".join(line + "\n" for line in LINES * 40))
    program = "import sys; from transformer.commands.decode import decode_main; sys.exit(decode_main())"
    command = [sys.executable, "-c", program, run_dir, "--input", text, "--output", text.with_name("out")]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not any(path.stat().st_size > 200 for path in text.parent.glob(".out.*")):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not text.with_name("out").exists()
    decode(run_dir, "--input", text, "--output", text.with_name("out"), "--resume")
    decode(run_dir, "--input", text, "--output", text.with_name("whole"))
    assert text.with_name("out").read_bytes() == text.with_name("whole").read_bytes()
    assert sorted(os.listdir(text.parent)) == ["in", "out", "whole"]


@pytest.mark.slow
def test_killed_twenty_times_at_random_moments(run_dir: Path, text: Path) -> None:
    """kill -9, always with --resume: no line is lost or duplicated, byte for byte."""
    text.write_text("".join(line + "\n" for line in LINES * 150))
    decode(run_dir, "--input", text, "--output", text.with_name("whole"))
    # each line takes a while, so that twenty kills come before the end
    program = (
        "import sys, time\n"
        "from transformer.commands.translations import Translations\n"
        "of = Translations.of\n"
        "def slowly(*given):\n    for line in of(*given):\n        time.sleep(0.01)\n        yield line\n"
        "Translations.of = slowly\n"
        "from transformer.commands.decode import decode_main; sys.exit(decode_main())"
    )
    options = ["--input", text, "--output", text.with_name("out"), "--resume"]
    command = [str(word) for word in (sys.executable, "-c", program, run_dir, *options)]
    moments, reached = random.Random(0), [0]
    while len(reached) <= 20:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not partial_lines(text) > reached[-1]:  # it has started, and writes
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        time.sleep(moments.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not text.with_name("out").exists()
        reached.append(partial_lines(text))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(f"killed 20 times, after {reached[1:]} of {len(LINES) * 150} lines")
    assert text.with_name("out").read_bytes() == text.with_name("whole").read_bytes()
    assert sorted(os.listdir(text.parent)) == ["in", "out", "whole"]


@pytest.mark.slow
def test_recordings_killed_by_each_signal(tmp_path: Path) -> None:
    """SIGKILL, then SIGTERM and Ctrl-C of the processes that resume: what is written stays."""
    pytest.importorskip("soundfile", reason="needs soundfile: pip install '.[speech]'")
    run = one_run("speech", tmp_path)
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    write_digits(sounds, 16)
    text = sounds / "in"
    text.write_text("".join(f"{index}.wav\n" for index in range(16)))
    decode(run, "--input", text, "--output", tmp_path / "whole", "--format", "json")
    whole = (tmp_path / "whole").read_text().splitlines()
    program = (
        "import sys, time\n"
        "from transformer.cli.writer import Texts\n"
        "of = Texts.of\n"
        "def slowly(*given):\n    for line in of(*given):\n        time.sleep(0.3)\n        yield line\n"
        "Texts.of = slowly\n"
        "from transformer.commands.decode import decode_main; sys.exit(decode_main())"
    )
    options = ["--input", text, "--output", sounds / "out", "--format", "json", "--resume"]
    command = [str(word) for word in (sys.executable, "-c", program, run, *options)]
    written = 0
    for number in signal.SIGKILL, signal.SIGTERM, signal.SIGINT:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not partial_lines(text) > written:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert "Traceback" not in err
        assert not (sounds / "out").exists()
        assert partial_lines(text) > written
        (partial,) = sounds.glob(".out.*.partial")
        if number != signal.SIGKILL:
            assert "add --resume" in err
            lines = partial.read_text().splitlines()
            assert_alike("\n".join(lines), "\n".join(whole[: len(lines)]))
        written = partial_lines(text)
        assert written < 16
    decode(run, *options)
    assert_alike((sounds / "out").read_text(), "\n".join([*whole, ""]))
    assert not list(sounds.glob(".out*"))


def partial_lines(text: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in text.parent.glob(".out.*.partial"))


def test_a_complete_output_leaves_no_unfinished_ones(tmp_path):
    """Those of other jobs that still run stay."""
    path = tmp_path / "out[1]"
    left, running = LongOutput(path, "other options", resume=False), LongOutput(path, "running", resume=False)
    with contextlib.suppress(KeyboardInterrupt), left as file:
        file.write("half\n")
        raise KeyboardInterrupt
    assert left.path.exists()
    with running as file:
        file.write("half\n")
        with LongOutput(path, "these options", resume=False) as other:
            other.write("whole\n")
        assert path.read_text() == "whole\n"
        assert not left.path.exists()
        assert running.path.exists()
