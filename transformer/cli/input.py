"""Standard input as lines, which are decoded while others are still being typed or computed."""

import os
import select
import sys
from collections.abc import Iterator

from transformer.runtime.errors import UserError

PAUSE = 0.02  # seconds without a new line after which those that are decoded are written


def standard_input(patient: bool = False) -> Iterator[str | None]:
    """The lines of standard input, and None whenever no other arrives for a moment, unless `patient`.

    Raises:
      UserError: standard input is closed, or a line is not UTF-8.
    """
    from transformer.data.sources.corpora import text_of

    number = 0
    for line in _arriving(patient):
        if line is None:
            yield None
            continue
        number += 1
        try:
            yield text_of(line, number)
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number}: not UTF-8 (byte {error.start + 1}); convert it first"
            ) from error


def _arriving(patient: bool) -> Iterator[bytes | None]:
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file with --input")
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # another program replaced the stream by one without
        yield from sys.stdin.buffer
        return
    if os.isatty(descriptor):
        print("one line at a time; Ctrl-D to end", file=sys.stderr, flush=True)
    rest = bytearray()
    while True:
        if not patient and not select.select([descriptor], [], [], PAUSE)[0]:
            yield None
            continue
        read = os.read(descriptor, 2**16)
        if not read:
            break
        rest += read
        if b"\n" in read:
            *whole, rest = rest.split(b"\n")
            yield from map(bytes, whole)
    if rest:
        yield bytes(rest)
