"""decode.py reads and writes pipes, terminals, devices and links."""

import contextlib
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from small_translator import small_translator, stored

from transformer.commands.decode import decode_main
from transformer.commands.tables import ngram_main
from transformer.runtime.files import write_output, write_whole

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
def test_a_full_disk(untrained_run, option, refused):
    errors = refused(decode_main, untrained_run, option, "/dev/full", stdin=b"ein Haus\n")
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


def test_an_ngram_model_is_written_to_a_pipe(call, tmp_path):
    """Which it does not replace, nor a link."""
    run = stored(small_translator(), tmp_path / "run")
    (tmp_path / "text").write_text("red cat runs\n")
    for option, head in (("--output", "\\data\\"), ("--tokens", "red cat runs")):
        (pipe := tmp_path / option).symlink_to(tmp_path / f"{option}.pipe")
        os.mkfifo(pipe.resolve())
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
        other = "--tokens" if option == "--output" else "--output"
        asked = run, "--input", tmp_path / "text", option, pipe, other, tmp_path / "file"
        assert call(ngram_main, *asked)[0] == 0
        assert reader.communicate(timeout=60)[0].startswith(head)
        assert pipe.is_symlink()
        assert pipe.is_fifo()


def test_a_device_is_never_replaced(tmp_path):
    """/dev/null would be, with a user who may do that."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("")
    except OSError:
        pytest.skip("needs a user and a file system that may have devices")
    write_output(device, "text")
    with pytest.raises(FileExistsError, match="a device, which no file may replace"):
        write_whole(device, "text")
    assert device.is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["null"]


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
