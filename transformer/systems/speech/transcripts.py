"""What was said: in a recording, and in the parts of a long one."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import ClassVar

from transformer.data.features.pauses import Part
from transformer.runtime.files import Json
from transformer.tasks.hypotheses import Hypothesis
from transformer.tasks.plain import Plain
from transformer.tasks.timing import Segment, Word, in_order, moved


@dataclass(frozen=True, eq=False)
class Transcript(Hypothesis):
    """What was said in a recording. `json.dumps(transcript.to_dict())` writes it as JSON."""

    words: tuple[Word, ...] = ()
    """With their times, if requested."""
    segments: tuple[Segment, ...] = ()
    """Parts of the text with their times, if timestamps were requested."""

    def to_json(self) -> Json:
        """As `Hypothesis.to_json`, with words and segments if there are some."""
        words = [word.to_json() for word in self.words]
        segments = [segment.to_dict() for segment in self.segments]
        parts = {"words": words, "segments": segments}
        return super().to_json() | {name: some for name, some in parts.items() if some}

    @classmethod
    def of_json(cls, about: Json) -> "Transcript":
        """The transcript of which `to_json` wrote this, without its ids.

        Raises:
          LookupError, TypeError: it is another object.
        """
        words = tuple(Word(word["word"], word["start"], word["end"]) for word in about.get("words", ()))
        segments = tuple(Segment(**segment) for segment in about.get("segments", ()))
        numbers = about["score"], about["log_probability"]
        return cls(about["text"], tuple(about["tokens"]), *numbers, words=words, segments=segments)


def unsaid(transcript: Transcript) -> Transcript:
    """The transcript of a recording in which nobody speaks, given what a search has found in it."""
    nothing: Json = {"text": "", "tokens": (), "ids": (), "words": (), "segments": ()}
    optional = ("alignment", "token_log_probabilities", "entropies", "word_confidences")
    nothing |= dict.fromkeys(optional)
    return replace(transcript, **nothing)


NOTHING = Transcript("", (), 0.0, 0.0)
"""Of digital silence, in which nobody speaks."""


def with_requested(about: Json, words: bool, segments: bool) -> Json:
    """The JSON of what was said, with lists of what was requested even where nothing was said."""
    requested = [name for name, is_requested in (("words", words), ("segments", segments)) if is_requested]
    return about | {name: about.get(name, []) for name in requested}


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
    def of_json(cls, about: Json) -> "SpokenPart":
        """The part of which `stored` wrote this.

        Raises:
          LookupError, TypeError: it is another object.
        """
        part = SpokenPart(float(about["start"]), float(about["end"]), Transcript.of_json(about))
        return SpokenWindow.of_part(part, about) if SpokenWindow.measured[0] in about else part


@dataclass(frozen=True, eq=False)
class SpokenWindow(SpokenPart):
    """What was said in a window of a recording, up to the end of its last segment."""

    measured: ClassVar = ("temperature", "mean_log_probability", "compression_ratio", "no_speech")

    temperature: float
    """At which it was decoded; 0: by the search of the options."""
    mean_log_probability: float
    """Of a token, in nats."""
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
        """As `SpokenPart.stored`."""
        return self.to_json() | {"prompt": list(self.prompt)}

    @classmethod
    def of_part(cls, part: SpokenPart, about: Json) -> "SpokenWindow":
        """A part with what `stored` has written of it besides."""
        numbers = {name: about[name] for name in cls.measured}
        return cls(part.start, part.end, part.transcript, **numbers, prompt=tuple(about["prompt"]))


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
