"""A task without files, whose records are made up."""

from dataclasses import dataclass
from typing import Any

from transformer import Config, System, Task, Transformer
from transformer.config.corpus import CorpusConfig
from transformer.data.sources.source import in_memory
from transformer.data.store import Corpus, Progress, silent
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.searches.search import autoregressive_search
from transformer.model.transformer import cross_attention
from transformer.training.objective import translation_objective

SIZES = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "vocab_size": 14}
DIGITS, FIRST = 10, 4  # ids 4 to 13


@dataclass(frozen=True)
class ToyData(CorpusConfig):
    """Options of a made-up corpus."""

    records: int = 96
    """Size of the training split."""


class ToyTask(Task):
    """A task without files, whose records are made up."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.special = config.model.special

    @classmethod
    def records(cls, seed: int, count: int) -> list[Any]:
        raise NotImplementedError

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        sizes = {"train": (0, config.data.records), "validation": (1, 8), "test": (2, 8)}
        splits = {name: cls.records(*given) for name, given in sizes.items()}
        return in_memory(cls.__name__, splits, config.data.cache_dir)


def text(**changes):
    """A system that translates."""
    return System(
        **{
            "model": Transformer,
            "objective": lambda config, _: translation_objective(0.1),
            "search": autoregressive_search,
            "scores": forced_scores,
            "alignment": forced_alignment(cross_attention),
            **changes,
        }
    )
