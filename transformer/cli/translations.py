"""Translations: what decode.py writes of them, and their scores."""

import itertools
import json
import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.request_parser import RequestParser
from transformer.cli.texts import Texts
from transformer.cli.writer import OF_SOME_TASKS, Numbered, Written, lines_given
from transformer.data.sources.corpora import read_lines
from transformer.errors import UserError, counted
from transformer.files import Json
from transformer.tasks.requests import TranslationRequest
from transformer.tasks.translation import Hypothesis
from transformer.text import has_text, without_invisible
from transformer.translator.ensemble import shares_of
from transformer.translator.rescoring import TOGETHER, rescored
from transformer.translator.search_outputs import Extras
from transformer.translator.translator import Translator

if TYPE_CHECKING:
    from transformer.inspection.explorer import Explorer

TOKENIZE = "--bleu-tokenize"
log = logging.getLogger("transformer")
T = TypeVar("T")


class Translations(Texts):
    """Translations as text, with scores, or as JSON."""

    does = "translates text"
    uses = tuple(x for x in OF_SOME_TASKS if x not in ("times", "pronunciation", "until", "stream"))

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Translator:
        """The model, and those that re-rank its hypotheses."""
        given = self.given
        self.judged = given.reference is not None
        if given.bleu_tokenize and not given.reference:
            raise UserError("--bleu-tokenize needs --reference: without it nothing is scored")
        runs = run_dir if not given.ensemble else [run_dir, *given.ensemble]
        self.translator = Translator.load(
            runs, checkpoint, int8=int8, weights=given.weights or None, mean=given.mean
        )
        self.translator.settings(self.n_best, self.options)
        tokenize = given.bleu_tokenize or self.translator.config.training.bleu_tokenize
        if self.judged and tokenize:
            from transformer.evaluation.scores import bleu_metric

            bleu_metric(tokenize)  # refuses one that cannot be used before anything is translated
        self.asking = RequestParser(given, self.translator)
        if given.rescore_weights and not given.rescore:
            raise UserError("--rescore-weights needs --rescore RUN: it weighs those runs")
        ranked = given.decoding.method == "mbr" or getattr(given.decoding, "coverage_penalty", 0.0) > 0
        if given.rescore and ranked:
            raise UserError("--rescore replaces the scores of mbr and of --coverage-penalty: leave one out")
        if given.rescore and given.decoding.method == "greedy":
            raise UserError("--rescore chooses among several hypotheses, and greedy search finds one")
        if given.rescore_weights:
            shares_of(given.rescore_weights, len(given.rescore), "--rescore-weights")
        self.typed = not given.input and sys.stdin is not None and sys.stdin.isatty()
        self.judges = [Translator.load(run) for run in given.rescore]
        return self.translator

    @classmethod
    def page(cls, given: DecodeArguments) -> "tuple[Explorer, str]":
        from transformer.inspection.explorer import SENTENCES, explore

        translator = Translator.load(given.run_dir, given.checkpoint, int8=given.int8)
        asking = RequestParser(given, translator)
        read = (asking(number, line) for number, line in enumerate(lines_given(given), start=1) if line)
        asked = list(itertools.islice((each for each in read if has_text(each.source)), SENTENCES))
        if not asked:
            raise UserError("nothing to explore: the input has no sentence")
        page = explore(
            translator,
            [each.source for each in asked],
            n_best=given.n_best,
            prefixes=[each.prefix for each in asked],
            terms=[each.terms for each in asked],
            **vars(given.decoding),
        )
        sentences = f"of {page.sentences} of the input's sentences (at most {SENTENCES})"
        return page, f"{page.hypotheses} translations {sentences}"

    @property
    def job(self) -> list[str]:
        given, judges = self.given, [judge.fingerprint() for judge in self.judges]
        wanted = given.alignments, given.token_scores
        settings = repr([self.n_best, given.format, wanted, given.decoding, self.asking.identity])
        return [self.translator.fingerprint(), repr((judges, given.rescore_weights)), settings]

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        kept = None if self.judges else self.n_best  # rerankers need all hypotheses
        waiting: deque[tuple[int, TranslationRequest]] = deque()

        def pairs() -> Iterator[tuple[int, Any] | None]:
            for given in lines:
                if given is None:
                    yield None
                    continue
                number, line = given
                try:
                    asked = self.asking(number, line)
                except UserError as error:
                    if not self.typed:
                        raise
                    log.error("%s", error)
                    continue
                waiting.append((number, asked))
                yield number, asked

        settings = self.translator.settings(kept, self.options)
        extras = Extras(self.given.alignments, self.given.token_scores)
        found = self.translator.outputs(pairs(), settings, kept, extras)
        for some in _groups(found, TOGETHER if self.judges else 1):
            read = [waiting.popleft() for _ in some]
            if self.judges and some:
                sources, weights = [asked.source for _, asked in read], self.given.rescore_weights
                some = list(rescored(sources, some, self.judges, first_line=read[0][0], weights=weights))
            for (number, asked), hypotheses in zip(read, some, strict=True):
                best = hypotheses[: self.n_best]
                yield self._text(number, asked, best), best[0].text
            if not some:
                yield None

    def _text(self, number: int, asked: TranslationRequest, hypotheses: list[Hypothesis]) -> str:
        if self.given.format == "json":
            return self._json(number, asked, hypotheses) + "\n"
        return self.lines(hypotheses)

    def _json(self, number: int, request: TranslationRequest, hypotheses: list[Hypothesis]) -> str:
        tokens = self._source_tokens(request.source)
        about: Json = {"line": number, "source": request.source, "source_tokens": tokens}
        about |= {name: value for name in ("prefix", "terms") if (value := getattr(request, name))}
        about["hypotheses"] = [self.output_fields(hypothesis) for hypothesis in hypotheses]
        return json.dumps(about, ensure_ascii=False)

    def _source_tokens(self, source: str) -> list[str]:
        """The subwords of a truncated source: the columns of an alignment, except <eos>."""
        if not has_text(source):
            return []
        ids, special = self.translator.source_row(source, **self.options)[0], self.translator.task.special
        words = [index for index in ids if index not in (special.pad, special.eos)]
        return self.translator.tokenizers[0].for_source(source).pieces(words)

    def scores(self, outputs: Sequence[str]) -> list[str]:
        from transformer.evaluation.scores import bleu, chrf, exact_match
        from transformer.evaluation.segmentation import OPTION, warning_of

        given, task = self.given, self.translator.task
        if not given.reference:
            return []
        references = [
            task.tokenizers[1].plain(without_invisible(line)) for line in read_lines(given.reference)
        ]
        if len(references) != len(outputs):
            raise UserError(
                f"{counted(len(outputs), 'line')} of translations, but {given.reference} has "
                f"{len(references):,}"
            )
        if not references:
            return []
        tokenize, note = task.bleu_tokenizer(references)
        if given.bleu_tokenize:
            tokenize, note = given.bleu_tokenize, warning_of(given.bleu_tokenize, references, TOKENIZE)
        if note:
            log.warning("%s", note.replace(OPTION, TOKENIZE))
        several = (bleu(outputs, references, tokenize), chrf(outputs, references))
        scores = [f"{score.detail}   {score.signature}" for score in several]
        return [*scores, exact_match(outputs, references).detail]


def _groups(found: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Lists of `size`; shorter before a None, for which an empty list follows."""
    some: list[T] = []
    for each in found:
        if each is not None:
            some.append(each)
        if some and (each is None or len(some) == size):
            yield some
            some = []
        if each is None:
            yield []
    if some:
        yield some


WRITER = Translations
