"""Small corpora whose training text is in shards, which the process of the tests makes."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_run import small_config, write_text

from transformer.systems.registry import find_system
from transformer.tasks import prepared_shards

PAIRS, SHARD = 700, 150  # five shards, in blocks of two lines


class Threads(ThreadPoolExecutor):
    """Makes shards in this process."""

    def __init__(self, workers, context, initializer, arguments) -> None:
        super().__init__(workers)
        prepared_shards._process.update(stop=arguments[0])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are made in this process."""
    monkeypatch.setattr(prepared_shards, "ProcessPoolExecutor", Threads)


def config_of(folder: Path, **options):
    """Of a small run whose training text is in shards."""
    config = small_config(folder)
    text = write_text(folder, "train", PAIRS)
    data = {"shard_pairs": SHARD, "batching": "packed", **text, **options}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


def opened(config, tokenizers_of=None):
    task_class = find_system(config.system).task
    corpus = task_class.open_corpus(config)
    task = task_class.create(config, corpus)
    return task, corpus


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ids_of(task, pairs):
    return [tuple(tuple(x[side]) for side in ("source", "target")) for x in task.stored_examples(pairs)]
