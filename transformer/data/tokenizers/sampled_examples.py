"""Draws the segmentations of an epoch, word by word or sentence by sentence."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from transformer.config.corpus import DataConfig
from transformer.data.epochs import Draw
from transformer.data.sequences import Arrays, Field, Sequences
from transformer.data.store import Records
from transformer.data.tokenizers.segmentations import WordSampler
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.errors import UserError

CHUNK = 512  # sentences that are sampled at a time


def with_method(data: DataConfig, tokenizers: Sequence[Tokenizer]) -> DataConfig:
    """The options of a new run, with the method decided if they sample and leave it open.

    Raises:
      UserError: they sample, and the vocabularies are of another kind than they say.
    """
    if not data.subword_sampling:
        return data
    for tokenizer in tokenizers:
        model_type = getattr(tokenizer, "kind", data.tokenizer)
        if model_type == "char":
            raise UserError(
                "--data.subword-sampling: the given vocabulary has only one segmentation; leave it out"
            )
        if model_type != data.tokenizer:
            raise UserError(
                f"--data.tokenizer {data.tokenizer} with --data.subword-sampling: the given vocabulary is a "
                f"{model_type} model, which is sampled in another way: give --data.tokenizer {model_type}"
            )
    if data.sampling_by:
        return data
    by_word = all(tokenizer.subwords for tokenizer in tokenizers)
    return dataclasses.replace(data, sampling_by="word" if by_word else "sentence")


def drawn_by(
    data: DataConfig, tokenizers: Mapping[str, Tokenizer], records: Records, examples: Arrays
) -> Draw:
    """Draws by the method of the options; by sentences if they have none, as runs did before there was one.

    Args:
      data: the options.
      tokenizers: of each side.
      records: a text for each side.
      examples: their best segmentations.

    Raises:
      UserError: the method is not for these tokenizers, or the strength is invalid.
    """
    if data.sampling_by == "word":
        return WordDraw(data, tokenizers, examples)
    return SentenceDraw(data, tokenizers, records, examples)


class WordDraw:
    """Samples words; a few array operations for any number of examples. Arguments as those of `drawn_by`."""

    part = 2**15  # examples: enough to meet frequent words often, few enough for a few hundred MB

    def __init__(self, data: DataConfig, tokenizers: Mapping[str, Tokenizer], examples: Arrays) -> None:
        self._seed, self._examples = data.seed, examples
        self._samplers: dict[str, WordSampler] = {}
        for side, tokenizer in tokenizers.items():
            if tokenizer.subwords is None:
                raise UserError(
                    f"--data.sampling-by word: pieces of the {side} vocabulary cross spaces, or are not "
                    "divided into characters; use sentence"
                )
            self._samplers[side] = WordSampler(
                tokenizer.subwords, tokenizer.special.eos, data.subword_sampling
            )

    def __call__(
        self, epoch: int, window: int, indices: Int[np.ndarray, " examples"]
    ) -> Iterator[dict[str, Sequences]]:
        """Yields sampled examples, as `Draw` does."""
        # from 1: a 0 at the end of a seed changes nothing
        numbers = range(1, len(self._samplers) + 1)
        randoms = [np.random.default_rng((self._seed, epoch, window, number)) for number in numbers]
        for start in range(0, len(indices), self.part):
            chosen = indices[start : start + self.part]
            segmentations = {}
            for (side, sample), random in zip(self._samplers.items(), randoms, strict=True):
                best = self._examples[side]
                assert isinstance(best, Sequences)
                segmentations[side] = sample(best.take(chosen), random)
            yield segmentations


class SentenceDraw:
    """Samples sentences one by one, each by a seed of its own. Arguments as those of `drawn_by`."""

    part = CHUNK

    def __init__(
        self, data: DataConfig, tokenizers: Mapping[str, Tokenizer], records: Records, examples: Arrays
    ) -> None:
        self._seed, self._tokenizers, self._records = data.seed, tokenizers, records
        self._strength = data.subword_sampling
        # texts that begin with the code of a language of their record, which no sample has
        opened = (
            side for side, tokenizer in tokenizers.items() if tokenizer.has_codes and not tokenizer.start
        )
        self._best = {side: examples[side] for side in opened}

    def __call__(
        self, epoch: int, window: int, indices: Int[np.ndarray, " examples"]
    ) -> Iterator[dict[str, Sequences]]:
        """Yields sampled examples, as `Draw` does."""
        for start in range(0, len(indices), self.part):
            chosen = indices[start : start + self.part]
            texts = self._records.__getitems__(chosen.tolist())
            segmentations = {
                side: Sequences.of(
                    [
                        self._sampled(tokenizer, text[number], (self._seed, epoch, int(index), number))
                        for text, index in zip(texts, chosen, strict=True)
                    ],
                    Field(),
                )
                for number, (side, tokenizer) in enumerate(self._tokenizers.items())
            }
            for side, best in self._best.items():
                assert isinstance(best, Sequences)
                segmentations[side] = segmentations[side].after(best.values[best.ends[chosen]])
            yield segmentations

    def _sampled(self, tokenizer: Tokenizer, text: str, seed: tuple[int, ...]) -> list[int]:
        """A segmentation, closed by <eos>; the same for the same seed."""
        ids = tokenizer.sample(text, np.random.default_rng(seed), self._strength)
        return [*ids, tokenizer.special.eos]
