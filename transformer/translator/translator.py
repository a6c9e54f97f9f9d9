"""The Python API for translation: a decoder whose records are sentences."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from jaxtyping import Float, Int

from transformer.config.arguments import any_number, is_list, true_or_false, whole_number
from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config, text_data
from transformer.config.ranges import LONGEST, Option, instance, shown, typed
from transformer.data.sources.context import TURN
from transformer.data.sources.tables import input_text
from transformer.data.sources.text_files import one_line
from transformer.data.tokenizers.trained import Tokenizers
from transformer.decoding.service.lanes import Job, Preparation
from transformer.decoding.service.service import prepare
from transformer.documents.document import DocumentTranslator, can_translate, with_code
from transformer.documents.sentences import DividedText, joined
from transformer.documents.suspicion import Limits
from transformer.model.parameters import Variables
from transformer.runs.run import Run
from transformer.runtime.errors import UserError, counted
from transformer.runtime.hosts import refuse_forked, shard_rows
from transformer.runtime.text import has_text
from transformer.systems.registry import find_system
from transformer.tasks.outputs import TRUNCATED
from transformer.tasks.text import Hypothesis
from transformer.tasks.texts import text_task_of
from transformer.tasks.texts.requests import Source, TranslationRequest, context_in, make_requests
from transformer.tasks.texts.text_to_text import TextToText
from transformer.translator.choices import Chooser, Target, ids_of_targets
from transformer.translator.ensemble import ensemble_of
from transformer.translator.search_inputs import (
    bucket_of,
    of_any_length,
    padded,
    shapes_of_any_length,
    within_positions,
)
from transformer.translator.search_outputs import NO_EXTRAS, compile_for, scored, without_start
from transformer.translator.simultaneous import SimultaneousTranslator

__all__ = ["Hypothesis", "Translator", "translation_of"]
PRETRAINED = {"hub", "pieces", "byte"}
"""Vocabularies that no training makes here. OPUS-MT has another one."""
FINE = (8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)
"""Padded lengths of many pairs that are scored together."""


def translation_of(run: Run) -> TextToText:
    """The task of a run.

    Raises:
      UserError: it does not read and write text.
    """
    if not isinstance(run.task, TextToText):
        raise UserError(f"{run.name} holds a system that does not translate: {run.config.system}")
    return run.task


PAIRS = 256
"""Pairs of languages that a translator of many has ready, the oldest of which gives way: there may be tens of
thousands, of 25 KB each."""


class Translator(Chooser, SimultaneousTranslator, DocumentTranslator):
    """A trained model that translates. Threads may share it. See `Decoder` for batches and programs.

    Args:
      config: of the run.
      variables: of the model.
      tokenizers: of source and target.
      warns: whether to log the lines that are truncated or have line breaks inside.
    """

    extras = ("alignments", "token_scores", "word_confidences")

    @typed
    def __init__(
        self, config: Config, variables: Variables, tokenizers: Tokenizers, *, warns: bool = True
    ) -> None:
        find_system(config.system)  # which a mistake may name
        sizes = config.model.vocab_size, config.model.output_size
        if (ids := tuple(tokenizer.vocab_size for tokenizer in tokenizers)) != sizes:
            raise UserError(
                f"tokenizers have {ids} ids but the config expects {sizes}: do they belong to it?"
            )
        super().__init__(
            config, variables, text_task_of(text_data(config).task)(config, tokenizers), warns=warns
        )
        self._pairs: dict[tuple[str, int, int], Translator] = {}
        self._pairs_lock = threading.Lock()

    @classmethod
    def load(  # type: ignore[override]
        cls,
        run_dir: Path | str | Sequence[Path | str],
        checkpoint: str | int = "best",
        *,
        int8: bool = False,
        weights: Sequence[float] | None = None,
        mean: str = "probabilities",
        adapter: Path | str | None = None,
    ) -> "Translator":
        """Loads a trained model from a run directory, or an ensemble from several.

        Args:
          run_dir: a run directory, or a list of them with the same vocabulary.
          checkpoint: as in `Decoder.load`.
          int8: as in `Decoder.load`.
          weights: of several, see `together`.
          mean: of several.
          adapter: as in `Decoder.load`, for one run directory.

        Raises:
          UserError: as `Decoder.load` and `together`.
        """
        instance("mean", mean, str)
        if isinstance(run_dir, bytes) or not isinstance(run_dir, str | Path | Sequence):
            raise UserError(
                f"run_dir {shown(run_dir)}: must be the path of a run directory, or a list of such"
            )
        several = [run_dir] if isinstance(run_dir, str | Path) else list(run_dir)
        if not several:
            raise UserError("an ensemble needs at least one run directory")
        if adapter is not None and len(several) > 1:
            raise UserError("adapter is for one run directory: an ensemble loads adapters like other runs")
        loaded = [super(Translator, cls).load(run, checkpoint, int8=int8, adapter=adapter) for run in several]
        if len(loaded) > 1:
            return cls.together(loaded, weights, mean)
        if weights is not None or mean != "probabilities":
            raise UserError("weights and mean are for an ensemble: give several run directories")
        return loaded[0]

    @classmethod
    def together(
        cls,
        members: Sequence["Translator"],
        weights: Sequence[float] | None = None,
        mean: str = "probabilities",
    ) -> "Translator":
        """An ensemble: several models, whose distributions are averaged at every step.

        Args:
          members: translators with the same vocabulary; search options are those of the first.
          weights: one for each. None: equal ones.
          mean: "probabilities", or "logarithms" for a geometric mean.

        Raises:
          UserError: a member cannot be part of an ensemble.
        """
        system, model, variables = ensemble_of(members, weights, mean)
        ensemble = cls(members[0].config, members[0].variables, members[0].tokenizers)
        ensemble.system, ensemble.model, ensemble.variables = system, model, variables
        ensemble.longest = _least(member.longest for member in members)
        ensemble.longest_source = _least(member.longest_source for member in members)
        ensemble.origin = " and ".join(member.origin for member in members if member.origin)
        return ensemble

    @classmethod
    def of_run(cls, run: Run, variables: Variables) -> "Translator":
        task = translation_of(run)
        translator = cls(run.config, variables, task.tokenizers)
        translator.task = task
        translator.limits = Limits.read(run.path)
        return translator

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of source and target."""
        return self.task.tokenizers

    def between(self, source_language: str | None, target_language: str | None) -> "Translator":
        """This translator for other languages, of a model of many: with the same variables, programs and
        threads.

        Args:
          source_language: the code of the source, such as deu_Latn. None: the language of this translator.
          target_language: the code of the target.

        Raises:
          UserError: texts of this model begin with no code, or there is no such language.
        """
        instance("source_language", source_language, str | None)
        instance("target_language", target_language, str | None)
        pair = source_language, target_language
        if pair == (None, None):
            return self
        key = repr(pair), id(self.language_model), id(self.bias)  # which the other one keeps
        with self._pairs_lock:
            if key not in self._pairs:
                task = self.task.between(*pair)
                directed = object.__new__(type(self))
                directed.__dict__.update(self.__dict__, task=task, config=task.config, _pairs={})
                if len(self._pairs) >= PAIRS:
                    del self._pairs[next(iter(self._pairs))]
                self._pairs[key] = directed
            return self._pairs[key]

    @overload
    def translate(self, sources: Source, **options: Option) -> str: ...

    @overload
    def translate(self, sources: Iterable[Source], **options: Option) -> list[str]: ...

    def translate(self, sources: Source | Iterable[Source], **options: Option) -> str | list[str]:
        """The best translation of every sentence, in order. Empty sentences, and those without a
        visible character, stay empty.

        Args:
          sources: sentences, or one string. Line breaks at their ends are ignored; those inside are read as
            spaces, with a warning. A model that reads context (`--data.context`) takes
            `{"source": "It sleeps.", "context": ["The dog is old."]}`; see `in_context`.
          options: `source_language` and `target_language` as in `between`, and any field of `DecodingConfig`,
            instead of the run's value.

        Returns:
          A list of translations; for one string, a string.
        """
        if isinstance(sources, str | Mapping):
            return self.search([sources], **options)[0][0].text
        return [hypotheses[0].text for hypotheses in self.search(sources, **options)]

    def search(self, sources: Iterable[Source], **options: Any) -> list[list[Hypothesis]]:
        """The best translations of every sentence, best first.

        Args:
          sources: sentences, as in `translate`.
          options: `n_best`, `prefixes`, `terms`, `alignments` and all others of `stream`.

        Raises:
          UserError: as `stream`.
        """
        return list(self.stream(sources, **options))

    def stream(  # type: ignore[override]
        self,
        records: Iterable[Source],
        *,
        n_best: int | None = None,
        first_line: int = 1,
        prefixes: Iterable[str] = (),
        terms: Iterable[Sequence[str]] = (),
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Option,
    ) -> Iterator[list[Hypothesis]]:
        """`search` for any number of lines in bounded memory. Translations are in order.

        Args:
          records: sentences.
          n_best: translations per sentence. None: `beam_size`.
          first_line: the number of the first sentence, for warnings and for sampling.
          prefixes: what each translation must begin with; "" for nothing. The last word may be a part of
            one, which is completed; a space after it says that it is whole.
          terms: words and phrases that must occur in each translation, such as those of a `Glossary`; () for
            none. One that stands there twice must occur twice.
          source_language: as in `between`.
          target_language: as in `between`.
          options: any field of `DecodingConfig`, and what to return besides, each True or False: `alignments`
            (the cross-attention of each token), `token_scores` (its log-probability and entropy),
            `word_confidences` (the probability that each word is right, if the run has learned it by
            `transformer calibrate`).

        Raises:
          UserError: n_best is more than the search keeps, an option is invalid, or the model's parameters
            are not finite.
        """
        records = map(self.task.source_of, any_number("sources", records, "sentences"))
        extras, options = NO_EXTRAS.asked(self.extras, options)
        settings = self.settings(n_best, options)
        pairs = enumerate(make_requests(records, prefixes, terms), whole_number("first_line", first_line))
        translator = self.between(source_language, target_language)
        return translator.outputs(pairs, settings, n_best, extras)

    def submit(  # type: ignore[override]
        self,
        record: Source,
        *,
        n_best: int | None = None,
        line: int = 1,
        prefix: str = "",
        terms: Sequence[str] = (),
        source_language: str | None = None,
        target_language: str | None = None,
        divide: bool | None = None,
        priority: int = 0,
        deadline: float | int | None = None,
        partial: Callable[[Any], None] | None = None,
        **options: Option,
    ) -> Future[list[Hypothesis]]:
        """Begins to translate a text, and returns at once. Sentences of all threads join the same search.

        A text of several sentences or lines is translated sentence by sentence, as `translate_document` finds
        them, and keeps its line breaks. Its n-th best translation has the n-th best of each sentence; scores
        add up, and `</s>` is among the tokens where a sentence ends before the last. A code such as `>>deu<<`
        before the first sentence is before each. A text with a prefix or terms, and one for another task than
        translation, is read as one; so is that of a model which `reads_instructions`, unless `divide` is
        True.

        Args:
          record: the text.
          n_best: as in `stream`, and so are the languages.
          line: its number, for warnings and for sampling.
          prefix: what the translation must begin with.
          terms: words and phrases that must occur in it.
          source_language: see `n_best`.
          target_language: see `n_best`.
          divide: whether to translate sentence by sentence. False: the text is one sentence. None: unless it
            may begin with an instruction.
          priority: as in `Decoder.submit`, and so are deadline and partial.
          deadline: see `priority`.
          partial: see `priority`.
          options: as in `stream`.

        Returns:
          As `Decoder.submit`: a future of the translations, best first.

        Raises:
          QueueFull: as `Decoder.submit`.
          UserError: as `Decoder.submit`.
        """
        translator = self.between(source_language, target_language)
        requests = list(make_requests([self.task.source_of(record)], [prefix], [terms]))
        extras, options = NO_EXTRAS.asked(self.extras, options)
        settings, line = translator.settings(n_best, options), whole_number("line", line)
        longest, join = settings.buckets[-1], None
        if translator._divides(divide) and not (prefix or terms):
            text = translator._divided(record, longest)
            if not text.is_sentence:
                requests = [TranslationRequest(piece) for piece in translator._read_sentences(text, record)]
                join = functools.partial(joined, text)
        rows = [(line + index, self.task.as_read(request, longest)) for index, request in enumerate(requests)]
        return translator._admitted(rows, settings, n_best, extras, priority, deadline, partial, join)

    @property
    def reads_instructions(self) -> bool:
        """Whether a text may begin with an instruction, which is for all of its sentences, as in T5: whether
        it is a pretrained model of no language, with its publisher's vocabulary."""
        kinds = {tokenizer.kind for tokenizer in self.tokenizers}
        return kinds <= PRETRAINED and not self.tokenizers[0].has_codes

    def _divides(self, divide: bool | None) -> bool:
        """Whether texts are translated sentence by sentence, if that is asked for or left open."""
        return not self.reads_instructions if divide is None else true_or_false("divide", divide)

    def _divided(self, source: Source, longest: int) -> DividedText:
        """A source as `submit` divides it, for a model that reads so many tokens. Where no sentences are
        translated, it is one."""
        data = self.task.data
        (name, *_) = data.input_names
        text = source[name] if isinstance(source, Mapping) else source
        if not isinstance(text, str):
            text = input_text(cast(Mapping[str, object], source), name, data.task)
        if not can_translate(self.task) or TURN in text:
            return DividedText((text,), ("", ""), (True,))
        return self.divided(text, longest)

    def _read_sentences(self, text: DividedText, source: Source) -> list[str]:
        """What the model reads of each sentence: it after its context, and nothing of one that is copied."""
        data = self.task.data
        context = context_in(source, data) if isinstance(source, Mapping) else []
        words = [sentence for sentence, is_read in zip(text.sentences, text.read, strict=True) if is_read]
        inputs = iter(self.in_context([*context, *with_code(words)])[len(context) :])
        return [next(inputs) if is_read else "" for is_read in text.read]

    def sentences_of(self, source: Source, *, divide: bool | None = None, **options: Option) -> list[str]:
        """What the model reads of a source with `submit`: its sentences, each after its context; empty where
        one is copied, such as a blank line.

        Args:
          source: as in `submit`.
          divide: as in `submit`.
          options: of the search.
        """
        whole = self.task.source_of(source)
        text = self._divided(source, self.settings(None, options).buckets[-1])
        several = self._divides(divide) and not text.is_sentence
        return self._read_sentences(text, source) if several else [whole]

    def truncates(self, source: Source, target: str = "") -> bool:
        """Whether `score` reads only a part of a source or of a target. Raises UserError if it is no text."""
        instance("target", target, str)
        settings = within_positions(self.config.decoding, self.longest, self.longest_source)
        longest = settings.buckets[-1]
        text = self.task.read(self.task.source_of(source), longest)
        (example,) = self.task.input_examples([(text, "")], longest)
        size = len(self.tokenizers[1].encode(one_line(target)))
        return example[TRUNCATED] or size >= min(longest + settings.extra_length, self.longest or LONGEST)

    def warm_up(  # type: ignore[override]
        self, *, prefix: bool = False, terms: bool = False, **options: Option
    ) -> None:
        """Compiles all programs that a search with these options can need.

        Args:
          prefix: those of sentences with a prefix, in place of those without.
          terms: those of sentences with up to four different terms, in place of those without.
          options: as in `stream`: with `alignments` and others also what these need.

        Raises:
          UserError: an option is invalid, or this search cannot have terms or a prefix.
        """
        prepare(self.preparation(prefix=prefix, terms=terms, **options))

    def preparation(  # type: ignore[override]
        self, *, prefix: bool = False, terms: bool = False, **options: Option
    ) -> Preparation:
        """What `warm_up` does, in stages, as `Decoder.preparation`."""
        has_prefix, has_terms = true_or_false("prefix", prefix), true_or_false("terms", terms)
        word = self.task.text_steering.some_word() if has_prefix or has_terms else ""
        request = TranslationRequest("", "", word * has_prefix, (word,) * has_terms)
        return self._preparation({1: request} if word else {}, *NO_EXTRAS.asked(self.extras, options))

    def score(
        self,
        sources: Iterable[Source],
        targets: Iterable[str | Target],
        *,
        lines: Sequence[int] | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Float[np.ndarray, " pairs"]:
        """log P(target | source) of every pair, in nats, including <eos>, without the code of a language that
        every output begins with.

        A search's `Hypothesis.log_probability` is that of its `ids`, up to rounding. That of its text is the
        same if the tokenizer divides the text into the same tokens; a search also finds other divisions.

        Args:
          sources: sentences.
          targets: one translation each: its text, or its ids with <eos> at the end, as in `Hypothesis.ids`.
          lines: line numbers for warnings. None: 1, 2, 3, ...
          source_language: as in `between`.
          target_language: as in `between`.

        Raises:
          UserError: the numbers of sources and targets differ, or ids are not those of a translation.
        """
        translator = self.between(source_language, target_language)
        settings = within_positions(self.config.decoding, self.longest, self.longest_source)
        log_p, _ = translator._log_probabilities(sources, targets, lines, settings)
        return log_p

    def log_probabilities(
        self,
        sources: Iterable[Source],
        targets: Iterable[str | Target],
        *,
        lines: Sequence[int] | None = None,
    ) -> tuple[Float[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
        """As `score`, of thousands of pairs: in batches of more different lengths, each of which is compiled
        once. Returns also of how many tokens each number is the sum. Arguments and errors as of `score`."""
        settings = within_positions(self.config.decoding, self.longest, self.longest_source)
        lengths = {length for length in FINE if length < settings.buckets[-1]}
        settings = dataclasses.replace(settings, buckets=tuple(sorted(lengths.union(settings.buckets))))
        return self._log_probabilities(sources, targets, lines, settings)

    def _log_probabilities(
        self,
        sources: Iterable[Source],
        targets: Iterable[str | Target],
        lines: Sequence[int] | None,
        settings: DecodingConfig,
    ) -> tuple[Float[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
        for name, side in ("sources", sources), ("targets", targets):
            if not is_list(side):
                raise UserError(f"{name} must be a list with one for each pair, not {shown(side)}")
        last = settings.buckets[-1]
        texts = [self.task.read(self.task.source_of(source), last) for source in sources]
        targets = list(targets)
        if len(texts) != len(targets):
            raise UserError(
                f"give two lists of equal length, not {counted(len(texts), 'source')} and "
                f"{counted(len(targets), 'target')}"
            )
        refuse_forked()
        instance("lines", lines, Sequence[int] | None)
        if lines is not None and len(lines) != len(texts):
            numbers = counted(len(lines), "line number")
            raise UserError(f"{numbers} for {counted(len(texts), 'source')}: give one for each")
        pad = self.task.special.pad
        lines = lines or range(1, len(texts) + 1)
        source_ids = self.task.ids(texts, self.tokenizers[0], last, lines)
        target_ids = ids_of_targets(
            self.task,
            targets,
            lines,
            longest=last + settings.extra_length,
            most=self.longest or LONGEST,
            copies=self.system.copies,
        )
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        scores = np.zeros(len(texts), np.float32)
        forced = self.task.forced_ids(("", ""))
        is_forced = (ids[: len(forced)] == [*forced] for ids in target_ids)
        counts = np.array(list(map(len, target_ids)), np.int64) - len(forced) * np.array(
            [*is_forced], np.int64
        )
        table = _least((self.longest, self.longest_source))
        for rows, length, count in of_any_length(lengths, settings, table):
            source, target = (
                padded([ids[row] for row in rows], length, count, pad) for ids in (source_ids, target_ids)
            )
            source_rows, target_rows = shard_rows(source, target)
            inputs = {"source": source_rows}
            of_tokens = scored(self.system, self.model, self.variables, inputs, target_rows)
            log_p = without_start(of_tokens.log_p, target, forced)
            scores[rows] = log_p.sum(axis=1)[: len(rows)]
        return scores, counts

    def score_programs(self) -> Iterator[Job]:
        """What compiles the programs that `score` can need."""
        settings = within_positions(self.config.decoding, self.longest, self.longest_source)
        longest = settings.buckets[-1] + settings.extra_length
        table = _least((self.longest, self.longest_source))
        for length, rows in dict.fromkeys(shapes_of_any_length(settings, table, longest)):
            yield functools.partial(self._prepare_scores, length, rows)

    def _prepare_scores(self, length: int, rows: int) -> None:
        refuse_forked()
        (ids,) = shard_rows(padded([[self.task.special.eos]] * rows, length, rows, self.task.special.pad))
        compile_for(scored, self.system, self.model, self.variables, {"source": ids}, ids)

    def subwords(self, source: str) -> list[str]:
        """The subwords of a source sentence: the columns of an alignment, except <eos>. Raises UserError if
        it is no text."""
        instance("source", source, str)
        tokenizer = self.tokenizers[0].for_source(source)
        return tokenizer.pieces(tokenizer.encode(one_line(source)))

    def source_row(self, source: str, **options: Option) -> Int[np.ndarray, "1 s"]:
        """The ids of a source sentence in a search with these options: truncated to the largest bucket,
        closed by <eos>, padded to its bucket. Raises UserError if it is no text, or an option is invalid."""
        instance("source", source, str)
        settings = self.settings(None, options)
        longest = settings.buckets[-1]
        (ids,) = self.task.ids([self.task.read(source, longest)], self.tokenizers[0], longest)
        return padded([ids], bucket_of(len(ids), settings), 1, self.task.special.pad)

    def source_tokens(self, source: str, **options: Option) -> list[str]:
        """The subwords of a source sentence that a search with these options reads: the columns of an
        alignment, except <eos>. Raises UserError as `source_row`."""
        instance("source", source, str)
        if not has_text(source):
            return []
        special = self.task.special
        ids = [
            index
            for index in self.source_row(source, **options)[0]
            if index not in (special.pad, special.eos)
        ]
        return self.tokenizers[0].for_source(source).pieces(ids)

    def as_trained(self, hypothesis: Hypothesis) -> str:
        """A translation in the form of this model's training text: as subwords if that is presegmented."""
        instance("hypothesis", hypothesis, Hypothesis)
        is_presegmented = self.tokenizers[1].presegmented
        return " ".join(hypothesis.tokens) if is_presegmented else hypothesis.text


def _least(limits: Iterable[int | None]) -> int | None:
    """The smallest limit. None: there is none."""
    return min((limit for limit in limits if limit is not None), default=None)
