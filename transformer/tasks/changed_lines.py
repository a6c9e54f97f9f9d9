"""Warnings of lines that are read in another way than they are written: with line breaks, or too long."""

import itertools
import logging
from collections.abc import Sequence

from transformer.runtime.errors import counted

log = logging.getLogger("transformer")
NAMED = 3  # lines that get a warning each


def warn_of_changed(
    lines: Sequence[int],
    texts: Sequence[str],
    as_read: Sequence[str],
    lengths: Sequence[int],
    longest: int,
    part: str,
) -> None:
    """Logs the lines that have line breaks inside or are truncated: the first ones, then how many there are.

    Args:
      lines: their numbers. Empty: none is logged.
      texts: as they are written.
      as_read: the same in one line.
      lengths: in tokens, without <eos>.
      longest: the most tokens that are read, with <eos>.
      part: what of a line they are, such as "the target of ", or empty.
    """
    inside = {
        line: "its line breaks are read as spaces"
        for line, text, read in zip(lines, texts, as_read, strict=False)
        if text.strip("\r\n") != read
    }
    truncated = {
        line: f"truncated from {length} to {counted(longest - 1, 'subword')}"
        for line, length in zip(lines, lengths, strict=False)
        if length >= longest
    }
    for changed, what in (inside, "have line breaks inside"), (truncated, "were truncated"):
        for line in itertools.islice(changed, NAMED):
            log.warning("%sline %d: %s", part, line, changed[line])
        if len(changed) > NAMED:
            more, last = len(changed) - NAMED, max(changed)
            log.warning("%d more lines, up to %sline %d, %s", more, part, last, what)
