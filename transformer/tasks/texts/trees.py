"""Parsing as translation: a sentence, and its tree as a text with brackets (Vinyals et al. 2015)."""

import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import ClassVar, Self

from transformer.config.options import Config
from transformer.data.store import Corpus, Progress, Records, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.trees import BracketKinds, Tree, with_words
from transformer.decoding.scores import SearchResult
from transformer.decoding.steering.structures import ANY_BRACKETS, WellFormedTrees
from transformer.runtime.errors import UserError
from transformer.runtime.files import read_stored, write_whole
from transformer.tasks.exhibit import Exhibits, ReportSample, TreePicture
from transformer.tasks.metrics.bracketing import (
    BRACKETING_F1,
    TAGGING_ACCURACY,
    WELL_FORMED,
    bracketing_f1,
    count_brackets,
    different,
    tagging_accuracy,
    tree_of,
    well_formed,
)
from transformer.tasks.task import Evaluation
from transformer.tasks.text import Hypothesis, Steering
from transformer.tasks.texts.requests import Sentence
from transformer.tasks.texts.text_to_text import TextToText

FILE = "brackets.json"
WIDEST = 14
"""The most words of a tree in a report."""


class Trees(Exhibits, TextToText):
    """Constituency trees, with F1 of labelled brackets as EVALB defines it."""

    criterion = BRACKETING_F1
    scorers: ClassVar = {
        BRACKETING_F1: bracketing_f1,
        TAGGING_ACCURACY: tagging_accuracy,
        WELL_FORMED: lambda outputs, _: well_formed(outputs),
    }
    needs_steps = "--data.task trees"
    shows_attention = False
    learned = "vocabulary and brackets"
    brackets: BracketKinds = ANY_BRACKETS
    """What the training trees have in common; for runs of earlier versions, nothing."""

    def learn(self, corpus: Corpus, progress: Progress = silent) -> None:
        """The kinds of brackets of the training text."""
        records = corpus.splits["train"]
        trees = (record[1] for record in progress("reading the trees", records, len(records)))
        self.brackets = BracketKinds.of(trees)

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        task = super().load(config, folder)
        if brackets := read_stored(folder / FILE, BracketKinds.from_json):
            task.brackets = brackets
        return task

    def save(self, folder: Path) -> None:
        """Writes what other tasks of text store, and the kinds of brackets."""
        super().save(folder)
        content = json.dumps(self.brackets._asdict(), ensure_ascii=False, indent=1)
        write_whole(folder / FILE, content + "\n")

    def steering(self, records: Sequence[Sentence], lines: Sequence[int]) -> list[Steering]:
        """How outputs begin, and that they are trees over the words of the source, if tokens are words and
        brackets."""
        steerings = super().steering(records, lines)
        if self._hook is None:
            return steerings
        return [*steerings, Steering("trees", self._hook, {}, [{} for _ in records], [0] * len(records))]

    @functools.cached_property
    def _hook(self) -> WellFormedTrees | None:
        if self.data.tokenizer != "whitespace":
            return None
        source, target = (self._words(tokenizer) for tokenizer in self.tokenizers)
        try:
            return WellFormedTrees(source, target, self.special, self.brackets)
        except ValueError as error:
            raise UserError(f"--data.task trees: {error}") from None

    def _words(self, tokenizer: Tokenizer) -> list[str]:
        """The word of each id; empty for special ones, except <unk>, which stands for words."""
        words = tokenizer.pieces(range(tokenizer.vocab_size))
        for index in {*astuple(self.special)} - {self.special.unk}:
            words[index] = ""
        return words

    def outputs(self, result: SearchResult, record: Sentence, n_best: int | None) -> list[Hypothesis]:
        """As `TextToText.outputs`, with the words of the source also where the vocabulary lacks them."""
        outputs = super().outputs(result, record, n_best)
        if self._hook is None:
            return outputs
        words = record[0].split()
        return [replace(output, text=with_words(output.text, words)) for output in outputs]

    def compared(self, evaluation: Evaluation) -> tuple[list[str], list[str]]:
        """The outputs, and one tree for each."""
        outputs, references = self.texts(evaluation)
        return outputs, [text if isinstance(text, str) else text[0] for text in references]

    # Pictures

    def tree_of(self, text: str) -> Tree | None:
        return tree_of(text)

    def exhibited(self, records: Records, count: int) -> list[Sentence]:
        """The first sentences whose trees fit a page."""
        fitting = (record for record in records if 0 < len(record[0].split()) <= WIDEST)
        return list(itertools.islice(fitting, count))

    def exhibit(self, record: Sentence, output: Hypothesis, attention: object) -> ReportSample:
        """The tree of the reference beside that of the output: what only one of them has is marked."""
        reference = self.references(record)[0]
        expected, tree = self.tree_of(reference), self.tree_of(output.text)
        if expected is None or tree is None:
            texts = {"reference": reference, "output": f"no tree: {output.text}"}
            return ReportSample(record[0], texts)
        counts = count_brackets([output.text], [reference])
        right = f"{counts.right} of {counts.output}; the reference has {counts.expected}"
        wrong, lacking = different(tree, expected)
        pictures = (
            TreePicture("reference; what the output lacks is marked", expected, lacking),
            TreePicture("output; what is wrong is marked", tree, wrong),
        )
        return ReportSample(record[0], {"brackets right": right}, trees=pictures)
