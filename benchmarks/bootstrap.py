"""Two translations of a test set, compared by a paired bootstrap test (Koehn 2004)."""

from dataclasses import dataclass
from pathlib import Path

from transformer import Run, Translator
from transformer.config import text_data
from transformer.data.sources.corpora import open_corpus
from transformer.errors import UserError
from transformer.translator.translator import translation_of


@dataclass(frozen=True)
class Comparison:
    """How the second translation differs from the first."""

    bleu: float
    interval: float
    """Half the width of the 95 % interval of `bleu`."""
    difference: float
    """BLEU more than the first."""
    p: float
    """Of the test; 1 if both are the same translation."""


def test_set(path: Path) -> list[tuple[str, str]]:
    """The sources and references of a run's test set.

    Raises:
      UserError: it is no run of sentence pairs, it has no test set, or its files are not there.
    """
    data = text_data(Run(path).config)
    try:
        splits = open_corpus(data).splits
    except UserError as error:
        raise UserError(f"{path}: {error}. Its files are found from where it was trained") from error
    if "test" not in splits:
        raise UserError(f"{path} was trained without a test set: give one in training (--data.test-source)")
    return list(splits["test"])


def translated(path: Path, checkpoint: str) -> list[str]:
    """The test set in the translation of a run."""
    return Translator.load(path, checkpoint).translate([source for source, _ in test_set(path)])


def compare(path: Path, first: list[str], second: list[str]) -> Comparison:
    """BLEU of two translations of the test set of the run at `path`, with its tokenizer."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    run = Run(path)
    task = translation_of(run)
    references = [task.tokenizers[1].plain(target) for _, target in test_set(path)]
    tokenize, _ = task.bleu_tokenizer(references)
    both = [("first", first), ("second", second)]
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")
    _, scores = PairedTest(both, {"BLEU": metric}, [references], test_type="bs")()
    before, after = scores["BLEU"]
    p = 1.0 if first == second else after.p_value
    return Comparison(after.score, after.ci, after.score - before.score, p)
