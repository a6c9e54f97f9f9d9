"""What steering a search brings: terms, minimum Bayes risk, ensembles, less repetition.

`python -m benchmarks.quality.steering RUN [RUN]` prints BLEU and chrF of each way to translate, and the
difference to plain beam search with its 95 % interval (paired bootstrap, 1,000 samples). Terms are 1 to 4
phrases of 1 to 3 words of each reference. Sentences are completed from the first third of their words.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from benchmarks.command import positive, run
from benchmarks.measure import machine
from transformer.data.sources.text_files import read_lines
from transformer.tasks.text import Hypothesis
from transformer.translator.translator import Translator

BEAM = 8
SAMPLES = 1000
SECTIONS = ["terms", "coverage", "ensemble", "completion", "consensus"]


class Compared:
    """Scores of translations, and of their difference to the first ones."""

    def __init__(self, references: list[str]) -> None:
        self.references = references
        self.metrics = {"BLEU": BLEU(), "chrF": CHRF()}
        draw = np.random.default_rng(0)
        self.samples = draw.integers(len(references), size=(SAMPLES, len(references)))
        self.plain: dict[str, tuple[float, np.ndarray]] = {}

    def line(self, name: str, texts: Sequence[str]) -> str:
        """A line for the output."""
        told = []
        for metric_name, metric in self.metrics.items():
            # the two functions of sacreBLEU's own paired bootstrap
            counts = np.array(metric._extract_corpus_statistics(texts, [self.references]))
            score = metric._aggregate_and_compute(counts).score
            each = np.array([metric._aggregate_and_compute(counts[some]).score for some in self.samples])
            base, base_each = self.plain.setdefault(metric_name, (score, each))
            low, high = np.percentile(each - base_each, [2.5, 97.5])
            told.append(f"{metric_name} {score:.2f} ({score - base:+.2f}, {low:+.2f} to {high:+.2f})")
        return f"{name}: {', '.join(told)}"


def phrases_of(references: Sequence[str]) -> list[list[str]]:
    """1 to 4 phrases of 1 to 3 words of each reference, which do not overlap."""
    draw, found = random.Random(0), []
    for reference in references:
        words, taken, own = reference.split(), set[int](), []
        for _ in range(draw.randint(1, 4)):
            start, size = draw.randrange(len(words)), draw.randint(1, 3)
            places = set(range(start, min(start + size, len(words))))
            if not places & taken:
                own.append(" ".join(words[place] for place in sorted(places)))
                taken |= places | {start - 1, max(places) + 1}
        found.append(own)
    return found


def repeats(texts: Sequence[str]) -> float:
    """The share of texts in which three words occur twice in the same order."""
    found = 0
    for text in texts:
        words = text.split()
        counts = Counter(zip(words, words[1:], words[2:], strict=False))
        found += max(counts.values(), default=0) > 1
    return found / len(texts)


def seconds(work: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The medians of the CPU seconds of two works in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * rounds):
        start = time.process_time()
        (work, other)[turn % 2]()
        took[turn % 2].append(time.process_time() - start)
    return statistics.median(took[0]), statistics.median(took[1])


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each way to search."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("other", type=Path, nargs="?", help="another with the same vocabulary, for ensembles")
    parser.add_argument("--source", type=Path, required=True, help="test sentences")
    parser.add_argument("--reference", type=Path, required=True, help="their translations")
    parser.add_argument("--checkpoint", default="best", help="of each run")
    parser.add_argument("--count", type=positive, default=1000, help="sentences")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--rounds", type=positive, default=3, help="for times")
    given = parser.parse_args(arguments)
    sources, references = (list(read_lines(path))[: given.count] for path in (given.source, given.reference))
    translator, compared = Translator.load(given.run, given.checkpoint), Compared(references)

    def say(name: str, found: list[list[Hypothesis]]) -> list[str]:
        texts = [several[0].text for several in found]
        print(compared.line(name, texts), flush=True)
        return texts

    plain = say(f"beam {BEAM}", translator.search(sources, beam_size=BEAM, n_best=1))
    if "terms" in given.sections:
        terms_section(translator, sources, references, plain, say, given.rounds)
    if "consensus" in given.sections:
        drawn: dict[str, Any] = {"method": "mbr", "temperature": 0.5}
        for name, options in {
            "64 samples, temperature 0.5": drawn,
            "beam 32": {"method": "mbr", "candidates": "beam", "samples": 32},
            "64 samples": {"method": "mbr"},
            "256 samples, temperature 0.5": {**drawn, "samples": 256},
        }.items():
            say(f"minimum Bayes risk, {name}", translator.search(sources, n_best=1, **options))
    if "coverage" in given.sections:
        found = translator.search(sources, beam_size=BEAM, coverage_penalty=0.2, n_best=1)
        say(f"beam {BEAM}, coverage penalty 0.2", found)
    if "ensemble" in given.sections and given.other:
        for mean in "probabilities", "logarithms":
            both = Translator.load([given.run, given.other], given.checkpoint, mean=mean)
            say(f"ensemble, mean of {mean}", both.search(sources, beam_size=BEAM, n_best=1))
        other = Translator.load(given.other, given.checkpoint)
        say(f"the other alone, beam {BEAM}", other.search(sources, beam_size=BEAM, n_best=1))
    if "completion" in given.sections:
        completion_section(translator, sources, references)
    print(machine())


def terms_section(
    translator: Translator,
    sources: list[str],
    references: list[str],
    plain: list[str],
    say: Callable[[str, list[list[Hypothesis]]], list[str]],
    rounds: int,
) -> None:
    """Terms from the references: quality, position and cost."""
    known = translator.task.tokenizers[1]
    terms = [
        [term for term in own if known.special.unk not in known.encode(term)]
        for own in phrases_of(references)
    ]
    options: dict[str, Any] = {"beam_size": BEAM, "n_best": 1}
    texts = say(f"beam {BEAM} with terms", translator.search(sources, terms=terms, **options))

    def there(some: Sequence[str], found: Callable[[str, str], bool]) -> list[bool]:
        return [found(text, term) for text, own in zip(some, terms, strict=True) for term in own]

    met, before = (there(some, lambda text, term: term in text) for some in (texts, plain))
    ends, ends_there = (there(some, str.endswith) for some in (texts, references))
    at_end = f"{sum(ends)} at its end, and {sum(ends_there)} at that of the reference"
    print(f"  {len(met)} terms: {sum(met)} in the output, and {sum(before)} without asking; {at_end}")
    appended = [
        " ".join([text, *(term for term in own if term not in text)])
        for text, own in zip(plain, terms, strict=True)
    ]
    say(f"beam {BEAM}, terms appended", [[Hypothesis(text, (), 0.0, 0.0)] for text in appended])
    ours, theirs = (translator.score(sources, some) for some in (texts, appended))
    print(f"  log P is at least that of appending them: {(ours >= theirs - 1e-3).mean():.1%}")
    some = sources[:200]
    with_terms, without = seconds(
        lambda: translator.search(some, terms=terms[:200], **options),
        lambda: translator.search(some, **options),
        rounds,
    )
    took = f"{with_terms:.1f} against {without:.1f}, {with_terms / without:.2f} times"
    print(f"  CPU seconds for {len(some)} sentences: {took}", flush=True)


def completion_section(translator: Translator, sources: list[str], references: list[str]) -> None:
    """How often completed sentences repeat three words."""
    prefixes = [" ".join(text.split()[: max(1, len(text.split()) // 3)]) + " " for text in references]
    ways: dict[str, dict[str, Any]] = {
        f"beam {BEAM}": {"beam_size": BEAM},
        "samples": {"method": "sample", "samples": 1},
        "top-p 0.9": {"method": "sample", "samples": 1, "top_p": 0.9},
    }
    for name, options in ways.items():
        for hook in {}, {"no_repeat_ngram": 3}:
            for least in 0, 40:
                more = {**options, **hook, "min_length": least}
                found = translator.search(sources, prefixes=prefixes, n_best=1, **more)
                share = repeats([several[0].text for several in found])
                told = ", no 3 tokens twice" if hook else ""
                told += f", at least {least} tokens" if least else ""
                print(f"completed, {name}{told}: {share:.1%} repeat three words", flush=True)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
