"""Text in, text out: what translation and the other tasks of text share."""

import copy
import itertools
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
from jaxtyping import Int

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config, text_data
from transformer.config.pairs import mix_stages
from transformer.config.ranges import typed
from transformer.config.training import BleuTokenizer
from transformer.data.epochs import SampledPlan, TemperatureOrder, by_first_ids
from transformer.data.plans import Batching, Plan, eligible_examples
from transformer.data.sequences import Arrays, Example, Field, Fields, id_dtype, side_lengths
from transformer.data.sources.corpora import check_text, open_corpus
from transformer.data.sources.source import InMemory
from transformer.data.sources.text_files import one_line
from transformer.data.sources.unusual import IDENTIFIER, OF_SAMPLE, Filter, distributions, unusual_pairs
from transformer.data.store import Corpus, Pair, Progress, Records, TextRecord, silent
from transformer.data.tokenizers.sampled_examples import drawn_by, with_method
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import IMPORTED, Tokenizers, corpus_tokenizers
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches import shortlist
from transformer.decoding.searches.shortlist import Shortlist
from transformer.runtime.errors import UserError, counted
from transformer.runtime.text import has_text
from transformer.tasks.metrics.scores import Metric, References, Score
from transformer.tasks.outputs import TRUNCATED, Lines
from transformer.tasks.task import Evaluation
from transformer.tasks.text import Hypothesis, hypotheses
from transformer.tasks.texts.languages import (
    SIDES,
    TextInLanguages,
    check_context,
    check_turns,
    in_languages,
    with_vocabulary,
)
from transformer.tasks.texts.requests import Sentence, by_name, direction_of, languages_of, source_of
from transformer.tasks.vocabulary import stored_tokenizer

# Warnings of lines that are read in another way than they are written: with line breaks, or too long.


log = logging.getLogger("transformer")
NAMED = 3  # lines that get a warning each


DROPOUTS = {10_000: 0.3, 100_000: 0.2, 1_000_000: 0.1}
"""Dropout for fewer training pairs than this. Published are 0.3 for 29,000 (Wu et al. 2021, Multi30k) and
160,000 (fairseq's recipe of IWSLT 2014), and 0.1 for 4.5 million (Vaswani et al. 2017, section 5.4), with
larger models that read the text many times. The presets that this is for are small, and read a million pairs
less than once."""


def dropout_for(pairs: int) -> float:
    """The dropout of a small model for so many training pairs."""
    return next((dropout for size, dropout in DROPOUTS.items() if pairs < size), 0.0)


def warn_of_changed(
    lines: Sequence[int],
    texts: Sequence[str],
    as_read: Sequence[str],
    lengths: Sequence[int],
    longest: int,
    prefix: str,
) -> None:
    """Logs the lines that have line breaks inside or are truncated: the first ones, then how many there are.

    Args:
      lines: their numbers. Empty: none is logged.
      texts: as they are written.
      as_read: the same in one line.
      lengths: in tokens, without <eos>.
      longest: the most tokens that are read, with <eos>.
      prefix: what of a line they are, such as "the target of ", or empty.
    """
    inside = {
        line: "its line breaks are read as spaces"
        for line, text, in_one_line in zip(lines, texts, as_read, strict=False)
        if text.strip("\r\n") != in_one_line
    }
    truncated = {
        line: f"truncated from {length} to {counted(longest - 1, 'subword')}"
        for line, length in zip(lines, lengths, strict=False)
        if length >= longest
    }
    for changed, problem in (inside, "have line breaks inside"), (truncated, "were truncated"):
        for line in itertools.islice(changed, NAMED):
            log.warning("%sline %d: %s", prefix, line, changed[line])
        if len(changed) > NAMED:
            more, last = len(changed) - NAMED, max(changed)
            log.warning("%d more lines, up to %sline %d, %s", more, prefix, last, problem)


LONGER = 2.0  # times the median of sources that targets have before they look swapped


class TextToText(TextInLanguages, Lines):
    """A task whose inputs and outputs are texts, such as translation. A subclass has `criterion` and
    `scorers`.

    Args:
      config: of the run.
      tokenizers: of source and target, the same object if the vocabulary is joint. Where texts begin with
        the code of their language, the languages of `config` count if there are some.
      shortlist: which target tokens a source may need. None: this is not known.

    Raises:
      UserError: the vocabulary has no code of such a language.
    """

    scorers: ClassVar[Mapping[Metric, Callable[..., Score]]]
    """(what `compared` gives) -> a score; the criterion first."""
    unit = "pairs"
    writer = "transformer.commands.translations"
    service = "transformer.serve.services.translation"
    inputs = ("source",)

    @typed
    def __init__(self, config: Config, tokenizers: Tokenizers, shortlist: Shortlist | None = None) -> None:
        super().__init__(config)
        self.shortlist, self.special, self.data = shortlist, config.model.special, text_data(config)
        self.tokenizers = in_languages(tokenizers, self.data)
        self.fields = {side: Field(fill=self.special.pad) for side in SIDES}
        self._starts = {}

    def again(self, config: Config, tokenizers: Tokenizers) -> Self:
        """As `TextInLanguages.again`, with the same shortlist, table of pieces and what else was learned."""
        task = copy.copy(self)
        TextToText.__init__(task, config, tokenizers, self.shortlist)
        return task

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if text files are missing, or their options are inconsistent."""
        check_text(text_data(config))

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """The libraries of all tasks, and what tells languages, and what shards are prepared by."""
        data = text_data(config)
        extra_libraries = [IDENTIFIER] * ("languages" in data.filters), ["ray"] * (data.engine == "ray")
        return (*super().libraries(config), *itertools.chain(*extra_libraries))

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """The pairs of text files, a built-in corpus or a TFDS dataset."""
        return open_corpus(text_data(config), progress)

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> Self:
        """A task with tokenizers from the config's files, or trained on the corpus."""
        tokenizers = corpus_tokenizers(corpus, text_data(config), config.model.special, progress)
        return cls(with_vocabulary(config, tokenizers), tokenizers)

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """With the tokenizers of a run directory: source.model, and target.model if that is another; and with
        its shortlist.bin, if it has one."""
        model = config.model
        source = stored_tokenizer(folder / "source.model", config, model.vocab_size)
        separate = source.one_language or not text_data(config).joint_vocabulary
        target = source
        if separate or os.path.lexists(folder / "target.model"):
            target = stored_tokenizer(folder / "target.model", config, model.output_size)
        has_shortlist = os.path.lexists(folder / shortlist.FILE)
        table = Shortlist.read(folder / shortlist.FILE, model.output_size) if has_shortlist else None
        return cls(config, (source, target), table)

    @classmethod
    def without_corpus(cls, config: Config) -> Self:
        """A task with the vocabulary size of the options, and without tokenizers."""
        data = text_data(config)
        model = config.model
        if not model.vocab_size:
            target_size = None if data.joint_vocabulary else data.vocab_size
            model = replace(model, vocab_size=data.vocab_size, target_vocab_size=target_size)
        return cls(replace(config, model=model), cast(Tokenizers, ()))

    @classmethod
    def remarks(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> list[str]:
        """A line about unusual pairs of text files, such as those that look swapped."""
        data = text_data(config)
        if not data.has_files:
            return []
        is_translated = data.task == "translation" and not (data.directions or data.context or data.group)
        train = corpus.splits["train"]
        sample: Records = corpus.sample or train
        rules = Filter(data.filters)
        if data.filter and data.pairs_of_a_shard:  # whose rules are applied later, and elsewhere
            sample = InMemory(list(filter(rules.keeps, itertools.islice(iter(sample), OF_SAMPLE))))
        remark = unusual_pairs(sample, is_translated, data.languages, progress, len(train))
        drawn = distributions(sample) if data.check and is_translated else ""
        return [line for line in (drawn, remark, rules.described("a sample of ")) if line]

    @property
    def drops(self) -> str:
        """Which examples the plan drops, with those that filters leave out where shards are made."""
        filtered = self.data.filter and self.data.pairs_of_a_shard
        return super().drops + ", or left out by --data.filter" * bool(filtered)

    def decide(self, corpus: Corpus) -> list[str]:
        """How subwords are sampled and scores computed. Reports the languages that the file names give."""
        if not self.data.directions:
            sides = zip(SIDES, self.tokenizers, strict=True)
            options = [f"--data.{side}-language" for side, x in sides if x.has_codes and not x.start]
            for tokenizer in self.tokenizers:
                tag = "" if tokenizer.kind in IMPORTED else ", or --data.default-tag"
                tokenizer.check_language(" and ".join(options) + tag)
        self.data = data = with_method(self.data, self.tokenizers)
        self.config = replace(self.config, data=data)
        check_context(data, self.tokenizers)
        notes = self._decide_dropout(len(corpus.splits["train"])) + self._unused()
        named_pair = data.source_language, data.target_language
        if data.has_files and not data.directions and data.languages != named_pair:
            named = f"languages by the names of the files: {data.direction}"
            notes.append(f"{named} (--data.source-language, --data.target-language)")
        if len(data.directions) > 1:  # each decides for itself
            return notes
        validation = corpus.splits["validation"]
        indices = range(min(len(validation), self.config.training.evaluate_sentences))
        note = self.decide_scores(validation.__getitems__(indices))
        return [*notes, note] if note else notes

    def _unused(self) -> list[str]:
        """Warnings of the corpora of a mixture of which training draws nothing."""
        steps, stages = self.config.training.steps, mix_stages(self.data.mix)
        drawn = {name for stage in stages if stage.start < steps for name, x in stage.weights.items() if x}
        unused = [name for name in self.data.mixed if name not in drawn]
        return [f"Warning: --data.mix gives {x} no weight in the {steps:,} updates" for x in unused]

    def _decide_dropout(self, count: int) -> list[str]:
        """Decides the dropout for so many pairs, if options leave that open. Returns a note for people."""
        config, training = self.config, self.config.training
        if training.dropout_by != "auto":
            return []
        dropout = config.model.dropout
        if self.data.has_files and not (dropout or training.init_from):
            dropout = dropout_for(count)
        model, training = replace(config.model, dropout=dropout), replace(training, dropout_by="option")
        self.config = replace(config, model=model, training=training)
        if dropout == config.model.dropout:
            return []
        return [f"dropout {dropout:g}, for {counted(count, 'training pair')} (--model.dropout)"]

    def decide_scores(self, records: Sequence[Sentence], tokenize: BleuTokenizer | None = None) -> str:
        """Decides in its config how scores are computed, where options leave it open. Returns a sentence
        about it, or nothing.

        Args:
          records: some with references.
          tokenize: sacreBLEU's tokenizer, if one was asked for.

        Raises:
          UserError: scores cannot be computed so.
        """
        if tokenize:
            raise UserError(f"--bleu-tokenize: {self.data.task} are not scored by BLEU; leave it out")
        return ""

    def save(self, folder: Path) -> None:
        """Writes the tokenizers, and the shortlist if there is one."""
        if self.shortlist:
            self.shortlist.write(folder / shortlist.FILE)
        source, target = self.tokenizers
        source.save(folder / "source.model")
        separate = target.one_language or not self.data.joint_vocabulary
        if separate or target.content() != source.content():
            target.save(folder / "target.model")

    def content(self) -> bytes:
        """The tokenizers' files, how texts begin, and where sources are cut."""
        starts = [tokenizer.start for tokenizer in self.tokenizers if tokenizer.has_codes]
        files = (tokenizer.content() for tokenizer in self.tokenizers)
        cut = f"cut at {self.data.max_length}".encode() if self.data.long_sources == "cut" else b""
        context = f"{self.data.context} before, within {self.data.max_length}".encode()
        contents = [*files, repr(starts).encode() if starts else b"", cut]
        return b"".join([*contents, context] if self.data.context else contents)

    # To batches

    def batching(self) -> Batching:
        """Targets may be shorter than sources."""
        longest = self.data.max_target_length or self.data.max_length
        buckets = tuple((length, min(length, longest)) for length in self.data.lengths)
        return replace(super().batching(), buckets=buckets)

    def examples(self, records: Sequence[Sentence], *, truncate: bool = False) -> list[Example]:
        """The ids of both sides, each closed by <eos>."""
        source, target = self.data.max_length, self.data.max_target_length or self.data.max_length
        longest = [
            source - 1 if truncate or self.data.long_sources == "cut" else None,
            target - 1 if truncate else None,
        ]
        encoded = (
            [[*ids[: longest[side]], self.special.eos] for ids in self._encoded(records, side)]
            for side in range(len(SIDES))
        )
        return [dict(zip(SIDES, pair, strict=True)) for pair in zip(*encoded, strict=True)]

    def _encoded(self, records: Sequence[Sentence], side: int) -> list[list[int]]:
        """The ids of a side of records, without <eos>."""
        tokenizer = self.tokenizers[side]
        begin = len(tokenizer.start)
        texts = [record[:2][side] for record in records]
        if side == 0:
            texts = [self.read(text, self.data.max_length) for text in texts]
        check_turns(texts, tokenizer)
        encoded = tokenizer.encode_all(texts)
        if all(type(record) is tuple for record in records):  # which say nothing of their languages
            tokenizer.check_language(f"--data.{SIDES[side]}-language")
            return encoded
        return [
            [*self.start(record, side), *ids[begin:]] for record, ids in zip(records, encoded, strict=True)
        ]

    @property
    def stored_fields(self) -> Fields:
        """Ids in as few bytes as they need."""
        sides = zip(SIDES, self.tokenizers, strict=True)
        return {side: Field(id_dtype(tokenizer.num_ids)) for side, tokenizer in sides}

    def stored_examples(self, records: Sequence[Sentence]) -> list[Example]:
        """The ids of both sides; none of a side without text."""
        examples: list[Example] = []
        for pair, example in zip(records, self.examples(records), strict=True):
            sides = zip(SIDES, pair[:2], strict=True)
            examples.append({side: example[side] if has_text(text) else [] for side, text in sides})
        return examples

    def texts_of_fields(self, record: Sentence) -> Mapping[str, tuple[str, Tokenizer]]:
        return dict(zip(SIDES, zip(record[:2], self.tokenizers, strict=True), strict=True))

    def filled(self, record: Sentence) -> Mapping[str, bool]:
        """Whether there is a source, and a reference."""
        return {"source": has_text(record[0]), "reference": has_text(record[1])}

    def hint(self, lengths: Int[np.ndarray, "examples sides"]) -> str:
        """Sources and targets may be swapped if targets are much longer."""
        filled = lengths[(lengths > 0).all(axis=1)]
        if not len(filled):
            return ""
        source, target = np.median(filled, axis=0)
        if target <= LONGER * source:
            return ""
        columns = "--data.inputs and --data.target" if self.data.has_columns else "source and target"
        return f" (targets have {target / source:.1f} times the tokens of sources: are {columns} swapped?)"

    def plan(self, records: Records, examples: Arrays, progress: Progress = silent) -> Plan:
        """The plan of the training batches, with subword sampling and a temperature over directions if the
        config asks for them."""
        data, draw, order = self.data, None, None
        if not data.subword_sampling and data.temperature == 1:
            return super().plan(records, examples, progress)
        batching, lengths = self.batching(), side_lengths(examples)
        if data.subword_sampling:
            draw = drawn_by(data, dict(zip(SIDES, self.tokenizers, strict=True)), records, examples)
        if data.temperature != 1:
            groups = by_first_ids(examples, eligible_examples(lengths, batching.buckets[-1]))
            order = TemperatureOrder(groups, data.temperature, data.seed) if groups else None
        plan = SampledPlan(lengths, batching, draw, progress, order)
        self.check_plan(plan, len(records), lengths)
        return plan

    # From decoding

    def input_examples(
        self, records: Sequence[Sentence], longest: int, lines: Sequence[int] = ()
    ) -> list[Example]:
        """The ids of the sources, closed by <eos>, truncated to `longest`. Warns of changed lines."""
        sources = [self.read(record[0], longest) for record in records]
        starts, _ = ([self.start(record, side) for record in records] for side in range(len(SIDES)))
        encoded = self._whole_ids(sources, self.tokenizers[0], longest, lines, "", starts)
        return [
            {"source": [*ids[: longest - 1], self.special.eos], TRUNCATED: len(ids) >= longest}
            for ids in encoded
        ]

    def check_search(self, settings: DecodingConfig) -> None:
        """Raises UserError if a shortlist is asked for, and there is none."""
        if settings.shortlist and self.shortlist is None:
            raise UserError(
                "--decoding.shortlist: this run has no lexical shortlist; make one with transformer shortlist"
            )

    def source_of(self, value: object) -> str:
        """The text that the model reads: a text as it is, or named inputs together.

        Raises:
          UserError: it is neither, an input is missing, or a text does not begin with the name of the first
            of several inputs.
        """
        return source_of(value, self.data)

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizers[1]

    def pieces(self, ids: Sequence[int], record: Sentence) -> list[str]:
        """The subword of each id."""
        return self.tokenizers[1].for_source(record[0]).pieces(ids)

    def spell(self, ids: Sequence[int]) -> str:
        return self.tokenizers[1].decode(ids)

    def ids(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        longest: int,
        lines: Sequence[int] = (),
        prefix: str = "",
        starts: Sequence[tuple[int, ...]] | None = None,
    ) -> list[list[int]]:
        """Ids closed by <eos>, truncated to `longest`. Warns of changed lines, or of a part such as "the
        target of ". Texts begin with `starts`. None: as the tokenizer's, whose language must be chosen."""
        encoded = self._whole_ids(texts, tokenizer, longest, lines, prefix, starts)
        return [[*ids[: longest - 1], tokenizer.special.eos] for ids in encoded]

    def _whole_ids(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        longest: int,
        lines: Sequence[int],
        prefix: str,
        starts: Sequence[tuple[int, ...]] | None,
    ) -> list[list[int]]:
        """The ids of texts, neither truncated nor closed by <eos>. Warns as `ids`."""
        if starts is None:
            for side, side_tokenizer in zip(SIDES, self.tokenizers, strict=True):
                if texts:
                    side_tokenizer.check_language(f"--{side}-language")
            starts = [tokenizer.start] * len(texts)
        check_turns(texts, tokenizer, lines)
        whole = [one_line(text) for text in texts]
        begin = len(tokenizer.start)
        encoded = [
            [*start, *tokenizer.encode(text)[begin:]] for start, text in zip(starts, whole, strict=True)
        ]
        warn_of_changed(lines, texts, whole, list(map(len, encoded)), longest, prefix)
        self._unknown.warn(lines, whole, encoded, tokenizer, prefix)
        return encoded

    def truncated(self, records: Sequence[Sentence], longest: int) -> str:
        """A warning if sources of a split are longer than the search reads."""
        records_as_read = [self.as_read(record, longest) for record in records]
        count = sum(len(ids) >= longest for ids in self._encoded(records_as_read, 0))
        if not count:
            return ""
        return (
            f"{count:,} of {counted(len(records), 'source')} of the %s text truncated to "
            f"{counted(longest - 1, 'subword')}: see --decoding.buckets"
        )

    def is_empty(self, record: Sentence) -> bool:
        """Whether there is no source to translate."""
        return not has_text(record[0])

    def empty_output(self) -> Hypothesis:
        """The translation of an empty source."""
        return Hypothesis("", (), 0.0, 0.0)

    def outputs(self, result: SearchResult, record: Sentence, n_best: int | None) -> list[Hypothesis]:
        """The hypotheses of a `SearchResult`.

        Raises:
          UserError: there is none.
        """
        tokenizer = self.tokenizers[1].for_source(record[0])
        return hypotheses(result, tokenizer, self.special, n_best, self.impossible(record))

    def parts(self, evaluation: Evaluation) -> Mapping[str, Evaluation]:
        """The evaluation of each direction if there are several, or of each group."""
        if len(self.data.directions) > 1:
            return by_name(evaluation, direction_of)
        parts = by_name(evaluation, lambda record: getattr(record, "group", ""))
        return {} if "" in parts else parts

    def references(self, record: Sentence) -> list[str]:
        """The references of a record, as outputs are compared with them."""
        further = record.references if isinstance(record, TextRecord) else ()
        return [self.tokenizers[1].plain(text) for text in (record[1], *further)]

    def referenced(self, references: Sequence[str]) -> TextRecord:
        """A record of nothing but references. An empty one counts only if there is no other."""
        first, *further = list(filter(has_text, references)) or [""]
        return TextRecord("", first, tuple(further))

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        def of(scorer: Callable[..., Score]) -> Callable[[Evaluation], Score]:
            return lambda evaluation: scorer(*self.compared(evaluation))

        return {measure: of(scorer) for measure, scorer in self.scorers.items()}

    def compared(self, evaluation: Evaluation) -> tuple[Any, Any]:
        """What scores compare; by default texts, as `texts`."""
        return self.texts(evaluation)

    def texts(self, evaluation: Evaluation) -> tuple[list[str], References]:
        """Outputs, and the reference or the references of each."""
        reference_lists = map(self.references, evaluation.records)
        return list(evaluation.outputs), [texts[0] if len(texts) == 1 else texts for texts in reference_lists]

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood in nats per token, and its exponential."""
        return {"nll": means["nll"], "perplexity": math.exp(min(means["nll"], 700))}

    def shown(self, record: Sentence, output: str) -> tuple[str, str, str]:
        return record[0], self.tokenizers[1].plain(record[1]), output

    # Lines in, lines out

    def record(self, line: str) -> Pair:
        """A source without a translation."""
        return line, ""

    def example_line(self, record: Sentence) -> str:
        return record[0]

    def example_command(self, record: Sentence, decode: str) -> str:
        """The command that decodes the record, with its languages as far as the options leave them open."""
        sides = zip(SIDES, self.tokenizers, languages_of(record), strict=False)  # --plan has no tokenizers
        options = (f" --{side}-language {code}" for side, x, code in sides if code and not x.start)
        return super().example_command(record, decode + "".join(options))

    def line(self, output: Hypothesis) -> str:
        """The translation, even if the model generated a line break."""
        return one_line(output.text)
