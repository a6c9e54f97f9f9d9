"""Makes batches of ids from sentence pairs, by a plan."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer.config import DataConfig
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.plans import Lengths, Plan, Sentences, plan_of
from transformer.data.sampled_plan import SampledPlan
from transformer.data.store import PairSource
from transformer.errors import UserError
from transformer.files import open_whole

Tokenizers = tuple[Tokenizer, Tokenizer]
Show = Callable[[Iterable, int], Iterable]
"""(items, total) -> the same items, with progress shown."""


def _unseen(items: Iterable, total: int) -> Iterable:
    return items


def token_lengths(
    pairs: PairSource,
    tokenizers: Tokenizers,
    kept: Path,
    progress: Show = _unseen,
) -> Lengths:
    """The number of tokens of every source and target, including <eos>; computed once and cached in `kept`.

    An empty side has length 0.
    """
    if kept.exists():
        return np.load(kept, allow_pickle=False)
    lengths = np.zeros((len(pairs), 2), np.int32)
    for index, pair in enumerate(progress(pairs, len(pairs))):
        for side, (text, tokenizer) in enumerate(zip(pair, tokenizers, strict=True)):
            lengths[index, side] = len(tokenizer.encode(text)) + 1 if text.strip() else 0
    try:
        with open_whole(kept) as file:
            np.save(file, lengths)
    except OSError as error:
        raise UserError(f"cannot write {kept}: {error.strerror}; see --data.cache-dir") from error
    return lengths


def make_plan(
    pairs: PairSource, tokenizers: Tokenizers, lengths: Lengths, data: DataConfig, progress: Show = _unseen
) -> Plan:
    """The plan of the config.

    Raises:
      UserError: no pair is short enough to keep.
    """
    plan: Plan
    if data.subword_sampling:

        def draw(epoch: int, chosen: Int[np.ndarray, " pairs"]) -> Iterator[Sentences]:
            for index, pair in zip(chosen, pairs.__getitems__(chosen.tolist()), strict=True):
                yield _sampled(pair, tokenizers, data.subword_sampling, (data.seed, epoch, int(index)))

        plan = SampledPlan(lengths, data, draw, progress)
    else:
        plan = plan_of(lengths, data)
    if plan.dropped == len(lengths):
        raise UserError(
            f"all {plan.dropped} training pairs are empty or longer than --data.max-length "
            f"{data.max_length}: raise it"
        )
    return plan


def _sampled(
    pair: tuple[str, str], tokenizers: Tokenizers, strength: float, seed: tuple[int, int, int]
) -> Sentences:
    """A sampled segmentation of both sides, the same for the same seed."""
    source, target = (
        [*tokenizer.sample(text, np.random.default_rng((*seed, side)), strength), tokenizer.special.eos]
        for side, (text, tokenizer) in enumerate(zip(pair, tokenizers, strict=True))
    )
    return source, target


@dataclass(frozen=True)
class Batcher:
    """Makes the batches of a plan: this process's share of the rows, as padded ids.

    `batcher(step)` is `{"source": [rows, length], "target": [rows, length]}`, each sentence closed
    by <eos>; packed rows add `source_segments` and `target_segments`. The number of rows depends
    only on the length, so there is one shape for each length.
    """

    pairs: PairSource
    tokenizers: Tokenizers
    plan: Plan
    data: DataConfig
    host: int = 0
    hosts: int = 1

    def __call__(self, step: int) -> dict[str, Int[np.ndarray, "rows length"]]:
        rows = self.plan(step)
        total = self.data.batch_tokens // rows.length
        share = -(-total // self.hosts)
        mine = rows.pairs[self.host * share : (self.host + 1) * share]
        chosen = [pair for row in mine for pair in row]
        if rows.sentences is None:
            encoded = map(self._encode, self.pairs.__getitems__(chosen))
        else:
            encoded = map(rows.sentences.__getitem__, chosen)
        pad = self.tokenizers[0].special.pad
        shape = (share, rows.length)
        ids = {side: np.full(shape, pad, np.int32) for side in ("source", "target")}
        segments = {side: np.zeros(shape, np.int32) for side in ("source", "target")}
        for row, members in enumerate(mine):
            filled = {"source": 0, "target": 0}
            for segment, sentences in enumerate((next(encoded) for _ in members), start=1):
                for side, sentence in zip(("source", "target"), sentences, strict=True):
                    place = slice(filled[side], filled[side] + len(sentence))
                    ids[side][row, place] = sentence
                    segments[side][row, place] = segment
                    filled[side] += len(sentence)
        if self.data.batching == "packed":
            ids |= {f"{side}_segments": values for side, values in segments.items()}
        return ids

    def _encode(self, pair: tuple[str, str]) -> Sentences:
        source, target = (
            [*tokenizer.encode(text), tokenizer.special.eos]
            for text, tokenizer in zip(pair, self.tokenizers, strict=True)
        )
        return source, target

    def stream(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps [start, stop), prepared ahead by Grain's threads."""
        import grain

        steps = grain.MapDataset.range(start, stop).map(self)
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        return iter(steps.to_iter_dataset(options))


def fixed_batches(
    pairs: Iterable[tuple[str, str]], tokenizers: Tokenizers, data: DataConfig
) -> Iterator[dict[str, Int[np.ndarray, "rows length"]]]:
    """Yields batches of all pairs, in order of length, in the buckets of training: for the validation loss.

    Pairs longer than max_length are truncated.
    """
    special = tokenizers[0].special
    encoded = []
    for pair in pairs:
        sides = [
            [*t.encode(x)[: data.max_length - 1], special.eos] for x, t in zip(pair, tokenizers, strict=True)
        ]
        encoded.append(sides)
    encoded.sort(key=lambda sides: max(map(len, sides)))
    while encoded:
        length = next(size for size in data.lengths if size >= max(map(len, encoded[0])))
        rows = data.batch_tokens // length
        fitting = [sides for sides in encoded[:rows] if max(map(len, sides)) <= length]
        del encoded[: len(fitting)]
        batch = np.full((2, rows, length), special.pad, np.int32)
        for row, sides in enumerate(fitting):
            for side, ids in enumerate(sides):
                batch[side, row, : len(ids)] = ids
        yield {"source": batch[0], "target": batch[1]}
