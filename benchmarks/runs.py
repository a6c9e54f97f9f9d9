"""What a benchmark does with a run directory or a config: its test set and translation, compared with another
one, and its updates one by one."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import save
from transformer import Config, OptimizerConfig, Run, Translator
from transformer.config.options import text_data
from transformer.data.sources.corpora import open_corpus
from transformer.runtime.errors import UserError
from transformer.systems.registry import find_system
from transformer.tasks.preparation import prepare
from transformer.training.methods.registry import objective_of
from transformer.training.schedule import make_optimizer
from transformer.training.sharding import Replicas, configured_step
from transformer.training.step import TrainState, init_state
from transformer.translator.translator import translation_of

ADAM = OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=200)
"""The paper's optimizer, for studies with the model of `quickstart`, whose preset has Muon."""


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


def sentences(path: Path, count: int) -> list[str]:
    """Test sentences of mixed lengths, at equal distances in the run's test set."""
    pairs = test_set(path)
    return [source for source, _ in pairs[:: max(1, len(pairs) // count)]][:count]


def translated(path: Path, checkpoint: str) -> list[str]:
    """The test set in the translation of a run."""
    return Translator.load(path, checkpoint).translate([record[0] for record in test_set(path)])


def text_files(folder: Path, languages: tuple[str, str] = ("en", "de")) -> dict[str, Path]:
    """The options of data for a folder with `train`, `validation` and `test`, each in two languages."""
    return {
        f"{split}_{side}": folder / f"{split}.{language}"
        for split in ("train", "validation", "test")
        for side, language in zip(("source", "target"), languages, strict=True)
    }


def once(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The results in a JSON file, which are made if it is not there."""
    if not path.exists():
        save(str(path), make())
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


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
    """Two translations of the test set of the run at `path`: BLEU with its tokenizer, and a paired bootstrap
    test (Koehn 2004)."""
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


def updates(config: Config, repeat: bool = False) -> Iterator[tuple[TrainState, dict[str, float]]]:
    """Trains endlessly, without the training loop, and yields the state and the metrics after each update.
    The next one takes the state's memory: keep copies of what you need.

    Args:
      config: of a run.
      repeat: whether all updates are on the first batch.
    """
    system, corpus = find_system(config.system), open_corpus(text_data(config))
    task = system.task.create(config, corpus)
    config = task.config
    model, optimizer = system.model(config.model), make_optimizer(config)
    objective, layout = objective_of(system, config, Translator.load, task.spell), Replicas()
    state = layout.place(init_state(model, optimizer, config.training.seed, system.task.example(config)))
    one_update = configured_step(config.training, model, objective, optimizer, layout)
    step = layout.compile_step(one_update, donate_state=True)
    batcher = prepare(task, corpus).batcher
    batches = layout.batches(map(batcher, itertools.count()))
    for batch in itertools.repeat(next(batches)) if repeat else batches:
        state, metrics = step(state, batch)
        yield state, {name: float(value) for name, value in metrics.items()}
