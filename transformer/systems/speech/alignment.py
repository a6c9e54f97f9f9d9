"""When each word of a text is said in a recording, by CTC (Graves et al. 2006)."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import SpecialIds
from transformer.data.features.audio import HOP, RATE
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.sequences import Example, Field, length_in_search
from transformer.data.sources.recordings import recording_of
from transformer.decoding.ctc_alignment import BestPaths, best_paths_of, spans_of
from transformer.decoding.lanes import batch
from transformer.decoding.lengths import bucket_of
from transformer.decoding.long_ctc_alignment import Window, best_path_through
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief
from transformer.runtime.text import has_text
from transformer.systems.speech.windows import Sound, Wave
from transformer.systems.speech.word_edges import is_quiet, with_edges
from transformer.tasks.plain import Plain
from transformer.tasks.timing import Span, Word, in_order, words_in

MULTIPLE = 16
"""Of which the lengths of texts are, so that few programs are compiled."""


@dataclass(frozen=True, eq=False)
class Alignment(Plain):
    """When a text is said in a recording. `json.dumps(alignment.to_json())` writes it as JSON."""

    text: str
    words: tuple[Word, ...]
    """With their times in seconds."""
    tokens: tuple[Word, ...]
    """What the words are written with, with their times."""
    log_probability: float
    """log P of the text by CTC, in nats."""

    def to_json(self) -> Json:
        """Its fields, in which words are as in the JSON of transcripts."""
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
    known = next((ids for ids in encoded if special.unk not in ids), None)
    if known is not None:
        return known
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
