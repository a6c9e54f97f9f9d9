"""Updates of a config outside the training loop, to time or to look into them."""

import itertools
from collections.abc import Iterator

from transformer import Config, Translator
from transformer.config.options import text_data
from transformer.data.sources.corpora import open_corpus
from transformer.systems.registry import find_system
from transformer.tasks.preparation import prepare
from transformer.training.methods.registry import objective_of
from transformer.training.schedule import make_optimizer
from transformer.training.sharding import Replicas
from transformer.training.step import TrainState, configured_step, init_state


def updates(config: Config, repeat: bool = False) -> Iterator[tuple[TrainState, dict[str, float]]]:
    """Trains endlessly, and yields the state and the metrics after each update. The next one takes the
    state's memory: keep copies of what you need.

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
    one_update = configured_step(config.training, model, objective, optimizer, layout.gather)
    step = layout.compile_step(one_update, donate_state=True)
    batcher = prepare(task, corpus).batcher
    batches = layout.batches(map(batcher, itertools.count()))
    for batch in itertools.repeat(next(batches)) if repeat else batches:
        state, metrics = step(state, batch)
        yield state, {name: float(value) for name, value in metrics.items()}
