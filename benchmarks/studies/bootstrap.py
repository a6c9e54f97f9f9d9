"""Two translations of a test set, compared by a paired bootstrap test (Koehn 2004)."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import test_set
from transformer import Run
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
