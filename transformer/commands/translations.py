"""Translations: what is written of each line of decode.py's input, the scores, the most probable of some
labels (`--choices`), and text that arrives (`--stream`)."""

import copy
import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer.cli.decode_arguments import DecodeArguments, Way
from transformer.cli.input import arriving_words, check_files, input_lines, lines_of
from transformer.cli.request_lines import COLUMNS, RequestParser, lines_in_context
from transformer.cli.writer import Numbered, Texts, Written, explored, in_groups
from transformer.config.corpus import DataConfig
from transformer.data.sources.context import SEPARATOR, History, context_of, sentence_of
from transformer.data.sources.tables import TARGET_LENGTH
from transformer.data.sources.text_files import one_line, read_lines
from transformer.runs.run import Run
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, json_line
from transformer.runtime.text import has_text, without_invisible
from transformer.tasks.task import Evaluation
from transformer.tasks.texts.requests import TranslationRequest, source_of
from transformer.translator.ensemble import shares_of
from transformer.translator.rescoring import TOGETHER, rescored
from transformer.translator.search_outputs import identity
from transformer.translator.translator import Translator

if TYPE_CHECKING:
    from transformer.explorer.explorer import Explorer


# `decode.py RUN --stream` for models with --model.wait-k: translates text while it arrives.


def translator_of(arguments: DecodeArguments) -> Translator:
    """The model of a command line, or its ensemble, for its languages."""
    runs = [arguments.run_dir, *arguments.ensemble]
    loaded = Translator.load(
        runs,
        arguments.checkpoint,
        int8=arguments.int8,
        weights=arguments.weights or None,
        mean=arguments.mean,
    )
    return loaded.between(arguments.source_language, arguments.target_language)


def translate_arriving(arguments: DecodeArguments) -> None:
    """Writes the translation of each line to standard output while its words arrive.

    Raises:
      UserError: an option or the input is wrong, or the model reads whole sentences.
    """
    check_files(arguments)
    translator = translator_of(arguments)
    those_of_run = vars(translator.config.decoding)
    search_options = vars(arguments.decoding).items()
    options = {name: value for name, value in search_options if value != those_of_run.get(name)}
    translator.waits_for(**options)
    arriving = _words(arguments)
    for first in arriving:
        words = itertools.takewhile(bool, itertools.chain([first], arriving))
        for text in translator.simultaneous(words, **options):
            sys.stdout.write(text)
            sys.stdout.flush()
        for _ in words:  # those after the model has ended its translation
            pass
        print(flush=True)


def _words(arguments: DecodeArguments) -> Iterator[str]:
    """The words of the input, and "" where a line ends."""
    if not arguments.input:
        yield from arriving_words()
        return
    for line in lines_of(arguments):
        yield from line.split()
        yield ""


TRAINED = "trained"
"""The value of --choices for the labels of the training text."""
log = logging.getLogger("transformer")


class Translations(Texts):
    """Translations as text, with scores, or as JSON."""

    does = "translates text"
    can = Texts.can | {
        *("translation", "target_length", "references", "choices", "stream", "page"),
        *("coverage", "shortlist"),
    }
    instead: ClassVar = {"language": "languages of texts are --source-language and --target-language"}

    @classmethod
    def abilities(cls, run: Run) -> set[str]:
        """The abilities of a run, without those that only some translators have."""
        data = run.config.data
        assert isinstance(data, DataConfig)
        has = {"target_length": TARGET_LENGTH in data.inputs, "stream": run.config.model.encodes_causally}
        return {ability for ability in super().abilities(run) if has.get(ability, True)}

    @classmethod
    def way(cls, arguments: DecodeArguments) -> Way:
        """Text that arrives, turns of a conversation, or lines, of which labels may be asked."""
        if arguments.stream:
            return Way.WORDS
        if arguments.history:
            return Way.TURNS
        return Way.CHOICES if arguments.choices else Way.LINES

    @classmethod
    def write_file(cls, arguments: DecodeArguments, way: Way) -> bool:
        """Translates text while it arrives, for --stream. Returns whether it did."""
        if way is Way.WORDS:
            translate_arriving(arguments)
        return way is Way.WORDS

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Translator:
        """The model, and those that re-rank its hypotheses."""
        arguments = self.arguments
        self.is_scored = bool(arguments.reference)
        self.translator = translator_of(arguments)
        self.translator.settings(self.n_best, self.options)
        if self.is_scored:  # refuses what cannot be computed before anything is translated
            copy.copy(self.translator.task).decide_scores([], arguments.bleu_tokenize)
        self.request_parser = RequestParser(arguments, self.translator)
        if arguments.target_length < 0:
            raise UserError(f"--target-length {arguments.target_length}: must be a number of words")
        source_of("", self.translator.task.data, arguments.target_length)
        self._check_history()
        self._check_choices()
        if not arguments.input and sys.stdin is not None and sys.stdin.isatty():
            self.wrong = lambda number, error: log.error("%s", error)  # a line that is typed
        self.rerankers = self._load_rerankers()
        return self.translator

    def _check_history(self) -> None:
        """Refuses `--history` beside what reads lines alone, and for a model of sentences."""
        arguments = self.arguments
        if arguments.history < 0:
            raise UserError(f"--history {arguments.history}: must be the number of earlier turns")
        if not arguments.history:
            return
        if self.translator.task.data.context:
            raise UserError("--history: this model reads each line after those before it; leave it out")
        if not self.translator.tokenizers[0].knows(SEPARATOR):
            raise UserError(
                f"--history: the vocabulary of this model has no {SEPARATOR}, so it was not trained on "
                "conversations"
            )

    def _check_choices(self) -> None:
        """Refuses labels of `--choices` that are none, and warns of those that the training text lacks."""
        arguments = self.arguments
        self.labels = () if arguments.choices == (TRAINED,) else arguments.choices
        if not arguments.choices:
            return
        if self.n_best > 1:
            raise UserError("--n-best: --choices writes one label; --format json has all of them")
        if unknown := self.translator.check_choices(self.labels, arguments.temperature_of_choices):
            log.warning("--choices: the training text has no label %s", ", ".join(unknown))

    def _load_rerankers(self) -> list[Translator]:
        """The models of `--rescore`."""
        arguments = self.arguments
        ranked = arguments.decoding.method == "mbr" or arguments.decoding.coverage_penalty > 0
        if arguments.rescore and ranked:
            raise UserError("--rescore replaces the scores of mbr and of --coverage-penalty: leave one out")
        if arguments.rescore and arguments.decoding.method == "greedy":
            raise UserError("--rescore chooses among several hypotheses, and greedy search finds one")
        if arguments.rescore_weights:
            shares_of(arguments.rescore_weights, len(arguments.rescore), "--rescore-weights")
        rerankers = []
        for path in arguments.rescore:
            reranker = Translator.load(path)
            if reranker.task.data.context != self.translator.task.data.context:
                raise UserError(
                    f"--rescore {path}: name a run with the --data.context of {arguments.run_dir}"
                )
            if reranker.tokenizers[0].has_codes:
                reranker = reranker.between(arguments.source_language, arguments.target_language)
            rerankers.append(reranker)
        return rerankers

    @classmethod
    def page(cls, arguments: DecodeArguments) -> "tuple[Explorer, str]":
        from transformer.explorer.explorer import explore

        translator = translator_of(arguments)
        request_parser = RequestParser(arguments, translator)
        lines = enumerate(input_lines(arguments), start=1)
        lines_read = filter(None, lines_in_context(lines, arguments, translator.task.data))
        parsed = ((number, request_parser(number, line)) for number, line in lines_read if line)
        by_line, description = explored(arguments, parsed, lambda request: has_text(request.source))
        requests = list(by_line.values())
        if any(any(request[4:]) for request in requests):
            raise UserError("--explore shows one direction: give --target-language, and none on the lines")
        page = explore(
            translator,
            [request.source for request in requests],
            n_best=arguments.n_best,
            prefixes=[request.prefix for request in requests],
            terms=[request.terms for request in requests],
            lines=tuple(by_line),
            **vars(arguments.decoding),
        )
        return page, f"{counted(page.hypotheses, 'translation')} of {description}"

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
        if self.arguments.choices or self.arguments.history:
            yield from self._chosen(lines) if self.arguments.choices else self._conversation(lines)
            return
        num_hypotheses = None if self.rerankers else self.n_best  # rerankers need all hypotheses
        settings = self.translator.settings(num_hypotheses, self.options)
        answers = self.translator.answers(self._requests(lines), settings, num_hypotheses, self.extras)
        for group in in_groups(answers, TOGETHER if self.rerankers else 1):
            outputs = [hypotheses for _, _, hypotheses in group]
            if self.rerankers and group:
                sources = [request.source for _, request, _ in group]
                weights, first_line = self.arguments.rescore_weights, group[0][0]
                outputs = list(
                    rescored(sources, outputs, self.rerankers, first_line=first_line, weights=weights)
                )
            for (number, request, _), hypotheses in zip(group, outputs, strict=True):
                best = hypotheses[: self.n_best]
                yield self.text(number, request, best), best[0].text
            if not group:
                yield None

    def _requests(
        self, lines: Iterable[Numbered]
    ) -> Iterator[tuple[int, TranslationRequest, TranslationRequest] | None]:
        """What each line asks for, without those that are `wrong`."""
        for numbered in self._records(lines):
            if numbered and self.rerankers and any(numbered[2][4:]):
                raise UserError(
                    f"line {numbered[0]}: --rescore ranks one direction: give --target-language, and none on "
                    "the lines"
                )
            yield numbered and (numbered[0], numbered[2], numbered[2])

    def record(self, number: int, line: str) -> TranslationRequest:
        return self.request_parser(number, line)

    def _chosen(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        """The most probable label of each line, or the probabilities of all of them.

        Raises:
          UserError: a line asks for what only a search can do.
        """
        translator, temperature = self.translator, self.arguments.temperature_of_choices
        for group in in_groups(lines, TOGETHER):
            requests = [(number, self.request_parser(number, line)) for number, line in group]
            for number, request in requests:
                for steering in itertools.compress(("prefix", "terms"), (request.prefix, request.terms)):
                    raise UserError(f"line {number}: {steering}: --choices searches no text; leave it out")
            texts = [request.source for _, request in requests if has_text(request.source)]
            shares = iter(translator.choices(texts, self.labels, temperature=temperature) if texts else [])
            for number, request in requests:
                of_labels = next(shares) if has_text(request.source) else {}
                label, probability = next(iter(of_labels.items()), ("", 0.0))
                record = {"line": number, **self._about(request.source), "choices": of_labels}
                if translator.truncates(request.source):
                    record["truncated"] = True
                text = f"{label}\n" if self.arguments.format == "text" else f"{probability:.4f}\t{label}\n"
                yield json_line(record) if self.arguments.format == "json" else text, label
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
            yield self.text(number, request, hypotheses[: self.n_best]), hypotheses[0].text

    def input_fields(self, item: TranslationRequest) -> Json:
        """A sentence, its subwords, and what is asked of its translation."""
        translator = self.translator.between(item.source_language, item.target_language)
        tokens = translator.source_tokens(item.source, **self.options)
        fields = {name: value for name in COLUMNS[1:] if (value := getattr(item, name))}
        return {**self._about(item.source), "source_tokens": tokens, **fields}

    def _about(self, source: str) -> Json:
        """A sentence, and what the model reads before it, if it reads context."""
        task = self.translator.task
        if not task.data.context:
            return {"source": source}
        settings = self.translator.settings(self.n_best, self.options)
        text = task.read(source, settings.buckets[-1])
        return {"source": sentence_of(text), "context": context_of(text)}

    def read_object(self, answer: Json) -> str:
        return next(iter(answer["choices"]), "") if "choices" in answer else super().read_object(answer)

    def scores(self, outputs: Sequence[str]) -> list[str]:
        from transformer.tasks.metrics.scores import OPTION

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


WRITER = Translations
