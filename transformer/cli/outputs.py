"""What the command writes for each line of input, and what it scores."""

import dataclasses
import json
import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from transformer.cli.asked import Asking
from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.train import fields_of
from transformer.data.sources.corpora import read_lines
from transformer.errors import UserError, counted
from transformer.files import Json, parse_object
from transformer.tasks.asked import Asked
from transformer.tasks.translation import Hypothesis
from transformer.text import has_text, without_invisible
from transformer.translator.decoder import Decoder
from transformer.translator.ensemble import shares_of
from transformer.translator.given import More
from transformer.translator.rescoring import TOGETHER, rescored
from transformer.translator.translator import Translator

FOR_TRANSLATION = (
    *("tsv", "glossary", "keep", "reference"),
    *("bleu_tokenize", "rescore", "rescore_weights", "alignments", "token_scores"),
)
FOR_TEXT = ("until", "stream")
FOR_SPEECH = ("times",)
FOR_SYNTHESIS = ("pronunciation",)
TOKENIZE = "--bleu-tokenize"
log = logging.getLogger("transformer")
T = TypeVar("T")
Numbered = tuple[int, str] | None
"""A line's number and the line; None where no other has arrived."""
Written = tuple[str, str]
"""The text to write for a line of input, and the output as scores read it."""


class Outputs:
    """Outputs of any task, one line for each line of input.

    Args:
      given: the command line.

    Raises:
      UserError: the run is missing or damaged, or an option is wrong for its task.
    """

    n_best = 1
    """Outputs for a line of input."""
    each = 1
    """Lines of output for a line of input."""
    judged = False
    """Whether the outputs are compared with references."""

    def __init__(self, given: DecodeArguments) -> None:
        self.given, self.options = given, dict(fields_of(given.decoding))
        self.decoder = self.load(given.run_dir, given.checkpoint, given.int8)
        self.decoder.settings(given.n_best, self.options)  # refuses invalid options

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Decoder[Any]:
        """The trained model."""
        others = (*FOR_TRANSLATION, *FOR_TEXT, *FOR_SPEECH, *FOR_SYNTHESIS)
        refuse(self.given, others, f"{run_dir} does not translate")
        if self.given.format != "text" or self.given.n_best not in (None, 1):
            raise UserError(f"{run_dir} does not translate: it writes one line of text for each line")
        return Decoder.load(run_dir, checkpoint, int8=int8)

    @property
    def job(self) -> list[str]:
        """What determines the outputs, besides the input."""
        given = self.given
        return [repr([self.decoder.fingerprint(), given.n_best, given.format, given.decoding])]

    def claim(self, job: str, total: int | None) -> None:
        """Prepares to write files beside the output.

        Args:
          job: identifies input, model and options. Empty: the input can be read only once.
          total: number of lines, if it is known.

        Raises:
          UserError: one of them is there, and not of this job.
        """

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        """The outputs for numbered lines, in order; None where no other line has arrived."""
        task, settings = self.decoder.task, self.decoder.settings(1, self.options)
        records = (given and (given[0], task.record(given[1])) for given in lines)
        for best in self.decoder.outputs(records, settings, 1):
            yield best and (task.line(best[0]) + "\n", "")

    def lines(self, found: Sequence[Any]) -> str:
        """The best outputs of an input, each on a line, with its score if asked for. There are always as
        many: the only output for an empty input is repeated."""
        padded = [*found, *[found[-1]] * (self.n_best - len(found))]
        texts = [self.decoder.task.line(each) for each in padded]
        if self.given.format == "scores":
            texts = [f"{each.score:.4f}\t{text}" for each, text in zip(padded, texts, strict=True)]
        return "".join(f"{text}\n" for text in texts)

    def read(self, line: str) -> str:
        """The output in a line that was written before, as scores read it."""
        if self.given.format == "json":
            return self.read_object(parse_object(line))
        return line.partition("\t")[2] if self.given.format == "scores" else line

    def read_object(self, about: Json) -> str:
        """The output in a JSON object."""
        return str(about["hypotheses"][0]["text"])

    def scores(self, outputs: Sequence[str]) -> list[str]:
        """A line for each score."""
        return []


class Translations(Outputs):
    """Translations as text, with scores, or as JSON."""

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Translator:
        """The model, and those that re-rank its hypotheses."""
        given = self.given
        refuse(given, FOR_TEXT, f"{run_dir} translates sentences, which end by themselves")
        refuse(given, (*FOR_SPEECH, *FOR_SYNTHESIS), f"{run_dir} translates text")
        self.judged = given.reference is not None
        for option in ("alignments", "token_scores"):
            if getattr(given, option) and given.format != "json":
                name = option.replace("_", "-")
                raise UserError(f"--{name} needs --format json: the text formats do not have them")
        if given.bleu_tokenize and not given.reference:
            raise UserError("--bleu-tokenize needs --reference: without it nothing is scored")
        self.n_best = given.n_best or 1
        self.each = 1 if given.format == "json" else self.n_best
        runs = run_dir if not given.ensemble else [run_dir, *given.ensemble]
        self.translator = Translator.load(
            runs, checkpoint, int8=int8, weights=given.weights or None, mean=given.mean
        )
        self.translator.settings(self.n_best, self.options)
        tokenize = given.bleu_tokenize or self.translator.config.training.bleu_tokenize
        if self.judged and tokenize:
            from transformer.evaluation.scores import bleu_metric

            bleu_metric(tokenize)  # refuses one that cannot be used before anything is translated
        self.asking = Asking(given, self.translator)
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

    @property
    def job(self) -> list[str]:
        given, judges = self.given, [judge.fingerprint() for judge in self.judges]
        wanted = given.alignments, given.token_scores
        settings = repr([self.n_best, given.format, wanted, given.decoding, self.asking.identity])
        return [self.translator.fingerprint(), repr((judges, given.rescore_weights)), settings]

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        kept = None if self.judges else self.n_best  # rerankers need all hypotheses
        waiting: deque[tuple[int, Asked]] = deque()

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
        wanted = self.given.alignments, self.given.token_scores
        more = More(*wanted) if any(wanted) else None
        found = self.translator.outputs(pairs(), settings, kept, more=more)
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

    def _text(self, number: int, asked: Asked, hypotheses: list[Hypothesis]) -> str:
        if self.given.format == "json":
            return self._json(number, asked, hypotheses) + "\n"
        return self.lines(hypotheses)

    def _json(self, number: int, asked: Asked, hypotheses: list[Hypothesis]) -> str:
        fields = [dataclasses.asdict(hypothesis) for hypothesis in hypotheses]
        for values, hypothesis in zip(fields, hypotheses, strict=True):
            del values["ids"]
            for name in ("token_log_probabilities", "entropies"):
                numbers = values.pop(name)
                if numbers is not None:
                    values[name] = [round(x, 4) for x in numbers]
            if hypothesis.token_log_probabilities is not None:
                values["perplexity"] = round(hypothesis.perplexity, 4)
            alignment = values.pop("alignment")
            if alignment is not None:
                values["alignment"] = [[round(float(x), 4) for x in row] for row in alignment]
        about = {"line": number, "source": asked.source, "source_tokens": self._source_tokens(asked.source)}
        about |= {name: value for name in ("prefix", "terms") if (value := getattr(asked, name))}
        about["hypotheses"] = fields
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


def refuse(given: DecodeArguments, options: Sequence[str], why: str) -> None:
    """Raises UserError if one of these options is given."""
    for option in options:
        if option == "ensemble" and given.ensemble:
            raise UserError(f"{given.ensemble[0]}: {why}; name one run")
        if getattr(given, option):
            raise UserError(f"--{option.replace('_', '-')}: {why}; leave it out")
