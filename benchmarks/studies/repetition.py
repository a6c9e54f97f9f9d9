"""Repetition and diversity of the texts that searches and samples write.

`python -m benchmarks.studies.repetition RUN` continues passages of the held-out text of a language model, by
greedy search, beam search and sampling, each without and with `--no-repeat-ngram`. It compares the repetition
within a continuation, the diversity among all of them, and their perplexity under the model with those of the
text that follows in truth. It writes a table and draws it.
"""

import argparse
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from sacrebleu.metrics.bleu import BLEU

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.plotting import picture
from transformer import Generator, UserError
from transformer.systems.language_model.options import LanguageModelConfig

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "beam 4": {"method": "beam", "beam_size": 4},
    "beam 10": {"method": "beam", "beam_size": 10},
    "top-k 40": {"method": "sample", "temperature": 1.0, "top_k": 40},
    "top-p 0.9": {"method": "sample", "temperature": 1.0, "top_p": 0.9},
    "sampling": {"method": "sample", "temperature": 1.0},
}
TRUTH = "the text itself"
COLUMNS = {
    "repetition": ("repeated 4-grams", ".1%"),
    "distinct_1": ("distinct-1", ".3f"),
    "distinct_2": ("distinct-2", ".3f"),
    "self_bleu": ("self-BLEU", ".1f"),
    "perplexity": ("perplexity", ".1f"),
}
DRAWN = ("repetition", "distinct_2", "self_bleu", "perplexity")


@dataclass(frozen=True)
class Passage:
    """A beginning from the held-out text, and the text that follows it there."""

    beginning: str
    continuation: str


@dataclass(frozen=True)
class Row:
    """The continuations of a method, and what was measured."""

    method: str
    rule: int
    """No n-gram of so many tokens occurs twice. 0: no such rule."""
    repetition: float
    distinct_1: float
    distinct_2: float
    self_bleu: float
    perplexity: float
    texts: list[str]


def words_of(text: str) -> list[str]:
    """Words and punctuation marks, so that models with different vocabularies are compared in one unit."""
    return re.findall(r"\w+|[^\w\s]", text)


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All sequences of n words."""
    return list(zip(*(words[start:] for start in range(n)), strict=False))


def repetition(words: Sequence[str], n: int = 4) -> float:
    """The share of n-grams that occur earlier in the same text: seq-rep-n (Welleck et al. 2020). 0 if there
    are none."""
    found = ngrams(words, n)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct(texts: Sequence[Sequence[str]], n: int) -> float:
    """distinct-n: the number of different n-grams of all texts, divided by that of words (Li et al. 2016)."""
    return len({ngram for text in texts for ngram in ngrams(text, n)}) / max(1, sum(map(len, texts)))


def self_bleu(texts: Sequence[Sequence[str]]) -> float:
    """The mean BLEU of each text with all others as its references (Zhu et al. 2018), from 0 to 100."""
    metric = BLEU(tokenize="none", force=True, effective_order=True)
    lines = [" ".join(text) for text in texts]
    others = ([*lines[:index], *lines[index + 1 :]] for index in range(len(lines)))
    scores = [metric.sentence_score(line, rest).score for line, rest in zip(lines, others, strict=True)]
    return statistics.mean(scores)


def perplexity(generator: Generator, beginnings: Sequence[str], texts: Sequence[str]) -> float:
    """exp of the mean negative log-likelihood of the tokens of the texts, each after its beginning."""
    encode = generator.task.tokenizer.encode
    log_probabilities: list[float] = []
    whole = [beginning + text for beginning, text in zip(beginnings, texts, strict=True)]
    for beginning, scored in zip(beginnings, generator.score(whole), strict=True):
        log_probabilities += scored.log_probabilities[len(encode(beginning)) : -1]  # without <eos>
    return math.exp(-statistics.mean(log_probabilities))


def passages(generator: Generator, count: int, beginning: int, length: int) -> list[Passage]:
    """Passages of equal parts of the held-out text, one of each. They begin with a line, and their beginnings
    end with a word.

    Args:
      generator: a trained model. Its documents are joined with line breaks.
      count: of passages.
      beginning: characters of a beginning, at least.
      length: tokens of a continuation.

    Raises:
      UserError: the text is too short.
    """
    task = generator.task
    splits = task.open_corpus(generator.config).splits
    text = "\n".join(splits["test" if "test" in splits else "validation"])
    size = len(text) // count
    found = []
    for index in range(count):
        _, _, part = text[index * size :][:size].partition("\n")
        part = part.lstrip()
        end = re.compile(r"\s").search(part, beginning)
        prompt = part[: end.start()] if end else part
        before = task.tokenizer.encode(prompt)
        ids = task.tokenizer.encode(part)[len(before) :][:length]
        if len(ids) < length:
            raise UserError(
                f"each of {count} parts of the held-out text has {size:,} characters, too few for a "
                f"beginning of {beginning} and {length} tokens: lower --count, --beginning or --length"
            )
        found.append(Passage(prompt, task.text(ids, before)))
    return found


def measured(
    generator: Generator, beginnings: Sequence[str], texts: list[str], method: str, rule: int
) -> Row:
    """The measures of some continuations."""
    words = [words_of(text) for text in texts]
    return Row(
        method,
        rule,
        repetition=statistics.mean(map(repetition, words)),
        distinct_1=distinct(words, 1),
        distinct_2=distinct(words, 2),
        self_bleu=self_bleu(words),
        perplexity=perplexity(generator, beginnings, texts),
        texts=texts,
    )


def compare(generator: Generator, chosen: Sequence[Passage], length: int, rule: int) -> list[Row]:
    """The text itself, and every method without and with the rule. All continuations have `length` tokens."""
    beginnings = [passage.beginning for passage in chosen]
    true = [passage.continuation for passage in chosen]
    rows = [measured(generator, beginnings, true, TRUTH, 0)]
    unknown = (generator.task.special.unk,)
    same = {"min_length": length, "extra_length": length, "length_penalty": 0.0, "suppress": unknown}
    for method, options in track(METHODS.items(), "methods", console=Console(stderr=True)):
        for no_repeat in (0, rule):
            texts = generator.generate(beginnings, no_repeat_ngram=no_repeat, **options, **same)
            rows.append(measured(generator, beginnings, texts, method, no_repeat))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Markdown: a row for each method."""
    titles = [title for title, _ in COLUMNS.values()]
    lines = [f"| | repeated n-grams forbidden | {' | '.join(titles)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for row in rows:
        cells = [f"{getattr(row, name):{style}}".replace("%", " %") for name, (_, style) in COLUMNS.items()]
        lines.append(f"| {row.method} | {row.rule or ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars of each method without and with the rule, and a line for the text itself."""
    from matplotlib import ticker

    truth = rows[0]
    with picture(path, columns=len(DRAWN), size=(12, 3.6), sharey=True) as (figure, axes):
        for axis, name in zip(axes, DRAWN, strict=True):
            for shift, label in ((-0.2, "no rule"), (0.2, "no repeated n-grams")):
                mine = [row for row in rows[1:] if bool(row.rule) == (shift > 0)]
                positions = [index + shift for index in range(len(mine))]
                axis.barh(positions, [getattr(row, name) for row in mine], height=0.38, label=label)
            axis.axvline(getattr(truth, name), color="black", linestyle="--", linewidth=1, label=TRUTH)
            axis.set(title=COLUMNS[name][0], yticks=range(len(METHODS)), yticklabels=METHODS)
            axis.grid(axis="x", alpha=0.3)
        axes[0].xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
        axes[0].invert_yaxis()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table, and writes it to OUT/repetition.md, .json (with all texts) and .svg."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of a language model with memory")
    parser.add_argument("--out", type=work_folder, default=Path(), help="folder for the results (this one)")
    parser.add_argument("--count", type=positive, default=50, help="passages (50)")
    parser.add_argument("--beginning", type=positive, default=200, help="characters of a beginning (200)")
    parser.add_argument("--length", type=positive, default=300, help="tokens of a continuation (300)")
    parser.add_argument(
        "--no-repeat-ngram", type=positive, default=12, help="the rule: no N tokens occur twice (12)"
    )
    given = parser.parse_args(arguments)
    needs("matplotlib")
    generator = Generator.load(given.run)
    model = generator.config.model
    assert isinstance(model, LanguageModelConfig)
    if not model.attended:
        raise UserError(f"{given.run}: its model has no memory, and writes little: train shakespeare-xl")
    chosen = passages(generator, given.count, given.beginning, given.length)
    rows = compare(generator, chosen, given.length, given.no_repeat_ngram)
    given.out.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) for name, value in vars(given).items() if name != "out"}
    results = {
        "about": machine() | settings,
        "beginnings": [passage.beginning for passage in chosen],
        "rows": [asdict(row) for row in rows],
    }
    plot(rows, given.out / "repetition.svg")
    report(given.out / "repetition", results, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
