"""What is asked of a translation, and the parts of an evaluation that are scored alone."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NamedTuple

from transformer.config.arguments import is_list
from transformer.config.corpus import DataConfig
from transformer.data.sources.context import TURN, after, sentence_of
from transformer.data.sources.tables import TARGET_LENGTH, check_inputs, input_text, joined
from transformer.data.sources.text_files import one_line
from transformer.data.store import DirectedPair, Pair, Record, TextRecord
from transformer.runtime.errors import UserError, counted, nearest
from transformer.runtime.files import brief
from transformer.runtime.text import has_text, without_formatting
from transformer.tasks.task import Evaluation

Source = str | Mapping[str, str | int | Sequence[str]]
"""A sentence; for a model with named inputs each by its name, such as a list of turns; for one that reads
context, `source` and `context`, a list of the sentences before it."""
CONTEXT = "context"
SIMILAR = 0.8  # of a field and a name that is read, between "texts" and "terms", and "prefx" and "prefix"


class TranslationRequest(NamedTuple):
    """A sentence to be translated, and what is asked of its translation."""

    source: str
    target: str = ""
    """The reference of the request, which is always empty."""
    prefix: str = ""
    """What the translation must begin with."""
    terms: tuple[str, ...] = ()
    """Words and phrases that must occur in the translation."""
    source_language: str | None = None
    """The code of the source's language. None: that of the task."""
    target_language: str | None = None
    """The code of the language to translate to. None: that of the task."""

    @classmethod
    def of(cls, record: "Sentence") -> "TranslationRequest":
        """What a record of a corpus asks for."""
        if isinstance(record, TranslationRequest):
            return record
        return cls(record[0], "", "", (), *languages_of(record))


Sentence = Pair | DirectedPair | TextRecord | TranslationRequest
"""A text and what was made of it, such as a translation, which is empty if it is to be found."""


def languages_of(record: "Sentence") -> tuple[str | None, str | None]:
    """The languages of source and target that a record names. None: those of the task."""
    if isinstance(record, DirectedPair | TranslationRequest):
        return record.source_language, record.target_language
    return None, None


def make_requests(
    sources: Iterable[object], prefixes: Iterable[object] = (), terms: Iterable[object] = ()
) -> Iterator[TranslationRequest]:
    """Records of sentences with their prefixes and terms.

    Args:
      sources: sentences.
      prefixes: one for each, or an empty list.
      terms: a list for each, or an empty list.

    Raises:
      UserError: their numbers differ, or something else than text is among them.
    """
    for name, values in ("prefixes", prefixes), ("terms", terms):
        if not is_list(values):
            raise UserError(f"{name} must be a list: one for each sentence")
        if isinstance(values, Sized) and isinstance(sources, Sized) and len(values) not in (0, len(sources)):
            sentences = counted(len(sources), "sentence")
            raise UserError(f"{len(values)} {name} for {sentences}: give one for each")
    prefixes = itertools.repeat("") if _none(prefixes) else itertools.chain(prefixes, _ended("prefixes"))
    terms = itertools.repeat(()) if _none(terms) else itertools.chain(terms, _ended("terms"))
    for source, prefix, sentence_terms in zip(sources, prefixes, terms, strict=False):
        if not is_list(sentence_terms):
            raise UserError("the terms of a sentence must be a list of words and phrases")
        texts = (
            without_formatting(sentence(text, "terms must be words and phrases")) for text in sentence_terms
        )
        yield TranslationRequest(
            sentence(source), "", sentence(prefix, "prefixes must be text"), tuple(texts)
        )


def source_of(value: object, data: DataConfig, target_length: int = 0) -> str:
    """The text that a model reads: a text as it is, or named inputs together.

    Args:
      value: a text, or a mapping with the name of each input.
      data: names them.
      target_length: words that the output should have, if the model reads that, and a mapping does not say
        it. 0: not given.

    Raises:
      UserError: it is neither, an input is missing or unknown, or a text does not begin with the name of the
        first of several inputs; the model does not read how long its output should be.
    """
    names = data.input_names
    reads = f"this model reads {' and '.join(names)}"
    if target_length and TARGET_LENGTH not in names:
        raise UserError(f"--target-length: {reads}; one that reads {TARGET_LENGTH} can be trained")
    lengths = {TARGET_LENGTH: target_length} if target_length else {}
    texts = [name for name in names if name not in lengths]
    named = f"{names[0]}: "
    if lengths and len(texts) == 1 and isinstance(value, str) and value and not value.startswith(named):
        value = {texts[0]: value}
    if isinstance(value, Mapping):
        columns = lengths | {name: x for name, x in value.items() if x or name != TARGET_LENGTH}
        check_inputs(columns, data)
        if not data.has_columns:
            check_names(value, (*names, CONTEXT), data.target)
        inputs = {name: input_text(columns, name, data.task) for name in names}
        text = joined(inputs, data.inputs, inputs[data.group] if data.group else "")
        context = [] if CONTEXT in names else context_in(value, data)
        return after(context, text) if has_text(text) else text
    text = sentence(value)
    if len(names) > 1 and not data.group and text and not text.startswith(named):
        raise UserError(f"{reads}: name them (--jsonl, --tsv), or begin with {names[0]}: ")
    return text


def own_sentence(source: str, data: DataConfig) -> str:
    """A source without the context that the model reads before it, if it reads context."""
    return sentence_of(source) if data.context else source


def context_in(inputs: Mapping[str, object], data: DataConfig) -> list[str]:
    """The sentences before one, oldest first, as many as the model reads. Of rows with named columns it is a
    further column, as in training.

    Raises:
      UserError: the model reads none, or they are no list of texts.
    """
    context = inputs.get(CONTEXT)
    if context is None or data.has_columns:
        return []
    if not data.context:
        raise UserError("context: this model reads sentences alone; one with --data.context can be trained")
    if isinstance(context, str) or not isinstance(context, Sequence):
        raise UserError("context must be a list of the sentences before")
    texts = [sentence(text, "context must be sentences") for text in context]
    if any(TURN in text for text in texts):
        raise UserError(f"context: a sentence has{TURN}in it, which is between sentences; take it out")
    return list(filter(has_text, map(one_line, texts)))[-data.context :]


def check_names(fields: Iterable[object], known: Sequence[str], others: Sequence[str] = ()) -> None:
    """Accepts the further columns of a row, as in training. Raises UserError if one is named almost as what
    is read, such as "prefx"."""
    for name in sorted(map(str, fields)):
        if name not in known and name not in others and (hint := nearest(name, known, SIMILAR)):
            raise UserError(f"there is no {brief(name)}{hint}; {', '.join(known)} are read")


def _none(values: Iterable[object]) -> bool:
    return isinstance(values, Sized) and not len(values)


def _ended(name: str) -> Iterator[object]:
    """What follows the last of them. Raises UserError, since a sentence has none."""
    raise UserError(f"fewer {name} than sentences: give one for each")
    yield


def sentence(text: object, rule: str = "sources must be sentences") -> str:
    """A text. Raises UserError if it is something else."""
    if not isinstance(text, str):
        raise UserError(f"{rule}, not {type(text).__name__}")
    return text


# The parts of an evaluation that are scored alone, such as directions.


def by_name(evaluation: Evaluation, name_of: Callable[[Record], str]) -> dict[str, Evaluation]:
    """The records of each name with their outputs, in the order of the records."""
    indices = dict[str, list[int]]()
    for index, record in enumerate(evaluation.records):
        indices.setdefault(name_of(record), []).append(index)

    def some(values: Any, chosen: list[int]) -> list[Any]:
        return [values[index] for index in chosen] if values else []

    return {
        name: Evaluation(some(evaluation.records, chosen), some(evaluation.outputs, chosen), evaluation.means)
        for name, chosen in indices.items()
    }


def direction_of(record: Record) -> str:
    """The direction of a record, such as "en to de"."""
    return " to ".join(language or "unknown" for language in languages_of(record))
