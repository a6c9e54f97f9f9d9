"""Subtitles: short pieces of text with their times, in SubRip's format and in WebVTT."""

import html
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from transformer.systems.speech.transcripts import SpokenPart
from transformer.tasks.timing import Segment, Word

WIDTH, LINES = 42, 2
"""Characters of a line, and lines of a subtitle, at most; a longer word stays whole."""
SUBTITLES = "srt", "vtt"
"""Formats."""
LONGEST = 7.0
"""Seconds of a subtitle, if it has several words."""


def subtitles_of(part: SpokenPart) -> Iterator[Segment]:
    """The subtitles of a part: its segments if it has some, and otherwise its words, divided where they would
    be too long. Words without times of their own share those of the text around them by their letters."""
    transcript = part.transcript
    if transcript.segments:
        for segment in transcript.segments:
            yield from _divided(_spread(segment.text.split(), segment.start, segment.end))
    elif transcript.words:
        yield from _divided(transcript.words)
    else:
        yield from _divided(_spread(transcript.text.split(), part.start, part.end))


def _spread(words: Sequence[str], start: float, end: float) -> list[Word]:
    """Words with times in proportion to their letters."""
    letters = [len(word) + 1 for word in words]
    rate = (end - start) / max(sum(letters), 1)
    ends = [start + rate * sum(letters[: index + 1]) for index in range(len(words))]
    return [Word(*word) for word in zip(words, [start, *ends], ends, strict=False)]


def _divided(words: Sequence[Word]) -> Iterator[Segment]:
    """Subtitles of consecutive words, none too long."""
    chosen = list[Word]()
    for word in words:
        text = " ".join(some.text for some in (*chosen, word))
        if chosen and (len(_lines(text)) > LINES or word.end - chosen[0].start > LONGEST):
            yield _joined(chosen)
            chosen = []
        chosen.append(word)
    if chosen:
        yield _joined(chosen)


def _joined(words: Sequence[Word]) -> Segment:
    return Segment(" ".join(word.text for word in words), words[0].start, words[-1].end)


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def srt(subtitles: Iterable[Segment]) -> Iterator[str]:
    """Subtitles in SubRip's format."""
    yield from _numbered(subtitles, ",", lambda text: text.replace("-->", "->"))


def vtt(subtitles: Iterable[Segment]) -> Iterator[str]:
    """Subtitles in WebVTT (W3C, *WebVTT: The Web Video Text Tracks Format*)."""
    yield "WEBVTT\n\n"
    yield from _numbered(subtitles, ".", lambda text: html.escape(text, quote=False))


def _numbered(subtitles: Iterable[Segment], decimal: str, escape: Callable[[str], str]) -> Iterator[str]:
    for number, subtitle in enumerate(subtitles, 1):
        times = (_clock(time, decimal) for time in (subtitle.start, subtitle.end))
        lines = "\n".join(_lines(escape(subtitle.text)))
        yield f"{number}\n{' --> '.join(times)}\n{lines}\n\n"


def _clock(seconds: float, decimal: str) -> str:
    """Hours, minutes, seconds and thousandths."""
    thousandths = round(1000 * seconds)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{decimal}{rest % 1000:03}"
