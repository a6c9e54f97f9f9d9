"""How fast large text files become rows of batches, with how much memory and disk.

`python -m benchmarks.speed.shards 250000 1000000 --workers 1 2 --whole` makes files of so many pairs (the
built-in corpus, with numbers, so that none repeats another), prepares them in shards with a given vocabulary,
and prints a line each: seconds, processor seconds, the largest process, and the disk as a multiple of the
ids. `--whole` also prepares them as a whole, as training does without `--data.shard-pairs`. `--shuffle` adds
how well 200 batches are shuffled: how far apart neighbours are in the text (a third of it, if at random), how
many are within a thousandth of it (0.2 %), and the deviation of the mean position of a batch (1).
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.command import positive, run

VOCABULARY = 8000
OF_VOCABULARY = 50_000  # pairs
IN_PROCESS = """
import json, resource, sys, time
import numpy as np
from dataclasses import replace
from pathlib import Path
from transformer.systems.presets import preset
from transformer.systems.registry import find_system
from transformer.tasks.preparation import prepare

def main():
    given = json.loads(sys.argv[1])
    config = preset("quickstart")
    paths = {name: Path(path) for name, path in given["paths"].items()}
    changes = dict(max_length=128, batch_tokens=25_000, vocab_size=given["vocab_size"], **given["options"])
    config = replace(config, data=replace(config.data, **paths, **changes))
    kind = find_system(config.system).task
    start = time.monotonic()
    corpus = kind.open_corpus(config)
    data = prepare(kind.create(config, corpus), corpus)
    data.batcher(0)
    first = time.monotonic() - start
    shards = getattr(data.batcher.plan, "shards", None)
    folder = corpus.folder
    if shards:
        shards.wait(range(len(shards)))
        folder = shards.folder
    data.batcher.plan.close()
    seconds = time.monotonic() - start
    shuffle = shuffled(data.batcher.plan, len(corpus.splits["train"])) if given["shuffle"] else None
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    ids = sum(file.stat().st_size for name in ("source", "target") for file in folder.rglob(name + ".uint16"))
    print(json.dumps({
        "first": first, "seconds": seconds, "cpu": sum(x.ru_utime + x.ru_stime for x in usage),
        "largest": max(x.ru_maxrss for x in usage) / 1024, "disk": disk, "ids": ids,
        "shuffle": shuffle,
    }))

def shuffled(plan, count):
    random = np.random.default_rng(0)
    distances, near, means = [], [], []
    for step in random.integers(plan.steps_per_epoch, size=200).tolist():
        places = plan(step).chosen / count
        away = np.abs(np.diff(places))
        distances.append(away.mean())
        near.append((away < 1e-3).mean())
        means.append((places.mean() - 0.5) * np.sqrt(12 * len(places)))
    return [float(np.mean(distances)), float(np.mean(near)), float(np.std(means))]

if __name__ == "__main__":
    main()
"""


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each number of pairs and of workers."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("pairs", nargs="+", type=positive)
    parser.add_argument("--workers", nargs="+", type=positive, default=[1, 2])
    parser.add_argument("--shard-pairs", type=positive, default=1_000_000)
    parser.add_argument("--whole", action="store_true", help="also without shards")
    parser.add_argument("--shuffle", action="store_true", help="also how well batches are shuffled")
    given = parser.parse_args(arguments)

    from benchmarks.measure import machine
    from transformer import train_tokenizer
    from transformer.data import built_in

    print(machine())
    print("| pairs | workers | first batch, s | all, s | CPU s | pairs a CPU s | largest, MB | disk / ids |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "prepare.py").write_text(IN_PROCESS, encoding="utf-8")
        some = list(itertools.islice(built_in.pairs(seed=0, split="train"), OF_VOCABULARY))
        tokenizer = root / "joint.model"
        lines = (f"{text} {number}" for number, pair in enumerate(some) for text in pair)
        train_tokenizer(lines, "bpe", VOCABULARY).save(tokenizer)
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
                    "vocab_size": VOCABULARY,
                    "shuffle": given.shuffle,
                }
                command = [sys.executable, str(root / "prepare.py"), json.dumps(about)]
                told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                subprocess.run(["rm", "-rf", str(cache)], check=True)
                print(
                    f"| {pairs:,} | {workers or 'whole'} | {told['first']:.1f} | {told['seconds']:.1f} "
                    f"| {told['cpu']:.1f} | {pairs / told['cpu']:,.0f} | {told['largest']:,.0f} "
                    f"| {told['disk'] / told['ids']:.2f} |",
                    flush=True,
                )
                if told["shuffle"]:
                    apart, near, deviation = told["shuffle"]
                    text = f"neighbours {apart:.3f} of the text apart, {near:.2%} near"
                    print(f"{text}; deviation {deviation:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(run(__spec__.name, main))
