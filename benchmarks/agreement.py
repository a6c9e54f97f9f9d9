"""Checks that slots find what whole batches find: the same hypotheses, in any order of arrival.

`python -m benchmarks.agreement RUN` translates a run's test set in batches that are searched at once, and in
slots in three orders. It compares all hypotheses of each sentence. Float32 sums have another order in a slot,
so hypotheses with nearly the same score may change places: such ties are counted and listed.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

from benchmarks.__main__ import sentences
from benchmarks.command import positive, run
from benchmarks.measure import machine
from transformer.decoding.lanes import batch
from transformer.errors import UserError
from transformer.translator.lengths import of_like_length
from transformer.translator.translator import Translator

TIE = 1e-5  # difference in score
EVERYTHING = 10**9
Found = list[list[tuple[tuple[int, ...], float]]]
"""The ids and the score of each hypothesis of each sentence."""


def in_batches(translator: Translator, sources: Sequence[str]) -> Found:
    """What the search of a whole batch finds."""
    settings = translator.settings(None, {})
    fields = {name: translator.task.fields[name] for name in translator.task.inputs}
    examples = translator.task.input_examples([(source, "") for source in sources], settings.buckets[-1])
    groups = list(of_like_length([len(example["source"]) for example in examples], settings))
    found: Found = [[] for _ in sources]
    for rows, length in track(groups, "in batches"):
        inputs = batch([examples[row] for row in rows], fields, length, settings.rows)
        lines = jnp.asarray(np.resize(rows, settings.rows).astype(np.int32) + 1)
        arrays = jax.tree.map(jnp.asarray, inputs)
        result = translator.system.search(translator.model, translator.variables, arrays, lines, settings)
        for row, tokens, scores in zip(
            rows, np.asarray(result.tokens), np.asarray(result.scores), strict=False
        ):
            kept = [tuple(ids[ids != translator.task.special.pad].tolist()) for ids in tokens]
            found[row] = [(ids, float(score)) for ids, score in zip(kept, scores, strict=True) if ids]
    return found


def in_slots(translator: Translator, sources: Sequence[str], order: Sequence[int]) -> Found:
    """What slots find, if the sentences arrive in this order."""
    found: Found = [[] for _ in sources]
    futures = {row: translator.submit(sources[row], line=row + 1) for row in order}
    for row in track(order, "in slots"):
        hypotheses: Any = futures[row].result()
        found[row] = [(each.ids, each.score) for each in hypotheses]
    return found


def differences(expected: Found, found: Found) -> Iterator[tuple[int, float]]:
    """The sentences whose hypotheses differ, from 0, and the largest difference in score."""
    for row, (one, other) in enumerate(zip(expected, found, strict=True)):
        if [ids for ids, _ in one] != [ids for ids, _ in other]:
            pairs = zip(one, other, strict=True)
            yield row, max(abs(a - b) for (_, a), (_, b) in pairs) if len(one) == len(other) else np.inf


def main(arguments: list[str] | None = None) -> None:
    """Compares, and prints what differs.

    Raises:
      UserError: more than ties differ.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument(
        "--count", type=positive, default=EVERYTHING, help="sentences of its test set; default: all"
    )
    given = parser.parse_args(arguments)
    translator = Translator.load(given.run)
    sources = [source for source in sentences(given.run, given.count) if source.strip()]
    expected, wrong = in_batches(translator, sources), 0
    ascending = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    mixed = random.Random(0).sample(ascending, len(ascending))
    orders = {"as they come": list(range(len(sources))), "the shortest first": ascending, "mixed": mixed}
    for name, order in orders.items():
        differ = dict(differences(expected, in_slots(translator, sources, order)))
        ties = [row + 1 for row, gap in differ.items() if gap < TIE]
        wrong += len(differ) - len(ties)
        same = f"{len(sources) - len(differ):,} of {len(sources):,} the same"
        print(f"{name}: {same}; ties: {', '.join(map(str, ties)) or 'none'}")
    print(machine())
    if wrong:
        raise UserError(f"{wrong} translations differ by more than {TIE} in score")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.agreement", main))
