"""A task without files, whose records are made up."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer import Config, System, Task, Transformer
from transformer.config import CorpusConfig
from transformer.data.corpus import Corpus
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.model.transformer import cross_attention
from transformer.training.objective import translation_objective

SIZES = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "vocab_size": 14}
DIGITS, FIRST = 10, 4  # ids 4 to 13


@dataclass(frozen=True)
class ToyData(CorpusConfig):
    """Options of a made-up corpus."""

    records: int = 96
    """Size of the training split."""


class Listed(list):
    """A split in memory."""

    def __getitems__(self, indices):
        return [self[int(index)] for index in indices]


class ToyTask(Task):
    """A task without files, whose records are made up."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.special = config.model.special

    @classmethod
    def records(cls, seed: int, count: int) -> list[Any]:
        raise NotImplementedError

    @classmethod
    def open_corpus(cls, config: Config) -> Corpus:
        sizes = {"train": (0, config.data.records), "validation": (1, 20), "test": (2, 20)}
        splits = {name: Listed(cls.records(*given)) for name, given in sizes.items()}
        return Corpus(cls.__name__, splits, Path(config.data.cache_dir) / cls.__name__)

    @classmethod
    def create(cls, config, corpus, progress=None):
        return cls(config)

    @classmethod
    def load(cls, config, folder):
        return cls(config)

    def save(self, folder: Path) -> None:
        pass


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
