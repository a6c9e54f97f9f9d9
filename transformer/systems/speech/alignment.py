"""When each word of a text is said in a recording, by CTC (Graves et al. 2006)."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from transformer.config.model import SpecialIds
from transformer.data.sequences import Example, Field, length_in_search
from transformer.data.signals.audio import HOP, RATE
from transformer.data.signals.pauses import LOUD, QUIET, SHARE
from transformer.data.sources.recordings import recording_of
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.searches.ctc_alignment import (
    BestPaths,
    Window,
    best_path_through,
    best_paths_of,
    spans_of,
)
from transformer.decoding.service.lanes import batch
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief
from transformer.runtime.text import has_text
from transformer.systems.speech.windows import Sound, Wave
from transformer.tasks.media.timing import Span, Word, in_order, words_in
from transformer.tasks.outputs import Plain
from transformer.translator.search_inputs import bucket_of

# Where tokens begin and end in a recording. CTC has each at one or two positions somewhere in its sound, so
# the rest is found by the pauses beside them.


PAUSE, LONG_PAUSE = 0.03, 0.1
"""Seconds of silence, at least, that are a pause between two tokens; and before the first or after the last
one, where a shorter silence may be within a word."""
FAR = 0.5
"""Seconds from a token, at most, in which its beginning or its end is looked for."""
REACH, EDGE = 0.2, 0.12
"""Without a pause: seconds of the blanks between two tokens that belong to one of them, at most; and of those
before the first token and after the last."""

TimeSpan = tuple[float, float]
"""Seconds of a beginning and an end."""


def is_quiet(features: Float[np.ndarray, "t bands"]) -> Bool[np.ndarray, " t"]:
    """Which frames of a recording are silence: those whose bands are weaker, in the mean of their logarithms,
    than a share of the way from quiet frames to loud ones."""
    loudness = np.asarray(features).mean(axis=1)
    if not len(loudness):
        return np.zeros(0, bool)
    quiet, loud = np.percentile(loudness, (QUIET, LOUD))
    is_silent: np.ndarray = loudness < quiet + SHARE * (loud - quiet)
    return is_silent


def with_edges(spans: Sequence[TimeSpan], quiet: Bool[np.ndarray, " t"]) -> list[TimeSpan]:
    """When tokens begin and end: at the longest pause between two of them, or in the middle if there is none.

    Args:
      spans: of the positions at which CTC has them, in order.
      quiet: which frames of the recording, of 10 ms, are silence.
    """
    if not spans:
        return []
    length = len(quiet) * HOP / RATE
    starts, ends = (list(times) for times in zip(*spans, strict=True))
    for index, (end, start) in enumerate(zip(ends, starts[1:], strict=False)):
        reach = min((start - end) / 2, REACH)
        pauses = silences(quiet, end, start, PAUSE)
        longest = max(pauses, key=lambda pause: pause[1] - pause[0], default=(end + reach, start - reach))
        ends[index], starts[index + 1] = min(longest[0], end + FAR), max(longest[1], start - FAR)
    before = silences(quiet, starts[0] - FAR, starts[0], LONG_PAUSE)
    after = silences(quiet, ends[-1], ends[-1] + FAR, LONG_PAUSE)
    starts[0] = before[-1][1] if before else max(starts[0] - EDGE, 0.0)
    ends[-1] = after[0][0] if after else min(ends[-1] + EDGE, length)
    return list(zip(starts, ends, strict=True))


def silences(quiet: Bool[np.ndarray, " t"], start: float, end: float, shortest: float) -> list[TimeSpan]:
    """The silences between two moments, as far as they are between them, that have so many seconds or reach
    an end of the recording."""
    first, last = max(round(start * RATE / HOP), 0), min(round(end * RATE / HOP), len(quiet))
    changes = np.diff(np.concatenate([[False], quiet[first:last], [False]]).astype(np.int8))
    edges = first + np.flatnonzero(changes).reshape(-1, 2)
    return [
        (begins * HOP / RATE, ends * HOP / RATE)
        for begins, ends in edges.tolist()
        if (ends - begins) * HOP >= shortest * RATE or begins == 0 or ends == len(quiet)
    ]


MULTIPLE = 16
"""The padded lengths of texts are multiples of this, so that few programs are compiled."""


@dataclass(frozen=True, eq=False)
class Alignment(Plain):
    """When a text is said in a recording. `json.dumps(alignment.to_json())` writes it as JSON."""

    text: str
    words: tuple[Word, ...]
    """The words with their times in seconds."""
    tokens: tuple[Word, ...]
    """The tokens of the words, with their times."""
    log_probability: float
    """log P of the text by CTC, in nats."""

    def to_json(self) -> Json:
        """The fields as JSON, with words as in the JSON of transcripts."""
        return {
            "text": self.text,
            "words": [word.to_json() for word in self.words],
            "tokens": [token.to_json("token") for token in self.tokens],
            "log_probability": self.log_probability,
        }


def paths_in(
    decoder: Any, example: Example, texts: Sequence[Sequence[int]], length: int, end: float
) -> BestPaths:
    """The most probable paths of texts through a recording, as arrays of NumPy.

    Args:
      decoder: a `Transcriber` whose run has CTC.
      example: what a search reads of the recording.
      texts: tokens without <eos>.
      length: what the recording is padded to.
      end: the seconds of the recording that the model hears; what follows is padding.
    """
    row = batch([example], decoder.task.input_fields, length, 1)
    longest = max(map(len, texts), default=0)
    columns = max(MULTIPLE, longest + -longest % MULTIPLE)
    fields = {"labels": Field(fill=decoder.task.special.pad)}
    labels = batch([{"labels": list(ids)} for ids in texts], fields, columns, len(texts))["labels"]
    inputs = jax.tree.map(jnp.asarray, row)
    positions = jnp.asarray(max(math.ceil(end / decoder.frame), 1))
    paths = best_paths_of(decoder.model, decoder.variables, inputs, jnp.asarray(labels), positions)
    on_host: BestPaths = jax.tree.map(np.asarray, paths)
    return on_host


def words_by_ctc(
    decoder: Any, example: Example, texts: Sequence[Sequence[int]], length: int, end: float
) -> list[tuple[Word, ...]]:
    """The words of texts with their times in a recording; none of a text that is too long for it. The
    arguments are those of `paths_in`."""
    paths = paths_in(decoder, example, texts, length, end)
    return [
        words_in(ids, times_of(decoder, example, states, len(ids), end), decoder.task.tokenizer)
        if np.isfinite(log_p)
        else ()
        for ids, states, log_p in zip(texts, paths.states, paths.log_p, strict=True)
    ]


def times_of(decoder: Any, example: Example, states: Any, count: int, end: float) -> list[Span]:
    """When each of so many tokens of a path begins and ends, in seconds of a recording that has `end`."""
    spans = [(first * decoder.frame, last * decoder.frame) for first, last in spans_of(states, count)]
    frames = example[decoder.task.inputs[0]][: round(end * RATE / HOP) + 1]
    return in_order(with_edges(spans, is_quiet(frames)), 0.0, end)


def ids_of(text: str, tokenizer: Tokenizer, special: SpecialIds) -> list[int]:
    """The tokens of a text that is to be aligned; none of one without visible characters. White space counts
    as one space, and none at the ends, unless only the text as it is can be written with the vocabulary.

    Raises:
      UserError: it has what the vocabulary lacks.
    """
    words = text.split() if has_text(text) else []
    encoded = [list(tokenizer.encode(spelled)) for spelled in (" ".join(words), text if words else "")]
    spelled_ids = next((ids for ids in encoded if special.unk not in ids), None)
    if spelled_ids is not None:
        return spelled_ids
    lacking = next((word for word in words if special.unk in tokenizer.encode(word)), text)
    raise UserError(
        f"{brief(lacking)} is not in the vocabulary of this run: write it in words and letters of its "
        "training texts"
    )


def alignment_of(decoder: Any, example: Example, text: str, length: int, end: float) -> Alignment:
    """When a text is said in a recording.

    Args:
      decoder: a `Transcriber` whose run has CTC.
      example: what a search reads of the recording.
      text: what is said.
      length: what the recording is padded to.
      end: the seconds of the recording that the model hears.

    Raises:
      UserError: the text is too long for the recording, or has what the vocabulary lacks.
    """
    ids = ids_of(text, decoder.task.tokenizer, decoder.task.special)
    paths = paths_in(decoder, example, [ids], length, end)
    if not np.isfinite(paths.log_p[0]):
        raise too_short(end, ids, decoder.frame)
    times = times_of(decoder, example, paths.states[0], len(ids), end)
    return _alignment(decoder, ids, times, float(paths.log_likelihoods[0]))


def long_alignment_of(decoder: Any, blocks: Iterable[Wave], text: str) -> Alignment:
    """When a text is said in a recording of any length, which is heard window by window. The arguments and
    errors are those of `alignment_of`, with the waveform of the recording, block by block."""
    task = decoder.task
    ids = ids_of(text, task.tokenizer, task.special)
    labels = np.full(len(ids) + -len(ids) % MULTIPLE or MULTIPLE, task.special.pad)
    labels[: len(ids)] = ids
    stride = round(decoder.frame * RATE / HOP)
    loudness = list[np.ndarray]()
    frames = 0

    def windows() -> Iterator[Window]:
        nonlocal frames
        for start, wave, first, last in overlapping(Sound(blocks), decoder.hears(), stride):
            heard = recording_of("", wave, task.data)
            (example,) = task.input_examples([heard], decoder.config.decoding.buckets[-1])
            length = bucket_of(length_in_search(example, task.input_fields), decoder.config.decoding)
            inputs = jax.tree.map(jnp.asarray, batch([example], task.input_fields, length, 1))
            loudness.append(heard.features[first - start : last - start].mean(axis=1, keepdims=True))
            frames = last
            yield Window(inputs, (first - start) // stride, -(-(last - start) // stride))

    states, log_p = best_path_through(decoder.model, decoder.variables, windows(), labels)
    end = frames * HOP / RATE
    if not len(states):
        raise too_short(end, ids, decoder.frame)
    spans = [(first * decoder.frame, last * decoder.frame) for first, last in spans_of(states, len(ids))]
    times = in_order(with_edges(spans, is_quiet(np.concatenate(loudness))), 0.0, end)
    return _alignment(decoder, ids, times, log_p)


def overlapping(sound: Sound, hears: float, stride: int) -> Iterator[tuple[int, Wave, int, int]]:
    """The windows of a recording, each with its first frame, its waveform, the first of its frames that
    counts and the one after the last. Those that count follow each other, and end at the quietest moment of
    the second half of a window. Around them a window hears an eighth of its length more at both ends.

    Args:
      sound: the recording.
      hears: seconds of a window, at most.
      stride: frames from one position of the encoder to the next.
    """
    size = round(hears * RATE / HOP) // stride * stride
    around = size // 8 // stride * stride
    start = first = 0
    while len(wave := sound.window(start, size + 1)) > size * HOP:
        power = np.square(wave[: size * HOP].astype(np.float64)).reshape(-1, stride * HOP).mean(axis=1)
        smooth = np.convolve(power, np.ones(3), "same")
        half, last = size // 2 // stride, (size - around) // stride
        cut = start + (half + 1 + int(smooth[half + 1 : last].argmin())) * stride
        yield start, wave[: size * HOP], first, cut
        start, first = max(cut - around, start + stride), cut
    yield start, wave, first, start + len(wave) // HOP


def positions_for(ids: Sequence[int]) -> int:
    """The fewest positions of the encoder in which a text can be said (`positions_needed`)."""
    return len(ids) + sum(before == after for before, after in itertools.pairwise(ids))


def too_short(seconds: float, ids: Sequence[int], frame: float) -> UserError:
    """A recording of so many seconds is too short for a text."""
    return UserError(
        f"the recording, of {seconds:.2f} s, is too short for the {len(ids)} tokens of its text: CTC has one "
        f"in every {frame:g} s at most, and a pause between two that are equal"
    )


def _alignment(decoder: Any, ids: Sequence[int], times: Sequence[Span], log_p: float) -> Alignment:
    tokenizer = decoder.task.tokenizer
    tokens = tuple(
        Word(piece, start, stop) for piece, (start, stop) in zip(tokenizer.pieces(ids), times, strict=True)
    )
    return Alignment(tokenizer.decode(ids).strip(), words_in(ids, times, tokenizer), tokens, log_p)
