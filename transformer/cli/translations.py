"""Translations: what a line of decode.py's input asks for, what is written of it, and the scores."""

import copy
import dataclasses
import functools
import itertools
import json
import logging
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import input_lines
from transformer.cli.request_lines import lines_in_context, request_of
from transformer.cli.texts import Texts
from transformer.cli.writer import OF_JSON, OF_TRANSLATIONS, Numbered, Written, refuse
from transformer.config import BeamConfig
from transformer.data.sources.context import SEPARATOR, History, context_of, sentence_of
from transformer.data.sources.text_files import one_line, read_lines
from transformer.decoding.terms import SIZES
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, brief
from transformer.runtime.text import has_text, without_formatting, without_invisible
from transformer.tasks.glossary import Glossary
from transformer.tasks.hypotheses import Hypothesis
from transformer.tasks.requests import TranslationRequest, own_sentence, source_of
from transformer.tasks.task import Evaluation
from transformer.tasks.vocabularies import SIDES
from transformer.translator.ensemble import shares_of
from transformer.translator.rescoring import TOGETHER, rescored
from transformer.translator.search_inputs import room_of
from transformer.translator.search_outputs import identity
from transformer.translator.translator import Translator

if TYPE_CHECKING:
    from transformer.translator.explorer.explorer import Explorer

TRAINED = "trained"
"""The value of --choices for the labels of the training text."""
NOT_WITH_HISTORY = ("tsv", "jsonl", "glossary", "keep", "rescore", "choices", "resume")
NOT_WITH_CHOICES = (*OF_JSON, "glossary", "keep", "rescore")
NAMED = 3  # terms of a line that get a warning each, if they are dropped
log = logging.getLogger("transformer")
T = TypeVar("T")


class RequestParser:
    """Reads lines by `--tsv`, `--glossary` and `--keep`.

    Args:
      arguments: the command line.
      translator: of the run.

    Raises:
      UserError: the glossary or the regular expression is invalid, or the search cannot do it.
    """

    def __init__(self, arguments: DecodeArguments, translator: Translator) -> None:
        search = arguments.decoding
        self.translator = translator
        self.options = vars(search)
        self._warned = False
        can_require_terms = isinstance(search, BeamConfig) and search.groups == 1
        if (arguments.glossary or arguments.keep) and not can_require_terms:
            option = "glossary" if arguments.glossary else "keep"
            raise UserError(f"--{option}: only --method beam, without --groups, can find terms")
        path = arguments.glossary
        self.glossary = Glossary.read(path, arguments.keep) if path else Glossary({}, arguments.keep)
        self.arguments = arguments
        self.identity = (arguments.tsv, arguments.jsonl, self.glossary.entries, arguments.keep)

    def __call__(self, number: int, line: str) -> TranslationRequest:
        """What a line asks for. Raises UserError as `request_of`, and for an unknown language."""
        if "\t" in line and not (self.arguments.tsv or self.arguments.jsonl or self._warned):
            self._warned = True
            log.warning("line %d: a tab is read as a space; --tsv reads a prefix and terms after it", number)
        request = request_of(number, line, self.arguments, self.translator.task.data)
        try:
            for side in range(len(SIDES)):
                self.translator.task.start(request, side)
        except UserError as error:
            raise UserError(f"line {number}: {error}" if any(request[4:]) else str(error)) from error
        source = request.source
        line_terms = tuple(filter(has_text, map(without_formatting, request.terms)))
        if not has_text(source) and (has_text(request.prefix) or line_terms):
            log.warning("line %d: an empty sentence stays empty; its prefix and terms do not count", number)
        glossary_terms = tuple(self._glossary_terms(number, request, line_terms))
        return request._replace(terms=line_terms + glossary_terms)

    def _glossary_terms(
        self, number: int, request: TranslationRequest, line_terms: tuple[str, ...]
    ) -> Iterator[str]:
        """The terms of the glossary that a line does not have itself. Those that no search can hold are
        dropped, with a warning."""
        try:
            terms = self.glossary.terms(own_sentence(request.source, self.translator.task.data))
            glossary_terms = [text for text in terms if text not in line_terms]
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        if not glossary_terms:
            return
        size_of = functools.cache(lambda text: len(self.translator.task.term(text)))
        settings = self.translator.settings(None, self.options)
        room = room_of(self.translator.task, request._replace(prefix="", terms=()), settings)
        room -= sum(map(size_of, line_terms))
        required = set(line_terms)
        dropped = Counter[str]()
        for text in glossary_terms:
            try:
                if len(required | {text}) > SIZES[-1]:
                    raise UserError(f"the term {brief(text)} is one more than the {SIZES[-1]} of a search")
                if (size := size_of(text)) > room:
                    raise UserError(f"the output has no room for the term {brief(text)} (see --extra-length)")
            except UserError as error:
                dropped[str(error)] += 1
            else:
                room -= size
                required.add(text)
                yield text
        for why, count in itertools.islice(dropped.items(), NAMED):
            log.warning("line %d: %s; it is dropped%s", number, why, f" {count:,} times" * (count > 1))
        if more := sum(dropped.values()) - sum(list(dropped.values())[:NAMED]):
            log.warning("line %d: %s more terms are dropped", number, f"{more:,}")


class Translations(Texts):
    """Translations as text, with scores, or as JSON."""

    does = "translates text"
    uses = (*OF_TRANSLATIONS, "stream")
    instead: ClassVar = {"language": "languages of texts are --source-language and --target-language"}

    @classmethod
    def write_file(cls, arguments: DecodeArguments) -> bool:
        """With --stream: text that is translated while it arrives."""
        if arguments.stream:
            from transformer.cli.simultaneous import translate_arriving

            cls.refuse_unused(arguments)
            translate_arriving(arguments)
        return arguments.stream

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Translator:
        """The model, and those that re-rank its hypotheses."""
        arguments = self.arguments
        self.is_scored = bool(arguments.reference)
        if arguments.bleu_tokenize and not arguments.reference:
            raise UserError("--bleu-tokenize needs --reference: without it nothing is scored")
        runs = run_dir if not arguments.ensemble else [run_dir, *arguments.ensemble]
        loaded = Translator.load(
            runs, checkpoint, int8=int8, weights=arguments.weights or None, mean=arguments.mean
        )
        languages = arguments.source_language, arguments.target_language
        self.translator = loaded.between(*languages)
        self.translator.settings(self.n_best, self.options)
        if self.is_scored:  # refuses what cannot be computed before anything is translated
            copy.copy(self.translator.task).decide_scores([], arguments.bleu_tokenize)
        self.request_parser = RequestParser(arguments, self.translator)
        if arguments.history:
            refuse(arguments, NOT_WITH_HISTORY, "with --history each line is a turn of one conversation")
        if arguments.history and self.translator.task.data.context:
            raise UserError("--history: this model reads each line after those before it; leave it out")
        if arguments.history < 0:
            raise UserError(f"--history {arguments.history}: must be the number of earlier turns")
        if arguments.target_length < 0:
            raise UserError(f"--target-length {arguments.target_length}: must be a number of words")
        source_of("", self.translator.task.data, arguments.target_length)
        if arguments.history and not self.translator.tokenizers[0].knows(SEPARATOR):
            raise UserError(
                f"--history: the vocabulary of this model has no {SEPARATOR}, so it was not trained on "
                "conversations"
            )
        if arguments.temperature_of_choices != 1.0 and not arguments.choices:
            raise UserError("--temperature-of-choices needs --choices: it is about their probabilities")
        if arguments.choices:
            refuse(arguments, NOT_WITH_CHOICES, "--choices writes labels and how probable they are")
            if (arguments.n_best or 1) > 1:
                raise UserError("--n-best: --choices writes one label; --format json has all of them")
            unknown = self.translator.check_choices(self._labels, arguments.temperature_of_choices)
            if unknown:
                log.warning("--choices: the training text has no label %s", ", ".join(unknown))
        if arguments.rescore_weights and not arguments.rescore:
            raise UserError("--rescore-weights needs --rescore RUN: it weighs those runs")
        ranked = (
            arguments.decoding.method == "mbr" or getattr(arguments.decoding, "coverage_penalty", 0.0) > 0
        )
        if arguments.rescore and ranked:
            raise UserError("--rescore replaces the scores of mbr and of --coverage-penalty: leave one out")
        if arguments.rescore and arguments.decoding.method == "greedy":
            raise UserError("--rescore chooses among several hypotheses, and greedy search finds one")
        if arguments.rescore_weights:
            shares_of(arguments.rescore_weights, len(arguments.rescore), "--rescore-weights")
        self.typed = not arguments.input and sys.stdin is not None and sys.stdin.isatty()
        rerankers = map(Translator.load, arguments.rescore)
        self.rerankers = [
            reranker.between(*languages) if reranker.tokenizers[0].has_codes else reranker
            for reranker in rerankers
        ]
        for path, reranker in zip(arguments.rescore, self.rerankers, strict=True):
            if reranker.task.data.context != self.translator.task.data.context:
                raise UserError(f"--rescore {path}: name a run with the --data.context of {run_dir}")
        return self.translator

    @classmethod
    def page(cls, arguments: DecodeArguments) -> "tuple[Explorer, str]":
        from transformer.translator.explorer.explorer import SENTENCES, explore

        loaded = Translator.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
        translator = loaded.between(arguments.source_language, arguments.target_language)
        request_parser = RequestParser(arguments, translator)
        lines = enumerate(input_lines(arguments), start=1)
        read = filter(None, lines_in_context(lines, arguments, translator.task.data))
        parsed = (request_parser(number, line) for number, line in read if line)
        requests = list(
            itertools.islice((request for request in parsed if has_text(request.source)), SENTENCES)
        )
        if any(any(request[4:]) for request in requests):
            raise UserError("--explore shows one direction: give --target-language, and none on the lines")
        if not requests:
            raise UserError("nothing to explore: the input has no sentence")
        page = explore(
            translator,
            [request.source for request in requests],
            n_best=arguments.n_best,
            prefixes=[request.prefix for request in requests],
            terms=[request.terms for request in requests],
            **vars(arguments.decoding),
        )
        sentences = f"of {page.sentences} of the input's sentences (at most {SENTENCES})"
        return page, f"{counted(page.hypotheses, 'translation')} {sentences}"

    @property
    def job(self) -> list[str]:
        arguments = self.arguments
        rerankers = [reranker.fingerprint() for reranker in self.rerankers]
        extras = dataclasses.astuple(self.extras)[:2]  # translations have no times
        settings = repr(
            [
                *(self.n_best, arguments.format, extras, arguments.decoding, self.request_parser.identity),
                *([(arguments.choices, arguments.temperature_of_choices)] if arguments.choices else []),
                *identity(self.translator, self.extras),
                *([arguments.history] if arguments.history else []),
                *([arguments.target_length] if arguments.target_length else []),
            ]
        )
        return [self.translator.fingerprint(), repr((rerankers, arguments.rescore_weights)), settings]

    def in_order(self, lines: Iterable[Numbered]) -> Iterable[Numbered]:
        """Lines after those before them, if the model reads context."""
        return lines_in_context(lines, self.arguments, self.translator.task.data)

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        if self.arguments.choices:
            yield from self._chosen(lines)
            return
        if self.arguments.history:
            yield from self._conversation(lines)
            return
        num_hypotheses = None if self.rerankers else self.n_best  # rerankers need all hypotheses
        waiting: deque[tuple[int, TranslationRequest]] = deque()

        def pairs() -> Iterator[tuple[int, Any] | None]:
            for numbered in lines:
                if numbered is None:
                    yield None
                    continue
                number, line = numbered
                try:
                    request = self.request_parser(number, line)
                except UserError as error:
                    if not self.typed:
                        raise
                    log.error("%s", error)
                    continue
                if self.rerankers and any(request[4:]):
                    raise UserError(
                        f"line {number}: --rescore ranks one direction: give --target-language, and none on "
                        "the lines"
                    )
                waiting.append((number, request))
                yield number, request

        settings = self.translator.settings(num_hypotheses, self.options)
        outputs = self.translator.outputs(pairs(), settings, num_hypotheses, self.extras)
        for group in _groups(outputs, TOGETHER if self.rerankers else 1):
            requests = [waiting.popleft() for _ in group]
            if self.rerankers and group:
                sources = [request.source for _, request in requests]
                weights = self.arguments.rescore_weights
                first_line = requests[0][0]
                group = list(rescored(sources, group, self.rerankers, first_line=first_line, weights=weights))
            for (number, request), hypotheses in zip(requests, group, strict=True):
                best = hypotheses[: self.n_best]
                yield self._text(number, request, best), best[0].text
            if not group:
                yield None

    def _conversation(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        """The answer to each line, which is read after the earlier turns."""
        history = History(self.arguments.history)
        settings = self.translator.settings(self.n_best, self.options)
        for numbered in lines:
            if numbered is None:
                yield None
                continue
            number, line = numbered
            request = self.request_parser(number, history.before(line))
            pairs = iter([(number, request)])
            (hypotheses,) = filter(None, self.translator.outputs(pairs, settings, self.n_best, self.extras))
            if has_text(line):
                history.add(line, one_line(hypotheses[0].text))
            yield self._text(number, request, hypotheses[: self.n_best]), hypotheses[0].text

    def _chosen(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        """The most probable of the labels of --choices, or the probabilities of all of them."""
        labels = self._labels
        for group in _groups(lines, TOGETHER):
            requests = [(number, self._labelled(number, line)) for number, line in group]
            texts = [request.source for _, request in requests if has_text(request.source)]
            temperature = self.arguments.temperature_of_choices
            shares = iter(self.translator.choices(texts, labels, temperature=temperature) if texts else [])
            for number, request in requests:
                probable = next(shares) if has_text(request.source) else {}
                label, share = next(iter(probable.items()), ("", 0.0))
                about = {"line": number, **self._about(request.source), "choices": probable}
                forms = {
                    "text": label,
                    "scores": f"{share:.4f}\t{label}",
                    "json": json.dumps(about, ensure_ascii=False),
                }
                yield f"{forms[self.arguments.format]}\n", label
            if not group:
                yield None

    def _labelled(self, number: int, line: str) -> TranslationRequest:
        """The request of a line that is to have a label.

        Raises:
          UserError: it asks for what only a search can do.
        """
        request = self.request_parser(number, line)
        for asked in ("prefix", "terms"):
            if getattr(request, asked):
                raise UserError(f"line {number}: {asked}: --choices searches no text; leave it out")
        return request

    @property
    def _labels(self) -> tuple[str, ...]:
        """The labels of --choices."""
        return () if self.arguments.choices == (TRAINED,) else self.arguments.choices

    def _text(self, number: int, request: TranslationRequest, hypotheses: list[Hypothesis]) -> str:
        if self.arguments.format == "json":
            return self._json(number, request, hypotheses) + "\n"
        return self.lines(hypotheses)

    def _json(self, number: int, request: TranslationRequest, hypotheses: list[Hypothesis]) -> str:
        tokens = self._source_tokens(request)
        about: Json = {"line": number, **self._about(request.source), "source_tokens": tokens}
        names = ("prefix", "terms", "source_language", "target_language")
        about |= {name: value for name in names if (value := getattr(request, name))}
        about["hypotheses"] = [self.output_fields(hypothesis) for hypothesis in hypotheses]
        return json.dumps(about, ensure_ascii=False)

    def _about(self, source: str) -> Json:
        """A sentence, and what the model reads before it, if it reads context."""
        task = self.translator.task
        if not task.data.context:
            return {"source": source}
        settings = self.translator.settings(self.n_best, self.options)
        read = task.read(source, settings.buckets[-1])
        return {"source": sentence_of(read), "context": context_of(read)}

    def _source_tokens(self, request: TranslationRequest) -> list[str]:
        """The subwords of a truncated source: the columns of an alignment, except <eos>."""
        translator = self.translator.between(request.source_language, request.target_language)
        return translator.source_tokens(request.source, **self.options)

    def read_object(self, about: Json) -> str:
        return next(iter(about["choices"]), "") if "choices" in about else super().read_object(about)

    def scores(self, outputs: Sequence[str]) -> list[str]:
        from transformer.tasks.metrics.segmentation import OPTION

        files = [list(map(without_invisible, read_lines(path))) for path in self.arguments.reference]
        for path, lines in zip(self.arguments.reference, files, strict=True):
            if len(lines) != len(outputs):
                raise UserError(f"{counted(len(outputs), 'line')} of outputs, but {path} has {len(lines):,}")
        if not files or not outputs:
            return []
        task = copy.copy(self.translator.task)
        records = [task.referenced(references) for references in zip(*files, strict=True)]
        if note := task.decide_scores(records, self.arguments.bleu_tokenize):
            log.warning("%s", note.replace(OPTION, "--bleu-tokenize"))
        scores = task.scores(Evaluation(records, outputs, {})).values()
        return [f"{score.detail}   {score.signature}" for score in scores]


def _groups(items: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Lists of `size`; shorter before a None, for which an empty list follows."""
    group: list[T] = []
    for item in items:
        if item is not None:
            group.append(item)
        if group and (item is None or len(group) == size):
            yield group
            group = []
        if item is None:
            yield []
    if group:
        yield group


WRITER = Translations
