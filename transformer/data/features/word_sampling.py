"""Samples segmentations of many sentences at once. Pieces do not cross spaces, so the words of a sentence are
independent, and what is computed of a word serves all its occurrences."""

import numpy as np
from jaxtyping import Int

from transformer.data.features.bpe_dropout import DropoutSampler
from transformer.data.features.subword_sampling import check_strength
from transformer.data.features.subwords import Subwords
from transformer.data.features.unigram_sampling import UnigramSampler
from transformer.data.features.vocabulary import SPACE
from transformer.data.sequences import Field, Sequences, ends_of


class WordSampler:
    """Samples segmentations of sentences.

    Args:
      subwords: the vocabulary.
      eos: the id that closes a sentence.
      strength: alpha of a unigram model, or the dropout of BPE, as in `Tokenizer.sample`.

    Raises:
      UserError: an invalid strength.
    """

    def __init__(self, subwords: Subwords, eos: int, strength: float) -> None:
        check_strength(strength, subwords.kind)
        self._sample = (UnigramSampler if subwords.kind == "unigram" else DropoutSampler)(subwords, strength)
        # what is no text, such as <eos> and the bytes of rare characters, stays as it is
        characters = [[index] for index in range(subwords.size)]
        is_first = np.zeros(subwords.size, bool)
        is_first[eos] = True
        for piece, index in subwords.ids.items():
            characters[index] = [subwords.ids[character] for character in piece]
            is_first[index] = piece.startswith(SPACE)
        self._characters = Sequences.of(characters, Field())
        self._is_first = is_first

    def __call__(self, sentences: Sequences, rng: np.random.Generator) -> Sequences:
        """Sampled segmentations of sentences, in ids of the same type.

        Args:
          sentences: the ids that `encode` gives, closed by <eos>.
          rng: what all randomness comes from.
        """
        ids = sentences.values
        is_first = self._is_first[ids]
        is_first[sentences.ends[:-1]] = True
        words = Sequences(ids, np.append(np.flatnonzero(is_first), len(ids)))
        examples, numbers = self._distinct(words)
        sampled = self._sample(self._spelled(words, examples), numbers, rng)
        before = ends_of(is_first)  # words before each id
        return Sequences(sampled.values.astype(ids.dtype), sampled.ends[before[sentences.ends]])

    def _spelled(self, words: Sequences, chosen: Int[np.ndarray, " n"]) -> Sequences:
        """The characters of some words."""
        some = words.take(chosen)
        characters = self._characters.take(some.values)
        return Sequences(characters.values, characters.ends[some.ends])

    def _distinct(self, words: Sequences) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " words"]]:
        """One occurrence of each different word, and which of them each word is.

        A word gets a number by its first id, then one by that number and its second id, and so on.
        """
        starts = words.ends[:-1]
        sizes = np.diff(words.ends)
        numbers = words.values[starts].astype(np.int64)
        used = len(self._is_first)
        longer = np.flatnonzero(sizes > 1)
        length = 1
        while len(longer):
            pairs = numbers[longer] * len(self._is_first) + words.values[starts[longer] + length]
            distinct, inverse = np.unique(pairs, return_inverse=True)
            numbers[longer] = used + inverse
            used, length = used + len(distinct), length + 1
            longer = longer[sizes[longer] > length]
        _, examples, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        return examples, inverse
