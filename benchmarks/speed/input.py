"""How fast a preset's training text becomes batches: stage by stage, and all of it as in training.

`python -m benchmarks.speed.input quickstart --batch-tokens 25000`. Rates are target tokens, or frames of
sound, per second of processor time, and per second of the clock.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import positive, run
from transformer.runtime.errors import UserError
from transformer.systems.presets import preset

READ = 20_000  # records of which the reading and the encoding is timed


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each stage."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("preset", nargs="?", default="quickstart", help="see train.py --list-presets")
    parser.add_argument("--batching", choices=("buckets", "packed"), help="default: the preset's")
    parser.add_argument("--batch-tokens", type=positive, help="default: the preset's")
    parser.add_argument("--tokenizer", help="default: the preset's")
    parser.add_argument("--subword-sampling", type=float, help="default: the preset's")
    parser.add_argument("--sampling-by", choices=("word", "sentence"), help="default: word where possible")
    parser.add_argument("--batches", type=positive, default=200)
    parser.add_argument("--cache-dir", type=Path, help="as --data.cache-dir")
    given = parser.parse_args(arguments)

    from benchmarks.measure import machine
    from transformer.data.plans import Batcher
    from transformer.data.sequences import sides
    from transformer.systems.registry import find_system
    from transformer.tasks.preparation import prepare
    from transformer.training.sharding import Replicas

    chosen = ("batching", "batch_tokens", "tokenizer", "subword_sampling", "sampling_by", "cache_dir")
    changes = {name: value for name in chosen if (value := getattr(given, name)) is not None}
    config = preset(given.preset)
    if unknown := sorted(changes.keys() - vars(config.data).keys()):
        option = unknown[0].replace("_", "-")
        raise UserError(f"--{option}: system {config.system} has no such option; leave it out")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
    kind = find_system(config.system).task
    corpus = kind.open_corpus(config)
    task = kind.create(config, corpus)
    task.decide(corpus)
    data = prepare(task, corpus)
    batcher, fields = data.batcher, task.fields
    counted = task.counted or sides(fields)[-1]

    def elements(batches: Iterable[Any]) -> int:
        """How many are counted, without padding."""
        values = (
            np.asarray(batch[counted]).reshape(*batch[counted].shape[:2], -1)[..., 0] for batch in batches
        )
        return int(sum((each != fields[counted].fill).sum() for each in values))

    train = corpus.splits["train"]
    few = range(min(READ, len(train)))
    records = train.__getitems__(few)
    share = sum(len(example[counted]) for example in task.examples(records))
    whole = share * len(train) // len(few)
    steps = range(given.batches)
    total = elements(map(batcher, steps))
    batches = [batcher(step) for step in range(8)]
    each = Replicas()
    plan, planned = "plan of all", whole
    if sampled := batcher.plan(0).examples:
        plan, planned = "a window sampled and planned", len(sampled[0][counted].values)

    def anew() -> Batcher:
        """Without the windows that are already sampled."""
        return dataclasses.replace(batcher, plan=task.plan(train, batcher.examples)) if sampled else batcher

    stages: dict[str, tuple[int, Callable[[], object]]] = {
        "records read": (share, lambda: train.__getitems__(few)),
        "examples encoded": (share, lambda: task.stored_examples(records)),
        plan: (planned, lambda: task.plan(train, batcher.examples)),
        "batches gathered": (total, lambda: [batcher(step) for step in steps]),
        "batches on the device": (elements(batches), lambda: list(each.batches(batches))),
        "in training": (total, lambda: list(each.batches(anew().stream(0, given.batches)))),
    }
    unit = "frames" if fields[counted].shape else "tokens"
    for name, (count, work) in stages.items():
        processor, clock = time.process_time(), time.perf_counter()
        work()
        rates = [count / max(x, 1e-9) for x in (time.process_time() - processor, time.perf_counter() - clock)]
        print(f"{name}: {rates[0]:,.0f} {unit} a CPU second, {rates[1]:,.0f} a second", flush=True)
    print(machine())


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
