"""How fast a preset's training text becomes batches: stage by stage, and all of it as in training.

`python -m benchmarks.speed.input quickstart --batch-tokens 25000`. Rates are target tokens, or frames of
sound, per second of processor time, and per second of the clock.

`python -m benchmarks.speed.input --pairs 250000 1000000 --workers 1 2 --whole` makes text files of so many
pairs (the built-in corpus, with numbers, so that none repeats another), prepares them in shards with a given
vocabulary, and prints a line each: seconds, processor seconds, the largest process, and the disk as a
multiple of the ids. The processor time of this process, which no worker shares, is given twice: without and
with the remarks on unusual pairs. There may be more workers than cores, to see what they cost. `--whole` also
prepares them as a whole, as training does without `--data.shard-pairs`.
`--shuffle` adds how well 200 batches are shuffled: how far apart neighbours are in the text (a third of it,
if at random), how many are within a thousandth of it (0.2 %), and the deviation of the mean position of a
batch (1).
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import positive, run
from transformer.runtime.errors import UserError
from transformer.systems.presets import preset

OF_VOCABULARY = 50_000  # pairs
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
    text = parser.add_argument_group("text files in shards")
    text.add_argument("--pairs", nargs="+", type=positive, help="how many; nothing else is measured")
    text.add_argument("--workers", nargs="+", type=positive, default=[1, 2])
    text.add_argument("--shard-pairs", type=positive, default=1_000_000)
    text.add_argument("--vocab-size", type=positive, default=8000)
    text.add_argument("--whole", action="store_true", help="also without shards")
    text.add_argument("--shuffle", action="store_true", help="also how well batches are shuffled")
    given = parser.parse_args(arguments)
    if given.pairs:
        prepare_text_files(given)
        return

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


# Text files in shards: in a process each, so that its memory can be told.


IN_PROCESS = """
import json, resource, sys, time
import numpy as np
from dataclasses import replace
from pathlib import Path
from transformer.systems.presets import preset
from transformer.systems.registry import find_system
from transformer.tasks import preparation

def main():
    given = json.loads(sys.argv[1])
    preparation.cores = lambda: given["options"].get("workers")
    config = preset("quickstart")
    paths = {name: Path(path) for name, path in given["paths"].items()}
    changes = dict(max_length=128, batch_tokens=25_000, vocab_size=given["vocab_size"], **given["options"])
    config = replace(config, data=replace(config.data, **paths, **changes))
    kind = find_system(config.system).task
    start, imported = time.monotonic(), time.process_time()
    corpus = kind.open_corpus(config)
    data = preparation.prepare(kind.create(config, corpus), corpus)
    data.batcher(0)
    first = time.monotonic() - start
    shards = getattr(data.batcher.plan, "shards", None)
    folder = corpus.folder
    if shards:
        shards.wait(range(len(shards)))
        folder = shards.folder
    data.batcher.plan.close()
    seconds, alone = time.monotonic() - start, time.process_time() - imported
    shuffle = shuffled(data.batcher.plan, len(corpus.splits["train"])) if given["shuffle"] else None
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    before = time.process_time()
    kind.remarks(config, corpus)
    remarked = alone + time.process_time() - before
    disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    ids = sum(file.stat().st_size for name in ("source", "target") for file in folder.rglob(name + ".uint16"))
    print(json.dumps({
        "first": first, "seconds": seconds, "alone": [alone, remarked],
        "cpu": sum(x.ru_utime + x.ru_stime for x in usage),
        "largest": max(x.ru_maxrss for x in usage) / 1024, "disk": disk, "ids": ids,
        "shuffle": shuffle,
    }))

def shuffled(plan, count):
    random = np.random.default_rng(0)
    distances, near, means = [], [], []
    for step in random.integers(plan.steps_per_epoch, size=200).tolist():
        positions = plan(step).chosen / count
        away = np.abs(np.diff(positions))
        distances.append(away.mean())
        near.append((away < 1e-3).mean())
        means.append((positions.mean() - 0.5) * np.sqrt(12 * len(positions)))
    return [float(np.mean(distances)), float(np.mean(near)), float(np.std(means))]

if __name__ == "__main__":
    main()
"""


def prepare_text_files(given: argparse.Namespace) -> None:
    """Prints a line for each number of pairs and of workers."""
    from benchmarks.measure import machine
    from transformer import train_tokenizer
    from transformer.data import built_in

    print(machine())
    print("| pairs | workers | first batch, s | all, s | CPU s (here) | pairs a CPU s | MB | disk / ids |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "prepare.py").write_text(IN_PROCESS, encoding="utf-8")
        some = list(itertools.islice(built_in.pairs(seed=0, split="train"), OF_VOCABULARY))
        tokenizer = root / "joint.model"
        lines = (f"{text} {number}" for number, pair in enumerate(some) for text in pair)
        train_tokenizer(lines, "bpe", given.vocab_size).save(tokenizer)
        paths = {"source_tokenizer": str(tokenizer)}
        for pairs in given.pairs:
            for split, count in (("train", pairs), ("validation", 100)):
                for side, ending in enumerate(("source", "target")):
                    path = paths[f"{split}_{ending}"] = str(root / f"{split}.{ending}")
                    with open(path, "w", encoding="utf-8") as file:
                        repeated = itertools.cycle(pair[side] for pair in some)
                        file.writelines(f"{next(repeated)} {number}\n" for number in range(count))
            for workers in [*given.workers, *([0] if given.whole else [])]:
                options = {"workers": workers, "shard_pairs": given.shard_pairs} if workers else {}
                cache = root / "cache"
                about = {
                    "paths": {**paths, "cache_dir": str(cache)},
                    "options": options,
                    "vocab_size": given.vocab_size,
                    "shuffle": given.shuffle,
                }
                command = [sys.executable, str(root / "prepare.py"), json.dumps(about)]
                told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                subprocess.run(["rm", "-rf", str(cache)], check=True)
                alone = ", ".join(f"{seconds:.1f}" for seconds in told["alone"])
                print(
                    f"| {pairs:,} | {workers or 'whole'} | {told['first']:.1f} | {told['seconds']:.1f} "
                    f"| {told['cpu']:.1f} ({alone}) | {pairs / told['cpu']:,.0f} "
                    f"| {told['largest']:,.0f} "
                    f"| {told['disk'] / told['ids']:.2f} |",
                    flush=True,
                )
                if told["shuffle"]:
                    apart, near, deviation = told["shuffle"]
                    text = f"neighbours {apart:.3f} of the text apart, {near:.2%} near"
                    print(f"{text}; deviation {deviation:.2f}", flush=True)


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
