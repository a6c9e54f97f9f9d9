"""Subtitles: short pieces of text with their times, in SubRip's format and in WebVTT."""

import html
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from transformer.systems.speech.transcripts import SpokenPart
from transformer.tasks.timing import Segment, Word, moved
from transformer.tasks.units import has_space, units

WIDTH, LINES = 42, 2
"""Columns of a line, of which a wide character has two, and lines of a subtitle, at most; a longer word stays
whole."""
SUBTITLES = "srt", "vtt"
"""Formats."""
LONGEST = 7.0
"""Seconds of a subtitle."""


class _Unit(NamedTuple):
    """What stays whole (`transformer.tasks.units`)."""

    text: str
    start: float
    end: float
    is_spaced: bool | None
    """Whether the text has a space before it. None: that is not known."""


def subtitles_of(part: SpokenPart) -> Iterator[Segment]:
    """The subtitles of a part: its segments, or all of its text, divided where they would be too long. Their
    times are those of the words, if these are known. Otherwise words share the time of the text around them
    by their widths."""
    transcript = part.transcript
    whole = Segment(transcript.text, part.start, part.end)
    texts = [_units(text) for text in transcript.segments or (whole,)]
    if transcript.words:
        texts = _at_times(texts, transcript.words)
    subtitles = [subtitle for text in texts for subtitle in _divided(text)]
    yield from moved(subtitles, 0.0, part.start, part.end)


def _units(text: Segment | Word) -> list[_Unit]:
    """Those of a text, with times in proportion to their widths."""
    spelled = [(unit, not index) for word in text.text.split() for index, unit in enumerate(units(word))]
    ends = list(itertools.accumulate(_width(unit) + 1 for unit, _ in spelled))
    rate = (text.end - text.start) / max(ends, default=1)
    times = itertools.pairwise(text.start + rate * end for end in (0, *ends))
    return [_Unit(unit, *time, is_spaced) for (unit, is_spaced), time in zip(spelled, times, strict=True)]


def _at_times(texts: Sequence[Sequence[_Unit]], words: Sequence[Word]) -> list[list[_Unit]]:
    """Texts with the times of their words; the words as one text, if they are others."""
    timed = [unit for word in words for unit in _units(word)]
    if [unit.text for text in texts for unit in text] != [unit.text for unit in timed]:
        return [[unit._replace(is_spaced=None) if unit.is_spaced else unit for unit in timed]]
    times = iter(timed)
    return [[next(times)._replace(is_spaced=unit.is_spaced) for unit in text] for text in texts]


def _divided(text: Sequence[_Unit]) -> Iterator[Segment]:
    """Subtitles of a text, none too long."""
    chosen = list[_Unit]()
    for unit in text:
        if chosen and (len(_lines([*chosen, unit])) > LINES or unit.end - chosen[0].start > LONGEST):
            yield _joined(chosen)
            chosen = []
        chosen.append(unit)
    if chosen:
        yield _joined(chosen)


def _joined(text: Sequence[_Unit]) -> Segment:
    start = text[0].start
    return Segment(_line(text), start, min(text[-1].end, start + LONGEST))


def _line(text: Sequence[_Unit]) -> str:
    spaces = (has_space(one.text, other.text, other.is_spaced) for one, other in itertools.pairwise(text))
    return "".join(
        " " * is_spaced + unit.text for is_spaced, unit in zip((False, *spaces), text, strict=True)
    )


def _lines(text: Sequence[_Unit]) -> list[str]:
    """The lines of a text, none too wide, unless a unit is."""
    lines = list[list[_Unit]]()
    for unit in text:
        if lines and _width(_line([*lines[-1], unit])) <= WIDTH:
            lines[-1].append(unit)
        else:
            lines.append([unit])
    return list(map(_line, lines))


def _width(text: str) -> int:
    """Columns of a text: two of each wide character (Unicode Standard Annex 11), none of combining marks."""
    shown = (letter for letter in text if unicodedata.category(letter) not in ("Mn", "Me", "Cf"))
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in shown)


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
        lines = "\n".join(map(escape, _lines(_units(subtitle))))
        yield f"{number}\n{' --> '.join(times)}\n{lines}\n\n"


def _clock(seconds: float, decimal: str) -> str:
    """Hours, minutes, seconds and thousandths."""
    thousandths = round(1000 * seconds)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{decimal}{rest % 1000:03}"
