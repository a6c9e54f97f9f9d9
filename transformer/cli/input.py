"""Standard input as lines, which are decoded while others are still being typed or computed."""

import itertools
import os
import select
import sys
from collections.abc import Iterator

from transformer.errors import UserError

PAUSE = 0.05  # seconds without a new line after which the lines so far are translated


def standard_input(most: int, patient: bool = False) -> Iterator[list[str]]:
    """Lines of standard input: those that have arrived or, if patient, `most` at a time.

    Raises:
      UserError: standard input is closed, or a line is not UTF-8.
    """
    from transformer.data.sources.corpora import text_of

    number = 0
    for lines in _arriving(most, patient):
        window = []
        for line in lines:
            number += 1
            try:
                window.append(text_of(line, number))
            except UnicodeDecodeError as error:
                raise UserError(
                    f"standard input, line {number}: not UTF-8 (byte {error.start + 1}); convert it first"
                ) from error
        yield window


def _arriving(most: int, patient: bool) -> Iterator[list[bytes]]:
    """Yields lines as they arrive: a typed line at once, piped lines many at a time."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file with --input")
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # another program replaced the stream by one without
        yield from iter(lambda: list(itertools.islice(sys.stdin.buffer, most)), [])
        return
    if os.isatty(descriptor):
        print("one sentence per line; Ctrl-D to end", file=sys.stderr, flush=True)
    ended, rest = False, bytearray()
    while not ended:
        lines: list[bytes] = []
        while not ended and len(lines) < most:
            if lines and not patient and not select.select([descriptor], [], [], PAUSE)[0]:
                break
            read = os.read(descriptor, 2**16)
            ended = not read
            rest += read
            if b"\n" in read:
                *whole, rest = rest.split(b"\n")
                lines += map(bytes, whole)
        if ended and rest:
            lines.append(bytes(rest))
        if lines:
            yield lines
