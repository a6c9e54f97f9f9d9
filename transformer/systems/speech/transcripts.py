"""What was said: in a recording, and in the parts of a long one; also as subtitles."""

import html
import itertools
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from transformer.data.signals.pauses import Part
from transformer.runtime.files import Json
from transformer.tasks.media.timing import Segment, Word, has_space, in_order, moved, units
from transformer.tasks.outputs import Plain
from transformer.tasks.text import Hypothesis


@dataclass(frozen=True, eq=False)
class Transcript(Hypothesis):
    """What was said in a recording. `json.dumps(transcript.to_dict())` writes it as JSON."""

    words: tuple[Word, ...] = ()
    """The words with their times, if requested."""
    segments: tuple[Segment, ...] = ()
    """Parts of the text with their times, if timestamps were requested."""

    def to_json(self) -> Json:
        """As `Hypothesis.to_json`, with words and segments if there are some."""
        words = [word.to_json() for word in self.words]
        segments = [segment.to_dict() for segment in self.segments]
        lists = {"words": words, "segments": segments}
        return super().to_json() | {name: items for name, items in lists.items() if items}

    @classmethod
    def of_json(cls, fields: Json) -> "Transcript":
        """The transcript of which `to_json` wrote this, without its ids.

        Raises:
          LookupError, TypeError: it is another object.
        """
        words = tuple(Word(word["word"], word["start"], word["end"]) for word in fields.get("words", ()))
        segments = tuple(Segment(**segment) for segment in fields.get("segments", ()))
        numbers = fields["score"], fields["log_probability"]
        return cls(fields["text"], tuple(fields["tokens"]), *numbers, words=words, segments=segments)


def unsaid(transcript: Transcript) -> Transcript:
    """The transcript of a recording in which nobody speaks, given what a search has found in it."""
    changes: Json = {"text": "", "tokens": (), "ids": (), "words": (), "segments": ()}
    optional = ("alignment", "token_log_probabilities", "entropies", "word_confidences")
    changes |= dict.fromkeys(optional)
    return replace(transcript, **changes)


NOTHING = Transcript("", (), 0.0, 0.0)
"""The transcript of digital silence, in which nobody speaks."""


def with_requested(fields: Json, words: bool, segments: bool) -> Json:
    """The JSON of what was said, with lists of what was requested even where nothing was said."""
    requested = [name for name, is_requested in (("words", words), ("segments", segments)) if is_requested]
    return fields | {name: fields.get(name, []) for name in requested}


@dataclass(frozen=True, eq=False)
class SpokenPart(Plain):
    """What was said in a part of a recording. All times are those of the recording, in seconds."""

    start: float
    end: float
    transcript: Transcript

    def to_json(self) -> Json:
        """The times, and the transcript as in `Transcript.to_json`."""
        return {"start": self.start, "end": self.end, **self.transcript.to_json()}

    def stored(self) -> Json:
        """As `to_json`, with what is needed to continue after it."""
        return self.to_json()

    @classmethod
    def of_json(cls, fields: Json) -> "SpokenPart":
        """The part of which `stored` wrote this.

        Raises:
          LookupError, TypeError: it is another object.
        """
        part = SpokenPart(float(fields["start"]), float(fields["end"]), Transcript.of_json(fields))
        return SpokenWindow.of_part(part, fields) if SpokenWindow.measured[0] in fields else part


@dataclass(frozen=True, eq=False)
class SpokenWindow(SpokenPart):
    """What was said in a window of a recording, up to the end of its last segment."""

    measured: ClassVar = ("temperature", "mean_log_probability", "compression_ratio", "no_speech")

    temperature: float
    """The temperature at which the window was decoded; 0: by the search of the options."""
    mean_log_probability: float
    """The mean log-probability of a token, in nats."""
    compression_ratio: float
    """The size of the text over that of its compression: a text that repeats itself has a high one."""
    no_speech: float | None
    """The probability that nobody speaks, if it was needed."""
    prompt: tuple[int, ...] = field(default=(), repr=False)
    """The ids that the next window continues."""

    def to_json(self) -> Json:
        """As `SpokenPart.to_json`, and what decided about it, in four digits."""
        numbers = {name: getattr(self, name) for name in self.measured}
        return with_requested(super().to_json(), words=False, segments=True) | {
            name: number if number is None else round(number, 4) for name, number in numbers.items()
        }

    def stored(self) -> Json:
        return self.to_json() | {"prompt": list(self.prompt)}

    @classmethod
    def of_part(cls, part: SpokenPart, fields: Json) -> "SpokenWindow":
        """A part with what `stored` has written of it besides."""
        numbers = {name: fields[name] for name in cls.measured}
        return cls(part.start, part.end, part.transcript, **numbers, prompt=tuple(fields["prompt"]))


def spoken_parts(
    parts: Iterable[Part],
    begin: Callable[[Part, int], Future[list[Transcript]]],
    first: int,
    ahead: int,
) -> Iterator[SpokenPart]:
    """What is said in the parts of a recording, in order.

    Args:
      parts: read as they are needed.
      begin: begins to search a part with its number.
      first: the number of the first part.
      ahead: how many are searched while the first of them is awaited.
    """
    waiting = deque[tuple[Part, Future[list[Transcript]]]]()
    try:
        for number, part in enumerate(parts, first):
            waiting.append((part, begin(part, number)))
            if len(waiting) > ahead:
                yield _spoken(*waiting.popleft())
        while waiting:
            yield _spoken(*waiting.popleft())
    finally:
        for _, future in waiting:
            future.cancel()


def _spoken(part: Part, future: Future[list[Transcript]]) -> SpokenPart:
    """A transcript whose times are those of the recording."""
    best, *_ = future.result()
    words = moved(best.words, part.start, *part.spoken)
    segments = moved(best.segments, part.start, *part.spoken)
    (times,) = in_order([(part.start, part.end)], part.start, part.end)
    return SpokenPart(*times, replace(best, words=words, segments=segments))


# Subtitles: short pieces of text with their times, in SubRip's format and in WebVTT.


WIDTH, LINES = 42, 2
"""Columns of a line, of which a wide character has two, and lines of a subtitle, at most; a longer word stays
whole."""
SUBTITLES = "srt", "vtt"
"""Formats."""
LONGEST = 7.0
"""Seconds of a subtitle."""


class _Unit(NamedTuple):
    """What stays whole (`transformer.tasks.media.timing`)."""

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
    """The units of a text, with times in proportion to their widths."""
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
    spaces = (has_space(x.text, y.text, y.is_spaced) for x, y in itertools.pairwise(text))
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
