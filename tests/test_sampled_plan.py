"""Plans of sampled segmentations: every epoch has other samples, none of them is preferred for its length."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from planned_pairs import PAIRS, batcher_of, make_plan

from transformer.config.corpus import DataConfig
from transformer.data.epochs import SampledPlan
from transformer.data.sequences import side_lengths
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runtime.errors import UserError


def test_subword_samples_belong_to_seed_epoch_and_pair():
    tokenizer = train_tokenizer([text for pair in PAIRS for text in pair], "bpe", 300)
    pair_of = (tokenizer, tokenizer)
    data = DataConfig(
        tokenizer="bpe", subword_sampling=0.3, max_length=64, buckets=(64,), batch_tokens=64 * 200
    )
    lengths = np.array([[len(tokenizer.encode(text)) + 1 for text in pair] for pair in PAIRS])
    plan = make_plan(PAIRS, pair_of, lengths, data)

    def rows_by_pair(batcher, step):
        rows = batcher(step)["source"]
        return {pair: rows[row] for row, [pair] in enumerate(plan(step).members)}

    batcher = batcher_of(PAIRS, pair_of, plan, data)
    first, again = rows_by_pair(batcher, 0), rows_by_pair(batcher_of(PAIRS, pair_of, plan, data), 0)
    later = rows_by_pair(batcher, plan.steps_per_epoch)
    assert all((first[pair] == again[pair]).all() for pair in first)
    changed = [pair for pair in first if (first[pair] != later[pair]).any()]
    assert len(changed) > len(first) / 2
    assert all(tokenizer.decode(ids) == PAIRS[pair][0] for pair, ids in (first | later).items())


SUBWORDS = train_tokenizer([text for pair in PAIRS for text in pair], "bpe", 300)


@pytest.mark.by_default("1-packed")
@pytest.mark.parametrize("batching", ["buckets", "packed"])
@pytest.mark.parametrize("windows", [1, 3])
def test_long_samples_are_as_likely_as_short_ones(batching, windows, monkeypatch):
    """Over many epochs, the lengths in the batches follow those of the tokenizer alone."""
    data = DataConfig(
        tokenizer="bpe",
        subword_sampling=0.5,
        max_length=80,
        buckets=(20, 40),
        batch_tokens=400,
        seed=3,
        batching=batching,
    )
    lengths = np.array([[len(SUBWORDS.encode(text)) + 1 for text in pair] for pair in PAIRS])
    monkeypatch.setattr(SampledPlan, "BATCHES", lengths.sum() / 800 / windows)
    plan = make_plan(PAIRS, (SUBWORDS, SUBWORDS), lengths, data)
    epochs = 30
    batches = [plan(step) for step in range(epochs * plan.steps_per_epoch)]
    assert plan._windows == windows
    assert plan.dropped == plan.outgrown == 0
    counts = Counter(pair for rows in batches for pair in rows.chosen.tolist())
    assert (
        abs(sum(counts.values()) / epochs / len(PAIRS) - 1) < 0.15
    )  # a partial batch comes as often as a full one
    drawn = np.concatenate([side_lengths(rows.examples[0])[rows.examples[1]] for rows in batches])
    random = np.random.default_rng(0)
    expected = np.array(
        [
            [len(SUBWORDS.sample(text, random, 0.5)) + 1 for text in pair]
            for pair in PAIRS
            for _ in range(epochs)
        ]
    )
    error = np.sqrt(drawn.var(axis=0) / len(drawn) + expected.var(axis=0) / len(expected))
    assert (np.abs(drawn.mean(axis=0) - expected.mean(axis=0)) < 4 * error).all()
    # and for the pairs themselves: a pair that samples long is seen as often as any other
    long = lengths.sum(axis=1) > np.median(lengths.sum(axis=1))
    often = np.array([counts[pair] for pair in range(len(PAIRS))])
    assert abs(often[long].mean() / often[~long].mean() - 1) < 0.05


def test_samples_that_are_too_long_are_left_out_and_told():
    data = DataConfig(tokenizer="bpe", subword_sampling=0.5, max_length=40, buckets=(40,), batch_tokens=400)
    lengths = np.array([[len(SUBWORDS.encode(text)) + 1 for text in pair] for pair in PAIRS])
    plan = make_plan(PAIRS, (SUBWORDS, SUBWORDS), lengths, data)
    assert 0 < plan.outgrown < 1
    assert plan.dropped == (lengths.max(axis=1) > 40).sum()
    arrays, chosen = plan(0).examples
    assert (side_lengths(arrays)[chosen] <= 40).all()
    strong = dataclasses.replace(data, subword_sampling=1.0, max_length=6, buckets=(6,))
    with pytest.raises(UserError, match="--data.subword-sampling draws is longer"):
        make_plan(PAIRS, (SUBWORDS, SUBWORDS), np.full((len(PAIRS), 2), 5), strong)
