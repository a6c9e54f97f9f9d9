"""Tagging (Devlin et al. 2019, section 5.3): an encoder with a linear layer to labels, its loss and the most
probable label of each word; sentences in words, and a label for each."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config.options import Config
from transformer.config.records import TaggedConfig
from transformer.data.sequences import Example, Field, Fields, id_dtype
from transformer.data.sources.tables import check_no_tables
from transformer.data.sources.tagged import TaggedSentence, open_tagged, read_tagged
from transformer.data.sources.text_files import read_lines
from transformer.data.store import Corpus, Progress, Records, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import load_tokenizer
from transformer.decoding.calls import Inputs, as_variables
from transformer.model.parameters import Arguments, Variables
from transformer.model.stack import TransformerEncoder
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, brief, write_whole
from transformer.runtime.machine import check_libraries
from transformer.systems.system import System
from transformer.systems.tagging.options import TaggingConfig, TaggingDecodingConfig
from transformer.tasks.exhibit import Overview, Table
from transformer.tasks.metrics.labels import MACRO_F1, SPAN_F1, label_accuracy, macro_f1, mark_spans, span_f1
from transformer.tasks.metrics.scores import ACCURACY, Metric, Score
from transformer.tasks.outputs import DecodingTask, Lines, Plain, rounded
from transformer.tasks.task import Evaluation
from transformer.tasks.texts.labels import confusion_table, scores_of_labels
from transformer.tasks.vocabulary import learned_tokenizer, with_vocabulary
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training


class TaggingModel(TransformerEncoder):
    """Predicts a label at every position, from all tokens of a sentence."""

    config: TaggingConfig

    def __call__(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s v"]:
        """Logits of the labels at every position."""
        return self.output(self.hidden(source, deterministic=deterministic))

    def hidden(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s m"]:
        """The encoder's states, the input of `output`."""
        states: Float[Array, "b s m"] = self.encode(source, deterministic=deterministic).states
        return states


# The loss of labels.


NO_LABEL = -1
"""The label at positions that have none: all but the first piece of each word."""


def tagging_objective(config: Config) -> Objective:
    """Label-smoothed cross-entropy of the labels.

    The batch has `source`, ids `[rows, length]`, and `labels`, indices of labels of the same shape, with
    `NO_LABEL` where there is none. The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and
    `correct`, whether the label had the highest logit, both of each labelled word.
    """
    smoothing = config.training.label_smoothing

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        def run(model: TaggingModel) -> tuple[Array, Array]:
            return model.output_factors(model.hidden(batch["source"], deterministic=context.deterministic))

        outputs, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
        states, table = outputs
        weights = (batch["labels"] != NO_LABEL).astype(jnp.float32)
        labels = jnp.maximum(batch["labels"], 0)
        loss, nll, correct = output_cross_entropy(states, table, labels, weights, smoothing)
        weight = weights.sum()
        return Loss(loss, weight, {"nll": (nll, weight), "correct": (correct, weight)}, **sown)

    return objective


# The most probable label at every position.


class Labels(NamedTuple):
    """The label of every position, also of those that have none."""

    indices: Int[Array, "b s"]
    probabilities: Float[Array, "b s"]
    """The probabilities of these labels."""


def tagging_search(
    model: TaggingModel,
    params: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: TaggingDecodingConfig,
) -> Labels:
    """The most probable label at every position.

    Args:
      inputs: `source`, ids, each sentence closed by <eos>, then <pad>.
    """
    return _search(model, params, inputs["source"])


@functools.partial(jax.jit, static_argnames="model")
def _search(model: TaggingModel, params: Variables, source: Int[Array, "b s"]) -> Labels:
    logits: Any = model.apply(as_variables(params), source)
    probabilities = jax.nn.softmax(logits, axis=-1)
    return Labels(probabilities.argmax(axis=-1), probabilities.max(axis=-1))


# Tagging: sentences in words, and a label for each.


VOCABULARY, LABELS = "source.model", "labels.txt"
"""The files of a run directory."""
WORDS = 2**17  # whose pieces are cached
LONGEST_WORD = 100
"""Characters of such a word: those of clients could fill the memory."""


@dataclass(frozen=True, eq=False)
class Tagged(Plain):
    """The labels of a sentence. `json.dumps(tagged.to_dict())` writes it as JSON."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    """The label of each word."""
    probabilities: tuple[float, ...]
    """The probability of each label."""

    def to_json(self) -> Json:
        """As `Plain.to_json`, with the probabilities in four digits."""
        return {**self.to_dict(), "probabilities": rounded(self.probabilities)}

    def __str__(self) -> str:
        return " ".join(f"{word}/{label}" for word, label in zip(self.words, self.labels, strict=True))


class Tagging(Overview, DecodingTask, Lines):
    """Predicts a label for each word of a sentence, at the first piece of the word.

    Args:
      config: of the run.
      tokenizer: of the words, each of which is divided alone.
      labels: all labels.
    """

    criterion = ACCURACY
    unit = "sentences"
    counted = "source"
    learned = "vocabulary and labels"
    writer = "transformer.systems.tagging.api"
    service = "transformer.systems.tagging.service"
    inputs = ("source",)
    record_type = TaggedSentence

    def __init__(self, config: Config, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        super().__init__(config)
        self.tokenizer, self.labels = tokenizer, tuple(labels)
        self.special = config.model.special
        self.fields = {"source": Field(fill=self.special.pad), "labels": Field(fill=NO_LABEL)}
        self._indices = {label: index for index, label in enumerate(self.labels)}
        self._pieces = functools.lru_cache(WORDS)(self._pieces_of)

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if a file is missing or is not a CoNLL file."""
        columns = "words and labels in columns (CoNLL)"
        instead = "write a word and its label on each line, and an empty line after each sentence"
        check_no_tables(_data(config), columns, instead, suffixes=(".jsonl",))
        read_tagged(_data(config))

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """seqeval, if spans are scored."""
        return ("seqeval",) if _data(config).spans == "conlleval" else ()

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """Sentences of CoNLL files, or of the built-in grammar."""
        return open_tagged(_data(config), progress)

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> "Tagging":
        """With the labels of the training sentences, and a vocabulary of their words or of a file.

        Raises:
          UserError: there is only one label.
        """

        def texts(sentences: Iterable[TaggedSentence]) -> Iterable[str]:
            return (" ".join(words) for words, _ in sentences)

        tokenizer = learned_tokenizer(config, corpus, texts, progress, "words")
        labels = sorted(_counts(corpus.splits["train"]))
        if len(labels) < 2:
            raise UserError(f"{corpus.name}: all words have the label {labels[0]}; see --data.label-column")
        return cls(_with_sizes(config, tokenizer.vocab_size, len(labels)), tokenizer, labels)

    @classmethod
    def load(cls, config: Config, folder: Path) -> "Tagging":
        """A task with the vocabulary and the labels of a run directory."""
        tokenizer = load_tokenizer(folder / VOCABULARY, config.model.special)
        labels = _read_labels(folder / LABELS)
        sizes = tokenizer.vocab_size, len(labels)
        if sizes != (config.model.vocab_size, config.model.target_vocab_size):
            raise UserError(
                f"{folder} has {sizes[0]:,} ids and {counted(sizes[1], 'label')}, but config.json expects "
                f"{config.model.vocab_size:,} and {config.model.target_vocab_size}: they do not belong "
                "together"
            )
        return cls(config, tokenizer, labels)

    @classmethod
    def without_corpus(cls, config: Config) -> "Tagging":
        """With the vocabulary size of the options; and with as many labels as the Penn Treebank has parts of
        speech, if there is no other number."""
        model = config.model
        sizes = model.vocab_size or _data(config).vocab_size, model.target_vocab_size or PENN
        return cls(_with_sizes(config, *sizes), cast(Tokenizer, None), ())

    def decide(self, corpus: Corpus) -> list[str]:
        """Whether spans are scored. Reports labels of the test that no training sentence has.

        Raises:
          UserError: training or validation sentences have a label that the model does not have; one of the
            validation or test is longer than the search reads; seqeval is needed, and not installed.
        """
        data, notes = _data(self.config), []
        for split, records in corpus.splits.items():
            if split != "train":
                self._check_lengths(split, records)
            counts = _counts(records)
            for label in sorted(counts.keys() - self._indices.keys()):
                words = counted(counts[label], "word")
                fault = f"{split}: the label {brief(label)} of {words} is none of those that the model learns"
                if split != "test":
                    raise UserError(f"{getattr(data, split) or corpus.name}, {fault}")
                notes.append(f"{fault}, and counts as an error")
        spans = data.spans
        if spans == "auto":
            spans = "conlleval" if mark_spans(self.labels) else "none"
            if spans == "conlleval":
                check_libraries(["seqeval"], "scoring spans (--data.spans none: leaves it out)")
                notes.append("labels mark spans, which are scored too (--data.spans)")
        self.config = replace(self.config, data=replace(data, spans=spans))
        return notes

    def _check_lengths(self, split: str, records: Records) -> None:
        longest = self.config.decoding.buckets[-1]
        for number, record in enumerate(records, start=1):
            if (size := len(self._encoded(record.words)[0])) > longest:
                raise UserError(
                    f"sentence {number} of the {split} split has {size:,} pieces, and --decoding.buckets "
                    f"hold {longest}: divide it, or give a longer bucket"
                )

    def save(self, folder: Path) -> None:
        """Writes the vocabulary and the labels."""
        self.tokenizer.save(folder / VOCABULARY)
        write_whole(folder / LABELS, self._label_file())

    def content(self) -> bytes:
        """The files of the vocabulary and of the labels."""
        return self.tokenizer.content() + self._label_file()

    def _label_file(self) -> bytes:
        return "".join(f"{label}\n" for label in self.labels).encode()

    # To batches

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of the ids of a sentence."""
        return (jax.ShapeDtypeStruct((1, 2), jnp.int32),)

    @property
    def stored_fields(self) -> Fields:
        """Ids and labels in as few bytes as they need."""
        return {"source": Field(id_dtype(self.tokenizer.num_ids)), "labels": Field("int32")}

    def examples(self, records: Sequence[TaggedSentence], *, truncate: bool = False) -> list[Example]:
        """The ids of each sentence, closed by <eos>, and the label of the first piece of each word."""
        longest = self.config.data.max_length - 1 if truncate else None
        examples = list[Example]()
        for words, labels in records:
            ids, first = self._encoded(words)
            indices = [NO_LABEL] * len(ids)
            for position, label in zip(first, labels, strict=False):  # sentences to decode have none
                indices[position] = self._indices.get(label, NO_LABEL)
            ids, indices = ids[:-1][:longest], indices[:-1][:longest]
            examples.append({"source": [*ids, self.special.eos], "labels": [*indices, NO_LABEL]})
        return examples

    def texts_of_fields(self, record: TaggedSentence) -> Mapping[str, tuple[str, Tokenizer]]:
        return {"source": (" ".join(record.words), self.tokenizer)}

    def _encoded(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of a sentence, closed by <eos>, and the position of the first piece of each word."""
        ids, first = list(self.tokenizer.start), []
        for word in words:
            first.append(len(ids))
            ids += (self._pieces if len(word) <= LONGEST_WORD else self._pieces_of)(word)
        return [*ids, self.special.eos], first

    def _pieces_of(self, word: str) -> list[int]:
        """The ids of a word, of which there is at least one."""
        return self.tokenizer.encode(word)[len(self.tokenizer.start) :] or [self.special.unk]

    # To labels

    def is_empty(self, record: TaggedSentence) -> bool:
        """Whether there are no words."""
        return not record.words

    def empty_output(self) -> Tagged:
        return Tagged((), (), ())

    def outputs(self, result: Labels, record: TaggedSentence, n_best: int | None) -> list[Tagged]:
        """The labels of the words.

        Raises:
          UserError: the sentence is longer than the search reads.
        """
        ids, first = self._encoded(record.words)
        if len(ids) > len(result.indices):
            raise UserError(
                f"the sentence has {len(ids):,} pieces, and --decoding.buckets hold {len(result.indices)}: "
                "divide it, or give a longer bucket"
            )
        labels = tuple(self.labels[index] for index in result.indices[first])
        return [Tagged(record.words, labels, tuple(map(float, result.probabilities[first])))]

    def scored(self, output: Tagged) -> list[str]:
        return list(output.labels)

    def shown(self, record: TaggedSentence, output: list[str]) -> tuple[str, str, str]:
        """Words, reference labels and predicted labels."""
        return " ".join(record.words), " ".join(record.labels), " ".join(output)

    def record(self, line: str) -> TaggedSentence:
        """The words of a line, which spaces separate."""
        return TaggedSentence(tuple(line.split()))

    def example_line(self, record: TaggedSentence) -> str:
        """The words of a sentence, separated by spaces."""
        return " ".join(record.words)

    # Scores

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Accuracy of words, macro F1 of labels, and F1 of spans if labels mark them."""

        def of_words(score: Callable[..., Score]) -> Callable[[Evaluation], Score]:
            return lambda evaluation: score(*map(_flat, _labels(evaluation)))

        measures = {ACCURACY: of_words(label_accuracy), MACRO_F1: of_words(macro_f1)}
        if _data(self.config).spans == "conlleval":
            measures[SPAN_F1] = lambda evaluation: span_f1(*_labels(evaluation))
        return measures

    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """Which labels of words are confused, and the scores of each."""
        outputs, references = map(_flat, _labels(evaluation))
        labelled = outputs, references, self.labels
        return confusion_table(*labelled), scores_of_labels(*labelled)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood of a label in nats."""
        return {"nll": means["nll"]}


PENN = 45  # parts of speech in the Penn Treebank


def _data(config: Config) -> TaggedConfig:
    assert isinstance(config.data, TaggedConfig)
    return config.data


def _labels(evaluation: Evaluation) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
    """The predicted labels of each sentence, and those of its record."""
    return evaluation.outputs, [record.labels for record in evaluation.records]


def _flat(labels: Sequence[Sequence[str]]) -> list[str]:
    """The labels of all words."""
    return list(itertools.chain.from_iterable(labels))


def _counts(records: Records) -> Counter[str]:
    """How many words have each label."""
    return Counter(label for record in records for label in record.labels)


def _read_labels(path: Path) -> list[str]:
    """The labels of a file, one on each line. Raises UserError if one is empty or there twice."""
    labels = list(read_lines(path))
    for number, label in enumerate(labels, start=1):
        if not label or label in labels[: number - 1]:
            raise UserError(f"{path}, line {number}: a label is {'there twice' if label else 'missing'}")
    if not labels:
        raise UserError(f"{path} is empty: there are no labels in it")
    return labels


def _with_sizes(config: Config, vocab_size: int, num_labels: int) -> Config:
    """The config, with the sizes of the vocabulary and of the labels.

    Raises:
      UserError: it has others.
    """
    model = config.model
    remedy = "leave it out, or give the file of that vocabulary as --data.source-tokenizer"
    sized = with_vocabulary(config, vocab_size, remedy)
    if model.target_vocab_size not in (None, num_labels):
        raise UserError(
            f"--model.target-vocab-size {model.target_vocab_size} but there are "
            f"{counted(num_labels, 'label')}: leave it out"
        )
    return replace(sized, model=replace(sized.model, target_vocab_size=num_labels))


SYSTEM = System(
    model=TaggingModel,
    objective=lambda config, _: tagging_objective(config),
    search=tagging_search,
    task=Tagging,
)
