"""What was said: in a recording, and in the parts of a long one."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from transformer.data.features.pauses import Part
from transformer.runtime.files import Json
from transformer.tasks.hypotheses import Hypothesis
from transformer.tasks.plain import Plain
from transformer.tasks.timing import Segment, Word


@dataclass(frozen=True, eq=False)
class Transcript(Hypothesis):
    """What was said in a recording. `json.dumps(transcript.to_dict())` writes it as JSON."""

    words: tuple[Word, ...] = ()
    """With their times, if requested."""
    segments: tuple[Segment, ...] = ()
    """Parts of the text with their times, if timestamps were requested."""

    def to_json(self) -> Json:
        """As `Hypothesis.to_json`, with words and segments if there are some."""
        words = [{"word": word.text, "start": word.start, "end": word.end} for word in self.words]
        segments = [segment.to_dict() for segment in self.segments]
        parts = {"words": words, "segments": segments}
        return super().to_json() | {name: some for name, some in parts.items() if some}


@dataclass(frozen=True, eq=False)
class SpokenPart(Plain):
    """What was said in a part of a recording. All times are those of the recording, in seconds."""

    start: float
    end: float
    transcript: Transcript

    def to_json(self) -> Json:
        """The times, and the transcript as in `Transcript.to_json`."""
        return {"start": self.start, "end": self.end, **self.transcript.to_json()}

    @classmethod
    def of_json(cls, about: Json) -> "SpokenPart":
        """The part of which `to_json` wrote this. What subtitles do not need is left out.

        Raises:
          LookupError, TypeError: it is another object.
        """
        words = tuple(Word(word["word"], word["start"], word["end"]) for word in about.get("words", ()))
        segments = tuple(Segment(**segment) for segment in about.get("segments", ()))
        transcript = Transcript(about["text"], (), 0.0, 0.0, words=words, segments=segments)
        return cls(float(about["start"]), float(about["end"]), transcript)


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

    def moved(seconds: float) -> float:
        return round(min(max(part.start + seconds, part.spoken[0]), part.spoken[1]), 3)

    words = tuple(replace(word, start=moved(word.start), end=moved(word.end)) for word in best.words)
    segments = tuple(replace(some, start=moved(some.start), end=moved(some.end)) for some in best.segments)
    return SpokenPart(round(part.start, 3), round(part.end, 3), replace(best, words=words, segments=segments))
