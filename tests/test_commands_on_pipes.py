"""decode.py reads and writes pipes, terminals, devices and links."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from transformer.cli.decode import decode_main

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_pipe_is_not_read_twice(untrained_run, call, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").write_text("kept\n")
    for option in ("--input", "--reference"):
        status, _, errors = call(
            decode_main, untrained_run, option, tmp_path / "pipe", "--output", tmp_path / "out"
        )
        assert status == 2
        assert f"{option} {tmp_path / 'pipe'} can be read only once" in errors
    assert (tmp_path / "out").read_text() == "kept\n"


@pytest.mark.by_default("--output")
@pytest.mark.parametrize("option", ["--output", "--explore"])
def test_a_full_disk(untrained_run, call, option):
    status, _, errors = call(decode_main, untrained_run, option, "/dev/full", stdin=b"ein Haus\n")
    assert status == 2
    assert f"cannot write {option} /dev/full: No space left on device" in errors


def test_devices_are_written_to_and_links_followed(untrained_run, call, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True)
    assert call(decode_main, untrained_run, "--output", tmp_path / "pipe", stdin=b"der See\n")[0] == 0
    assert reader.communicate()[0].count("\n") == 1
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert call(decode_main, untrained_run, "--output", tmp_path / "link", stdin=b"\n")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "\n"


@pytest.mark.slow
def test_a_line_in_a_slow_pipe_is_answered_at_once(untrained_run):
    """Before any other line, or the end of the input, has arrived."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "decode.py", untrained_run], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    for line in ("der See\n", "ein Haus\n", "\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline().endswith("\n")
    rest, said = process.communicate("das Haus\nder Hund")
    assert rest.count("\n") == 2
    assert process.returncode == 0, said


@pytest.mark.slow
def test_a_typed_line_is_answered_at_once(untrained_run):
    """On a terminal: a hint, and nothing between the translations."""
    ours, theirs = pty.openpty()
    with (
        subprocess.Popen(
            [sys.executable, ROOT / "decode.py", untrained_run, "--method", "greedy"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process,
        open(ours, "rb", buffering=0) as terminal,
    ):
        os.close(theirs)
        said = b""

        def until(what: bytes) -> None:
            nonlocal said
            while what not in said:
                said += terminal.read(1)

        until(b"Ctrl-D to end\r\n")
        hint, said = said, b""
        assert hint == b"one line at a time; Ctrl-D to end\r\n"
        for _ in range(2):
            os.write(ours, b"der See\n")
            until(b"der See\r\n")  # the echo of the terminal
            echo, said = said, b""
            until(b"\n")
            assert b"\x1b" not in echo + said  # no bar is drawn
            answer, said = said, b""
        os.write(ours, b"\x04")
        assert process.wait() == 0
        with contextlib.suppress(OSError):  # the terminal has ended
            assert not terminal.read()
        assert answer


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(untrained_run):
    program = f"{sys.executable} {ROOT / 'decode.py'} {untrained_run} | head -1"
    ended = subprocess.run(
        program, shell=True, input="der See\n" * 200, capture_output=True, text=True, env=os.environ
    )
    assert "Traceback" not in ended.stderr
