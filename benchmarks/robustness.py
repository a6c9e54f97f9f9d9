"""How much of a translation is lost when words of its beginning are wrong.

`python -m benchmarks.robustness RUN [RUN ...]` gives each run the first words of the reference, of which some
are replaced by words from elsewhere in the references. Greedy search completes them. The table has, for
each number of wrong words, the BLEU of what follows the given words against what follows them in the
reference. It is for runs with a test set.
"""

import argparse
import random
from pathlib import Path

from benchmarks.bootstrap import test_set
from benchmarks.command import positive, run
from benchmarks.measure import machine
from transformer import Translator
from transformer.errors import UserError
from transformer.evaluation.scores import bleu

GIVEN = 5  # words of the reference


def corrupted(words: list[str], wrong: int, others: list[str], chance: random.Random) -> list[str]:
    """The words, of which `wrong` are replaced."""
    words = list(words)
    for place in chance.sample(range(len(words)), wrong):
        words[place] = chance.choice([word for word in chance.sample(others, 8) if word != words[place]])
    return words


def continued(translator: Translator, sources: list[str], prefixes: list[str]) -> list[str]:
    """What follows each prefix in its translation."""
    found = translator.translate(sources, prefixes=prefixes, method="greedy")
    return [text.removeprefix(prefix).strip() for text, prefix in zip(found, prefixes, strict=True)]


def row(path: Path, given: int, most: int) -> list[float]:
    """BLEU of a run with 0 to `most` wrong words.

    Raises:
      UserError: too few references are longer than the given words.
    """
    translator = Translator.load(path, "last")
    plain = translator.tokenizers[1].plain
    test = [(source, plain(target).split()) for source, target in test_set(path)]
    lines = [(source, words) for source, words in test if len(words) > given]
    others = sorted({word for _, words in test for word in words})
    if not lines or len(others) < 8:
        raise UserError(f"{path}: its test set has no references of more than {given} words")
    references = [" ".join(words[given:]) for _, words in lines]
    scores = []
    for wrong in range(most + 1):
        chance = random.Random(wrong)
        prefixes = [" ".join(corrupted(words[:given], wrong, others, chance)) for _, words in lines]
        found = continued(translator, [source for source, _ in lines], [f"{prefix} " for prefix in prefixes])
        scores.append(bleu(found, references, translator.task.bleu_tokenizer(references)[0]).value)
    return scores


def main(arguments: list[str] | None = None) -> None:
    """Prints a row for each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "--given", type=positive, default=GIVEN, help=f"words of the reference to begin with ({GIVEN})"
    )
    parser.add_argument("--most", type=positive, default=3, help="wrong words of them, at most (3)")
    given = parser.parse_args(arguments)
    if given.most > given.given:
        raise UserError(f"--most {given.most}: only {given.given} words are given (--given)")
    for path in given.runs:
        test_set(path)  # refuses what is no run, before anything is measured
    print("|  |", " | ".join(f"{wrong} wrong" for wrong in range(given.most + 1)), "|")
    print("|---" * (given.most + 2) + "|")
    for path in given.runs:
        shown = (f"{score:.2f}" for score in row(path, given.given, given.most))
        print(f"| {path.name} |", " | ".join(shown), "|", flush=True)
    print(machine())


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.robustness", main))
