"""What decode.py reads: a file, or standard input, whose lines are decoded while others are being typed."""

import contextlib
import hashlib
import itertools
import os
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.output_file import check_output
from transformer.config.corpus import DataConfig
from transformer.config.records import AUDIO, PICTURE_FILES, SOUND, is_recording
from transformer.data.remote import fetched
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import display_path, is_device, open_regular, unreadable

PAUSE = 0.02  # seconds without a new line after which those that are decoded are written


def read_files(arguments: DecodeArguments) -> list[tuple[str, Path]]:
    """The options that name files to read, and the files."""
    named = [
        ("--document", arguments.document),
        ("--input", arguments.input),
        *(("--reference", path) for path in arguments.reference),
        ("--glossary", arguments.glossary),
        ("--lm", arguments.lm),
        ("--bias", arguments.bias),
    ]
    return [(option, path) for option, path in named if path]


def check_files(arguments: DecodeArguments) -> int | None:
    """The number of lines to translate, or None if it is unknown. Raises UserError for bad files."""
    from transformer.data.sources.text_files import read_lines

    check_streams(arguments)
    total = sum(1 for _ in lines_of(arguments)) if arguments.input else None
    for path in arguments.reference:
        references = sum(1 for _ in read_lines(path))
        if total is not None and references != total:
            raise UserError(
                f"{display_path(arguments.input or '')} has {counted(total, 'line')} but "
                f"{display_path(path)} has {references:,}"
            )
    return total


def check_streams(arguments: DecodeArguments) -> None:
    """Raises UserError if the output cannot be written, or would replace a file that is read, or if such a
    file is a pipe."""
    option, output = ("--explore", arguments.explore) if arguments.explore else ("--output", arguments.output)
    files = read_files(arguments)
    if output:
        check_output(option, output, files)
    for option, path in files:
        if is_device(path):
            instead = "< FILE" if option == "--input" and not is_recording(path) else "a file"
            raise UserError(f"{option} {path} can be read only once: give {instead}")


def input_lines(arguments: DecodeArguments) -> Iterator[str]:
    """The lines of the input, or of standard input as they are typed."""
    lines = lines_of(arguments) if arguments.input else standard_input(patient=True)
    yield from (line for line in lines if line is not None)


def lines_of(arguments: DecodeArguments) -> Iterator[str]:
    """The lines of the input file; of a recording, its name. Raises UserError if one is not as --tsv or
    --jsonl read it."""
    from transformer.cli.request_lines import request_of
    from transformer.data.sources.text_files import read_lines
    from transformer.runs.run import Run

    assert arguments.input
    if is_recording(arguments.input):
        yield arguments.input.name
        return
    with contextlib.suppress(OSError), open_regular(arguments.input) as file:
        beginning = file.read(12)
        if beginning.startswith(PICTURE_FILES):
            raise UserError(
                f"--input {arguments.input} is a picture: give a file that names pictures, one on each line"
            )
        if SOUND.match(beginning):
            raise UserError(
                f"--input {arguments.input}: the name of a recording must end in {' or '.join(AUDIO)}"
            )
    data = Run(arguments.run_dir).config.data if arguments.tsv or arguments.jsonl else None
    for number, line in enumerate(read_lines(arguments.input), 1):
        if isinstance(data, DataConfig):
            request_of(number, line, arguments, data)
        yield line


def digest_of(path: Path) -> str:
    """A hash of a file's content, which may be at a remote address. Raises UserError if it cannot be read."""
    try:
        with open_regular(fetched(path)) as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise UserError(f"{display_path(path)}: {unreadable(error)}") from error


def standard_input(patient: bool = False) -> Iterator[str | None]:
    """The lines of standard input, and None whenever no other arrives for a moment, unless `patient`.

    Raises:
      UserError: standard input is closed, or a line is not UTF-8.
    """
    from transformer.data.sources.text_files import text_of

    number = 0
    for line in _arriving(patient):
        if line is None:
            yield None
            continue
        number += 1
        try:
            yield text_of(line, number)
        except UnicodeDecodeError as error:
            if number == 1 and SOUND.match(line):
                raise UserError(
                    "standard input is an audio file, and lines are read: name the file with --input"
                ) from error
            raise UserError(
                f"standard input, line {number}: not UTF-8 (byte {error.start + 1}); convert it first"
            ) from error


def _arriving(patient: bool) -> Iterator[bytes | None]:
    """The lines of standard input."""
    rest = bytearray()
    for chunk in _chunks(patient):
        if chunk is None:
            yield None
            continue
        rest += chunk
        if b"\n" in chunk:
            *whole, rest = rest.split(b"\n")
            yield from map(bytes, whole)
    if rest:
        yield bytes(rest)


def arriving_words() -> Iterator[str]:
    """The words of standard input, each as soon as a space follows it, and "" where a line ends.

    Raises:
      UserError: standard input is closed, or a word is not UTF-8.
    """
    from transformer.data.sources.text_files import text_of

    rest, number = b"", 1
    for chunk in itertools.chain(_chunks(patient=True), [b" "]):
        *words, rest = re.split(rb"[ \t\r]", rest + (chunk or b"").replace(b"\n", b" \n "))
        for word in filter(None, words):
            try:
                text = text_of(word, number)
            except UnicodeDecodeError as error:
                raise UserError(f"standard input, line {number}: not UTF-8; convert it first") from error
            number += not text
            yield text


def _chunks(patient: bool) -> Iterator[bytes | None]:
    """Standard input as it arrives, and None whenever nothing does for a moment, unless `patient`."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file with --input")
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # another program replaced the stream by one without
        yield from sys.stdin.buffer
        return
    if os.isatty(descriptor):
        print("one line at a time; Ctrl-D to end", file=sys.stderr, flush=True)
    while True:
        if not patient and not select.select([descriptor], [], [], PAUSE)[0]:
            yield None
        elif chunk := os.read(descriptor, 2**16):
            yield chunk
        else:
            return
