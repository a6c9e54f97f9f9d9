"""Speech recognition and translation: recordings in, sentences out."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config import Config, DecodingConfig
from transformer.config.speech import RecordingsConfig
from transformer.data.batching import Field
from transformer.data.corpus import Corpus, Progress, Records, silent
from transformer.data.features.audio import normalised
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.tokenizers import load_tokenizer
from transformer.data.features.trained import trained
from transformer.data.plans import Batching, Example, Lengths
from transformer.data.sources.recordings import Recording, check_manifests, open_recordings, recording
from transformer.decoding.hooks import NO_OUTPUT
from transformer.decoding.scores import SearchResult
from transformer.errors import UserError
from transformer.evaluation.scores import SENTENCES, WORDS, Measure, Score
from transformer.evaluation.words import sentence_errors, word_errors
from transformer.files import parse_object, read_text, write_whole
from transformer.model.parameters import Arguments
from transformer.tasks.hypotheses import Hypothesis, by_consensus, hypotheses, words_of
from transformer.tasks.task import Evaluation, Task

SILENCE = float("-inf")
"""What pads frames."""


@dataclass(frozen=True)
class Scale:
    """How the bands of all recordings are normalised."""

    mean: Float[np.ndarray, " bands"]
    deviation: Float[np.ndarray, " bands"]

    @classmethod
    def of(cls, recordings: Iterable[Recording], bands: int) -> "Scale":
        """That of recordings."""
        count, total, squares = 0, np.zeros(bands), np.zeros(bands)
        for each in recordings:
            frames = each.features.astype(np.float64)
            count += len(frames)
            total, squares = total + frames.sum(axis=0), squares + (frames**2).sum(axis=0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 1e-6))
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    def __call__(self, features: Float[np.ndarray, "t bands"]) -> Float[np.ndarray, "t bands"]:
        found: np.ndarray = (features - self.mean) / self.deviation
        return found


class SpeechToText(Task):
    """What is said in recordings, in their language or in another.

    Args:
      config: of the run.
      tokenizer: of the texts.
      scale: normalises the features. None: each recording by itself.
    """

    criterion = WORDS
    unit = "recordings"
    inputs = ("source",)

    def __init__(self, config: Config, tokenizer: Tokenizer, scale: Scale | None = None) -> None:
        super().__init__(config)
        self.tokenizer, self.special, self.scale = tokenizer, config.model.special, scale
        frames = Field("float32", fill=SILENCE, shape=(self.data.bands,))
        self.fields = {"source": frames, "target": Field(fill=self.special.pad)}

    @property
    def data(self) -> RecordingsConfig:
        """The options of the recordings."""
        return _data(self.config)

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if recordings are missing."""
        check_manifests(_data(config))

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """The recordings of manifests, or the built-in ones."""
        return open_recordings(_data(config), progress)

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> "SpeechToText":
        """With a vocabulary of the training texts, and the scale of their recordings if the config asks for
        it."""
        data, recordings = _data(config), corpus.splits["train"]
        texts = (each.text for each in progress("vocabulary", recordings, len(recordings)))
        tokenizer = trained(corpus, texts, data.tokenizer, data.vocab_size, config.model.special, "text")
        scale = None
        if data.normalisation == "corpus":
            scale = Scale.of(progress("scale of the features", recordings, len(recordings)), data.bands)
        return cls(_with_vocabulary(config, tokenizer.vocab_size), tokenizer, scale)

    @classmethod
    def load(cls, config: Config, folder: Path) -> "SpeechToText":
        """With the vocabulary and the scale of a run directory."""
        tokenizer = load_tokenizer(folder / "text.model", config.model.special)
        if tokenizer.vocab_size != config.model.vocab_size:
            raise UserError(
                f"{folder / 'text.model'} has {tokenizer.vocab_size:,} ids but config.json expects "
                f"{config.model.vocab_size:,}: they do not belong together"
            )
        scale = None
        if _data(config).normalisation == "corpus":
            scale = _read_scale(folder / "scale.json", _data(config).bands)
        return cls(config, tokenizer, scale)

    @classmethod
    def without_corpus(cls, config: Config) -> "SpeechToText":
        """With the vocabulary size of the options."""
        size = config.model.vocab_size or _data(config).vocab_size
        return cls(_with_vocabulary(config, size), cast(Tokenizer, None))

    def save(self, folder: Path) -> None:
        """Writes the vocabulary and the scale."""
        self.tokenizer.save(folder / "text.model")
        if self.scale:
            kept = {"mean": self.scale.mean.tolist(), "deviation": self.scale.deviation.tolist()}
            write_whole(folder / "scale.json", json.dumps(kept))

    def content(self) -> bytes:
        """The vocabulary's file, and the scale."""
        return self.tokenizer.content() + (self.scale.mean.tobytes() if self.scale else b"")

    # To batches

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of the frames and of decoder input ids."""
        frames = jax.ShapeDtypeStruct((1, 8, _data(config).bands), jnp.float32)
        return frames, jax.ShapeDtypeStruct((1, 2), jnp.int32)

    def examples(self, records: Sequence[Recording], *, truncate: bool = False) -> list[Example]:
        """The normalised frames, and the ids of the text with <eos>."""
        frames, tokens = self.batching().buckets[-1] if truncate else (None, None)
        return [
            {
                "source": self.frames(record)[:frames],
                "target": [*self.tokenizer.encode(record.text)[: tokens and tokens - 1], self.special.eos],
            }
            for record in records
        ]

    def frames(self, record: Recording) -> Float[np.ndarray, "t bands"]:
        """The normalised features of a recording."""
        return (self.scale or normalised)(record.features)

    def batching(self) -> Batching:
        """Lengths in frames, each with room for text in proportion."""
        data = self.data
        buckets = tuple((frames, _room(frames, data)) for frames in data.lengths)
        return Batching(buckets, data.batch_tokens, data.batching == "packed", data.seed)

    def lengths(self, records: Records, progress: Progress = silent) -> Lengths:
        """The number of frames and of tokens of each recording."""
        found = [
            (len(each.features), len(self.tokenizer.encode(each.text)) + 1)
            for each in progress("lengths", records, len(records))
        ]
        return np.array(found, np.int32)

    # From decoding

    def is_empty(self, record: Recording) -> bool:
        """Never: there is sound in all of them."""
        return False

    def truncated(self, records: Sequence[Recording], longest: int) -> str:
        """A warning if recordings of a split are longer than the search reads."""
        count = sum(len(record.features) > longest for record in records)
        if not count:
            return ""
        return (
            f"{count} of {len(records)} recordings of the %s split are cut to {longest / 100:.1f} s: see "
            "--decoding.buckets"
        )

    def outputs(self, found: SearchResult, record: Recording, n_best: int | None) -> list[Hypothesis]:
        """What may have been said, best first.

        Raises:
          UserError: there is no output that the rules allow.
        """
        several = hypotheses(found, self.tokenizer, self.special, n_best)
        if not several:
            raise UserError(NO_OUTPUT)
        return several

    def check_search(self, settings: DecodingConfig) -> None:
        """Accepts all but the coverage penalty, which counts words of a source."""
        if getattr(settings, "coverage_penalty", 0):
            raise UserError("--decoding.coverage-penalty: recordings have no words to cover; leave it out")

    def consensus(self, outputs: list[Hypothesis]) -> list[Hypothesis]:
        """The different texts by expected chrF, which becomes their score."""
        return by_consensus(outputs)

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """The ids of a phrase, if the vocabulary can spell it."""
        ids = tuple(self.tokenizer.encode(text))
        return [] if self.special.unk in ids or not ids else [ids]

    def pieces(self, ids: Sequence[int], record: Recording) -> list[str]:
        """The token of each id."""
        return self.tokenizer.pieces(ids)

    def spell(self, ids: Sequence[int]) -> str:
        """The text of output ids."""
        return self.tokenizer.decode(words_of(ids, self.special))

    def scored(self, output: Hypothesis) -> str:
        """The text."""
        return output.text

    def measures(self) -> Mapping[Measure, Callable[[Evaluation], Score]]:
        """Word error rate and sentence error rate."""

        def texts(given: Evaluation) -> tuple[list[str], list[str]]:
            return list(given.outputs), [record.text for record in given.records]

        return {
            WORDS: lambda given: word_errors(*texts(given)),
            SENTENCES: lambda given: sentence_errors(*texts(given)),
        }

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood in nats per token, and its exponential."""
        return {"nll": means["nll"], "perplexity": math.exp(min(means["nll"], 700))}

    def shown(self, record: Recording, output: str) -> tuple[str, str, str]:
        """The file's name, its text and what was heard."""
        return record.name, record.text, output

    # Lines in, lines out

    def record(self, line: str) -> Recording:
        """The recording that a line names.

        Raises:
          UserError: it cannot be read.
        """
        name, _, text = line.partition("\t")
        return recording(Path(name), self.data.bands, text)

    def line(self, output: Hypothesis) -> str:
        """The text."""
        return " ".join(output.text.split("\n"))


def _data(config: Config) -> RecordingsConfig:
    assert isinstance(config.data, RecordingsConfig)
    return config.data


def _room(frames: int, data: RecordingsConfig) -> int:
    """Tokens that a bucket holds: in proportion to its frames, in steps of four."""
    return min(data.max_text, max(4, 4 * math.ceil(data.max_text * frames / data.max_length / 4)))


def _read_scale(path: Path, bands: int) -> Scale:
    try:
        kept = parse_object(read_text(path))
        mean, deviation = (np.array(kept[name], np.float32) for name in ("mean", "deviation"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: the scale of the features cannot be read: {error}") from error
    if mean.shape != (bands,) or deviation.shape != (bands,) or not (deviation > 0).all():
        raise UserError(f"{path}: must have a mean and a positive deviation for each of {bands} bands")
    return Scale(mean, deviation)


def _with_vocabulary(config: Config, vocab_size: int) -> Config:
    if config.model.vocab_size not in (0, vocab_size):
        raise UserError(
            f"--model.vocab-size {config.model.vocab_size} but the vocabulary has {vocab_size} ids: leave it "
            "out"
        )
    return replace(config, model=replace(config.model, vocab_size=vocab_size))
