"""When each word of a text is said in a recording, by CTC (Graves et al. 2006)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import SpecialIds
from transformer.data.features.audio import HOP, RATE
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.sequences import Example, Field
from transformer.decoding.ctc_alignment import BestPaths, best_paths_of, spans_of
from transformer.decoding.lanes import batch
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief
from transformer.runtime.text import has_text
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
    tokenizer = decoder.task.tokenizer
    ids = ids_of(text, tokenizer, decoder.task.special)
    paths = paths_in(decoder, example, [ids], length, end)
    if not np.isfinite(paths.log_p[0]):
        raise UserError(
            f"the recording, of {end:.2f} s, is too short for the {len(ids)} tokens of its text: CTC has "
            f"one in every {decoder.frame:g} s at most, and a pause between two that are equal"
        )
    times = times_of(decoder, example, paths.states[0], len(ids), end)
    tokens = tuple(
        Word(piece, start, stop) for piece, (start, stop) in zip(tokenizer.pieces(ids), times, strict=True)
    )
    words = words_in(ids, times, tokenizer)
    return Alignment(tokenizer.decode(ids).strip(), words, tokens, float(paths.log_likelihoods[0]))
