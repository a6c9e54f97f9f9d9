"""The contract of tasks whose outputs are texts: the texts that a search has found, how they are steered,
spelled and compared, and chrF between candidates."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from transformer.config.decoding import DecodingConfig
from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.data.sequences import Example, Fields
from transformer.data.store import Record
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.trees import Tree
from transformer.decoding.hooks import NO_OUTPUT, SearchHook
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.shortlist import Shortlist
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.tasks.outputs import DecodingTask, Output, Plain, rounded
from transformer.tasks.task import Task

# chrF between all pairs of candidates, in one compiled program: the utility of minimum Bayes risk decoding.


ORDER = 6
BETA = 2.0
LENGTHS = 64  # texts are padded to a multiple of this
_FACTORS = (1_000_003, 2_654_435_761)


def pairwise_chrf(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """chrF (Popovic 2015; sacreBLEU's default) of each text as a hypothesis against each as the reference,
    from 0 to 100."""
    squeezed = ["".join(text.split()) for text in texts]
    longest = max(1, *map(len, squeezed)) if squeezed else 1
    codes = np.zeros((len(texts), -(-longest // LENGTHS) * LENGTHS), np.int32)
    for row, text in enumerate(squeezed):
        codes[row, : len(text)] = list(map(ord, text))
    return np.asarray(_chrf(jnp.asarray(codes)))


def expected_chrf(texts: Sequence[str]) -> Float[np.ndarray, " n"]:
    """The mean chrF of each text, with all the others as references; of a single one 100."""
    if len(texts) < 2:
        return np.full(len(texts), 100.0)
    matrix = pairwise_chrf(texts).astype(np.float64)
    return (matrix.sum(axis=1) - matrix.diagonal()) / (len(texts) - 1)


@jax.jit
def _chrf(codes: Int[Array, "n t"]) -> Float[Array, "n n"]:
    length = (codes != 0).sum(axis=1)
    precision = recall = orders = jnp.zeros((len(codes), len(codes)))
    for order in range(1, ORDER + 1):
        matches = _matches(codes, order, length)
        count = jnp.maximum(length - order + 1, 0).astype(jnp.float32)
        both_have = (count[:, None] > 0) & (count[None, :] > 0)
        precision += jnp.where(both_have, matches / jnp.maximum(count[:, None], 1), 0)
        recall += jnp.where(both_have, matches / jnp.maximum(count[None, :], 1), 0)
        orders += both_have
    precision, recall = (total / jnp.maximum(orders, 1) for total in (precision, recall))
    divisor = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / jnp.where(divisor > 0, divisor, 1)


def _matches(codes: Int[Array, "n t"], order: int, length: Int[Array, " n"]) -> Float[Array, "n n"]:
    """How many n-grams each pair has in common, each as often as in both. An n-gram and how often it
    occurred before is one item. So a text is a set of items, and a product of matrices counts what two sets
    share."""
    texts, time = codes.shape
    valid = jnp.arange(time) < (length - order + 1)[:, None]
    keys = [_hashes(codes, order, factor) for factor in _FACTORS]
    same = (keys[0][:, :, None] == keys[0][:, None, :]) & (keys[1][:, :, None] == keys[1][:, None, :])
    earlier = same & valid[:, None, :] & jnp.tri(time, k=-1, dtype=bool)
    nth = earlier.sum(axis=-1).astype(jnp.uint32)
    items = _numbered(keys[0] + nth * jnp.uint32(0x9E3779B1), keys[1] ^ (nth * jnp.uint32(0x85EBCA6B)), valid)
    sets = jnp.zeros((texts, texts * time + 1)).at[jnp.arange(texts)[:, None], items].set(1.0)
    sets = sets[:, :-1]
    return jnp.matmul(sets, sets.T, precision="highest")


def _hashes(codes: Int[Array, "n t"], order: int, factor: int) -> UInt[Array, "n t"]:
    """A hash of the n-gram that begins at each position."""
    hashes = jnp.zeros(codes.shape, jnp.uint32)
    padded = jnp.pad(codes, ((0, 0), (0, order - 1))).astype(jnp.uint32)
    for offset in range(order):
        hashes = hashes * jnp.uint32(factor) + padded[:, offset : offset + codes.shape[1]] + jnp.uint32(1)
        hashes ^= hashes >> 15
    return hashes


def _numbered(
    first: UInt[Array, "n t"], second: UInt[Array, "n t"], valid: Bool[Array, "n t"]
) -> Int[Array, "n t"]:
    """A number for each different pair of hashes; the last number for what is not valid."""
    size = first.size
    order = jnp.arange(size)
    sorted_first, sorted_second, positions = jax.lax.sort((first.ravel(), second.ravel(), order), num_keys=2)
    changes = (sorted_first[1:] != sorted_first[:-1]) | (sorted_second[1:] != sorted_second[:-1])
    numbers = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes.astype(jnp.int32))])
    numbered = jnp.zeros(size, jnp.int32).at[positions].set(numbers).reshape(first.shape)
    return jnp.where(valid, numbered, size)


# Texts that a search has found.


END = "</s>"
"""The token after each part of a text but the last: its <eos>."""


@dataclass(frozen=True, eq=False)
class WordConfidence(Plain):
    """The probability that a word of an output is right."""

    word: str
    """A word, a punctuation mark, or a character of a script without spaces."""
    start: int
    """The position of the word's first character in the text."""
    confidence: float
    """The probability, by the confidence.json of the run (`transformer calibrate`)."""


@dataclass(frozen=True, eq=False)
class Hypothesis(Plain):
    """One output for one input: a translation, or what was said. `json.dumps(hypothesis.to_json())` writes it
    as decode.py does, `json.dumps(hypothesis.to_dict())` all of its fields, and
    `json.dumps(found, default=Hypothesis.to_dict)` whatever a search returned."""

    computed = ("perplexity",)
    written = ("text", "tokens", "score", "log_probability")
    written_if_true = ("truncated",)

    text: str
    tokens: tuple[str, ...]
    """Subwords of the output, without <eos>."""
    score: float
    """What hypotheses are ranked by: the log-probability divided by the length penalty. The log-probability
    is then the one that the search adds up: with the repetition penalty, under the noise, or that with which
    a parallel decoder chose each token. A coverage penalty is added to the quotient; minimum Bayes risk and
    rerankers replace it."""
    log_probability: float
    """log P(output | input) of the model in nats, including <eos>. No option of the search changes it. It
    equals `Translator.score` of `ids` up to rounding; also of `text`, if the tokenizer divides that into the
    same tokens. What every output is forced to begin with, such as the code of a language, counts nothing."""
    alignment: Float[np.ndarray, "target source"] | None = None
    """Cross-attention, if requested: a row for every token and <eos>, a column for every source subword (see
    `Translator.subwords`; without those that were truncated) and <eos>, or for every encoded frame. Each row
    sums to 1."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """The generated ids: the tokens, then <eos>."""
    token_log_probabilities: tuple[float, ...] | None = field(default=None, repr=False)
    """log P of every token and of <eos>, in nats, with all tokens before it given. They add up
    to `log_probability`. None if not requested."""
    entropies: tuple[float, ...] | None = field(default=None, repr=False)
    """Entropy, in nats, of the distribution of every token and of <eos>, if requested."""
    word_confidences: tuple[WordConfidence, ...] | None = field(default=None, repr=False)
    """The probability that each word is right, in the order of the text, if requested."""
    truncated: bool = False
    """Whether the input was longer than the model reads, so that this is the output of its beginning."""

    @property
    def perplexity(self) -> float:
        """exp(-log_probability / |Y|), where |Y| is the number of its tokens, counting <eos>."""
        return math.exp(min(-self.log_probability / max(len(self.ids), 1), 700))

    def to_json(self) -> Json:
        """As `Plain.to_json`, with alignments and numbers of tokens in four digits if they were requested."""
        values = super().to_json()
        if self.token_log_probabilities is not None:
            values["token_log_probabilities"] = rounded(self.token_log_probabilities)
            values["perplexity"] = round(self.perplexity, 4)
        if self.entropies is not None:
            values["entropies"] = rounded(self.entropies)
        if self.word_confidences is not None:
            words = (replace(word, confidence=round(word.confidence, 4)) for word in self.word_confidences)
            values["word_confidences"] = [word.to_json() for word in words]
        if self.alignment is not None:
            values["alignment"] = [rounded(row) for row in self.alignment]
        return values


def hypotheses(
    result: SearchResult,
    tokenizer: Tokenizer,
    special: SpecialIds,
    n_best: int | None,
    refusal: str = NO_OUTPUT,
) -> list[Hypothesis]:
    """The texts of one row of a search, best first. Raises UserError with this message if there is none."""
    outputs: list[Hypothesis] = []
    scores = result.scores[:n_best].tolist()
    log_probabilities = result.log_probabilities[:n_best].tolist()
    for score, log_probability, ids in zip(scores, log_probabilities, result.tokens, strict=False):
        if math.isfinite(score):
            tokens = words_of(ids, special)
            text = tokenizer.decode(tokens)
            pieces = tuple(tokenizer.pieces(tokens))
            outputs.append(Hypothesis(text, pieces, score, log_probability, ids=(*tokens, special.eos)))
    if not outputs:
        raise UserError(refusal)
    return outputs


def chained(text: str, starts: Sequence[int], parts: Sequence[Hypothesis]) -> Hypothesis:
    """The output for a text whose parts were searched one after the other. Scores and log-probabilities add
    up. In tokens, ids, their scores and alignments each part ends with its <eos>; an alignment has a block
    for each.

    Args:
      text: of all.
      starts: the first character of each part in it.
      parts: those without ids were not searched.
    """
    searched = [part for part in parts if part.ids]
    words = [
        replace(word, start=start + word.start)
        for start, part in zip(starts, parts, strict=True)
        for word in part.word_confidences or ()
    ]
    return Hypothesis(
        text,
        with_ends(part.tokens for part in searched),
        sum(part.score for part in parts),
        sum(part.log_probability for part in parts),
        _blocks([part.alignment for part in searched]),
        _of_all([part.ids for part in searched]) or (),
        _of_all([part.token_log_probabilities for part in searched]),
        _of_all([part.entropies for part in searched]),
        tuple(words) if any(part.word_confidences is not None for part in parts) else None,
        any(part.truncated for part in parts),
    )


def with_ends(parts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The tokens of parts of a text, with `END` between them."""
    tokens = list[str]()
    for index, part in enumerate(parts):
        tokens += [END, *part] if index else part
    return tuple(tokens)


def _of_all(sequences: Sequence[Sequence[Any] | None]) -> tuple[Any, ...] | None:
    """The values of all parts; None where they were not requested."""
    values = [sequence for sequence in sequences if sequence is not None]
    return tuple(itertools.chain.from_iterable(values)) if values else None


MOST_ALIGNED = 1_000_000
"""Numbers in the alignment of a text of several parts."""


def _blocks(
    alignments: Sequence[Float[np.ndarray, "_ _"] | None],
) -> Float[np.ndarray, "target source"] | None:
    """The alignments of all parts as the blocks of one matrix, which is zero elsewhere. Raises UserError if
    it would be too large: it grows as the square of the text."""
    from scipy.linalg import block_diag  # slow to import

    blocks = [alignment for alignment in alignments if alignment is not None]
    rows, columns = (sum(block.shape[axis] for block in blocks) for axis in (0, 1))
    if rows * columns > MOST_ALIGNED:
        raise UserError(
            f"alignments: {rows:,} tokens by {columns:,} are more than {MOST_ALIGNED:,} numbers: divide the "
            "text"
        )
    return block_diag(*blocks).astype(blocks[0].dtype) if blocks else None


def by_consensus(outputs: list[Hypothesis]) -> list[Hypothesis]:
    """The different texts by expected chrF, which becomes their score. One that was found several times
    counts as often."""
    utilities = expected_chrf([hypothesis.text for hypothesis in outputs]).tolist()
    rated = [
        replace(hypothesis, score=utility) for hypothesis, utility in zip(outputs, utilities, strict=True)
    ]
    ordered = sorted(rated, key=lambda hypothesis: (-hypothesis.score, -hypothesis.log_probability))
    return list({hypothesis.text: hypothesis for hypothesis in reversed(ordered)}.values())[::-1]


def words_of(ids: Sequence[int] | np.ndarray, special: SpecialIds) -> list[int]:
    """The ids that are text."""
    return [int(index) for index in ids if index not in (special.pad, special.eos)]


@dataclass(frozen=True)
class Steering:
    """A hook of a search, and what it reads of each record."""

    name: str
    """Name of what steers the output, such as "prefix"."""
    hook: SearchHook
    fields: Fields
    examples: Sequence[Example]
    min_lengths: list[int]
    """The fewest tokens of each output, without <eos>."""
    by_beam: bool = False
    """Whether only a beam search can do it."""


class TextTask(DecodingTask):
    """A task whose outputs are sequences of tokens that spell a text: `Hypothesis` objects, or others that
    have a text, tokens, a score and a log_probability."""

    writer: ClassVar[str] = "transformer.cli.writer:Texts"
    """The module that writes outputs, as in `Lines`."""
    needs_steps: ClassVar[str] = ""
    """The option because of which outputs are written token by token, each steered; empty: there is none."""
    shortlist: Shortlist | None = None
    """Which target tokens a source may need, if this is known."""

    @property
    def output_tokenizer(self) -> Tokenizer | None:
        """What outputs are made of, for a language model of them. None: they are no texts of their own."""
        return None

    @property
    def text_tokenizer(self) -> Tokenizer | None:
        """What running text is made of, if the model predicts each token of it from those before it, so that
        it can take part in the search of others. None: it does not."""
        return None

    def forced_ids(self, record: Record) -> tuple[int, ...]:
        """Ids that every output for a record begins with. A search does not count their probability."""
        return ()

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of the ids that are read and of decoder input ids."""
        ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
        return ids, ids

    @abstractmethod
    def spell(self, ids: Sequence[int]) -> str:
        """The text of output ids."""

    def tree_of(self, text: str) -> Tree | None:
        """The tree that an output spells, of which there are pictures; None: it is none."""
        return None

    @abstractmethod
    def pieces(self, ids: Sequence[int], record: Record) -> list[str]:
        """What each output id of a record is written as, such as its subword."""

    @abstractmethod
    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """The sequences of output ids that spell a phrase; empty if the output cannot have it."""

    def scored(self, output: Any) -> str:
        text: str = output.text
        return text

    def steering(self, records: Sequence[Record], lines: Sequence[int]) -> list[Steering]:
        """What is asked of the outputs of these records, such as how they begin.

        Args:
          records: what is decoded.
          lines: their numbers, for messages.
        """
        return []

    def check_search(self, settings: DecodingConfig) -> None:
        """Accepts all of them."""

    def consensus(self, outputs: list[Output]) -> list[Output]:
        """The different outputs by expected chrF, which becomes their score (minimum Bayes risk)."""
        return by_consensus(outputs)


def text_task(task: Task, option: str) -> TextTask:
    """The task, of which an option asks that its outputs are texts.

    Raises:
      UserError: they are not.
    """
    if not isinstance(task, TextTask):
        raise UserError(f"{option}: {task.config.system} writes no words; leave it out")
    return task


def spelling(task: Task) -> Callable[[Sequence[int]], str]:
    """The text of output ids, for rewards of text. It raises UserError if outputs have none."""
    return lambda ids: text_task(task, "--reward.reward").spell(ids)
