"""The batch plan is a pure function. With any number of processes, batches have every kept pair once per
epoch."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from planned_pairs import (
    LENGTHS,
    PAIRS,
    TOKENIZER,
    TOKENIZERS,
    batcher_of,
    epoch_of,
    examples_with,
    make_plan,
    members,
    task_of,
)
from python_calls import python_calls

from transformer.config.corpus import DataConfig
from transformer.data import plans
from transformer.data.plans import Batcher, Batching, PackedPlan, fixed_batches, plan_of
from transformer.data.sequences import side_lengths, sides
from transformer.data.sources.source import InMemory
from transformer.data.store import Corpus
from transformer.runtime.errors import UserError
from transformer.systems.presets import PRESETS
from transformer.systems.registry import find_system
from transformer.tasks.preparation import examples_of
from transformer.tasks.texts.translation import Translation

BUCKETS = DataConfig(max_length=20, buckets=(5, 8, 12), batch_tokens=60, seed=3)
PACKED = dataclasses.replace(BUCKETS, batching="packed")
BOTH = pytest.mark.parametrize("data", [BUCKETS, PACKED], ids=["buckets", "packed"])


@BOTH
def test_every_kept_pair_once_an_epoch(data):
    lengths = LENGTHS.copy()
    lengths[4] = [21, 3]  # too long
    lengths[9] = [0, 3]  # empty
    plan = make_plan(PAIRS, TOKENIZERS, lengths, data)
    assert plan.dropped == 2
    for epoch in (0, 1, 5):
        assert members(epoch_of(plan, epoch)) == Counter(set(range(157)) - {4, 9})


@BOTH
def test_pure_function_of_lengths_seed_and_step(data):
    plan, again = make_plan(PAIRS, TOKENIZERS, LENGTHS, data), make_plan(PAIRS, TOKENIZERS, LENGTHS, data)
    steps = [7, 0, 3 * plan.steps_per_epoch + 2]
    assert [plan(step).members for step in steps] == [again(step).members for step in steps[::-1]][::-1]
    other = make_plan(PAIRS, TOKENIZERS, LENGTHS, dataclasses.replace(data, seed=4))
    orders = [[rows.members for rows in each] for each in (epoch_of(plan, 0), epoch_of(plan, 1))]
    assert orders[0] != orders[1]
    assert orders[0] != [rows.members for rows in epoch_of(other, 0)]


def test_buckets_bound_the_shapes_and_the_tokens():
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, BUCKETS)
    batches = epoch_of(plan, 0)
    assert {batch.lengths for batch in batches} <= {(n, n) for n in (5, 8, 12, 20)}
    partial = [batch for batch in batches if len(batch.members) < 60 // batch.lengths[0]]
    assert len(partial) <= 1
    for batch in batches:
        assert len(batch.members) <= 60 // batch.lengths[0] == batch.size
        assert all(LENGTHS[pair].max() <= batch.lengths[0] for row in batch.members for pair in row)
    # all pairs but those moved up from a shorter bucket are in the smallest bucket
    loose = sum(
        LENGTHS[pair].max() <= shorter
        for batch in batches
        for shorter in [max((s for s in (0, 5, 8, 12) if s < batch.lengths[0]), default=0)]
        for row in batch.members
        for pair in row
    )
    assert loose <= sum(60 // length for length in (5, 8, 12))


def test_packed_rows_hold_what_fits():
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, PACKED)
    for batch in epoch_of(plan, 2):
        assert batch.lengths == (20, 20)
        assert all((LENGTHS[row].sum(axis=0) <= 20).all() for row in batch.members)
    assert plan.padding < make_plan(PAIRS, TOKENIZERS, LENGTHS, BUCKETS).padding


def packed_slowly(lengths: np.ndarray, order: np.ndarray, bucket: tuple[int, ...], most: int):
    """First fit, side by side."""
    closed, rows = [], []
    for example in order:
        room = next((room for _, room in rows if (lengths[example] <= room).all()), None)
        if room is None:
            rows.append(([], room := np.array(bucket)))
        next(members for members, each in rows if each is room).append(example)
        room -= lengths[example]
        if len(rows) > most:
            closed.append(rows.pop(int(np.argmin([room.sum() for _, room in rows]))))
    return [members for members, _ in closed + rows]


@pytest.mark.parametrize("bucket", [(20,), (20, 20), (7, 16), (9, 12, 20)])
def test_rows_are_packed_by_first_fit(bucket, monkeypatch):
    monkeypatch.setattr(plans, "OPEN_ROWS", 6)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, np.array(bucket) + 1, (300, len(bucket)), np.int32)
    plan = PackedPlan(lengths, Batching((bucket,), batch_tokens=60, packed=True, seed=4))
    order = np.random.default_rng(4).permutation(300)
    assert [row.tolist() for row in plan._packed] == packed_slowly(lengths, order, bucket, most=6)


@BOTH
def test_padding_is_what_the_batches_show(data):
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, data)
    batcher = batcher_of(PAIRS, TOKENIZERS, plan, data)
    places = words = 0
    for step in range(plan.steps_per_epoch):
        for side in ("source", "target"):
            ids = batcher(step)[side]
            places, words = places + ids.size, words + (ids != 0).sum()
    assert plan.padding == pytest.approx(1 - words / places)


def test_rows_are_the_sentences():
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, BUCKETS)
    batch = batcher_of(PAIRS, TOKENIZERS, plan, BUCKETS)(0)
    for row, [pair] in enumerate(plan(0).members):
        for side, text in zip(("source", "target"), PAIRS[pair], strict=True):
            ids = batch[side][row]
            assert TOKENIZER.decode(ids) == text
            assert ids[len(text.split())] == TOKENIZER.special.eos


def test_packed_segments_say_who_is_who():
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, PACKED)
    batch = batcher_of(PAIRS, TOKENIZERS, plan, PACKED)(1)
    for row, pairs in enumerate(plan(1).members):
        for segment, pair in enumerate(pairs, start=1):
            for side, text in zip(("source", "target"), PAIRS[pair], strict=True):
                mine = batch[f"{side}_segments"][row] == segment
                assert TOKENIZER.decode(batch[side][row][mine]) == text
    assert ((batch["source_segments"] == 0) == (batch["source"] == 0)).all()


@BOTH
@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_share_the_same_global_batch(data, hosts):
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, data)
    for step in (0, plan.steps_per_epoch + 1):
        whole = batcher_of(PAIRS, TOKENIZERS, plan, data)(step)
        shares = [batcher_of(PAIRS, TOKENIZERS, plan, data, host, hosts)(step) for host in range(hosts)]
        assert len({share["source"].shape for share in shares}) == 1
        for name, rows in whole.items():
            together = np.concatenate([share[name] for share in shares])
            assert (together[: len(rows)] == rows).all()
            assert (together[len(rows) :] == 0).all()


def test_grain_streams_the_same_batches_from_any_step():
    plan = make_plan(PAIRS, TOKENIZERS, LENGTHS, BUCKETS)
    batcher = batcher_of(PAIRS, TOKENIZERS, plan, BUCKETS)
    streamed = list(batcher.stream(5, 9))
    assert len(streamed) == 4
    for step, batch in enumerate(streamed, start=5):
        assert all((batch[side] == batcher(step)[side]).all() for side in batch)


def test_examples_are_made_once(tmp_path, monkeypatch):
    calls = []
    encode = type(TOKENIZER).encode

    def counting(self, text):
        calls.append(text)
        return encode(self, text)

    monkeypatch.setattr(type(TOKENIZER), "encode", counting)
    pairs = InMemory([*PAIRS[:10], ("only a source", " "), ("", "only a target")])
    corpus, task = Corpus("pairs", {"train": pairs}, tmp_path), task_of(BUCKETS)
    lengths = side_lengths(examples_of(task, corpus))
    assert (lengths[:10] == LENGTHS[:10]).all()
    assert lengths[10, 1] == 0
    assert lengths[11, 0] == 0
    assert len(calls) == 24
    assert (side_lengths(examples_of(task, corpus)) == lengths).all()
    assert len(calls) == 24
    assert len(list(tmp_path.iterdir())) == 1


def test_validation_batches_hold_everything_once_in_the_same_shapes():
    seen = Counter()
    task = task_of(BUCKETS)
    examples, buckets = task.examples(PAIRS, truncate=True), task.batching().buckets
    for batch in fixed_batches(examples, task.fields, buckets, 60):
        assert batch["source"].shape[1] in BUCKETS.lengths
        assert batch["source"].shape == (60 // batch["source"].shape[1], batch["source"].shape[1])
        for source, target in zip(batch["source"], batch["target"], strict=True):
            if source.any():
                seen[TOKENIZER.decode(source), TOKENIZER.decode(target)] += 1
    assert seen == Counter(PAIRS)
    for whole in fixed_batches(examples, task.fields, buckets, 60):
        hosts = [fixed_batches(examples, task.fields, buckets, 60, host, 2) for host in range(2)]
        halves = [next(batch for batch in each) for each in hosts]
        together = np.concatenate([half["source"] for half in halves])
        assert (together[: len(whole["source"])] == whole["source"]).all()
        break


def test_sides_have_lengths_of_their_own():
    """Frames and words: each bucket has a length for either, and features keep their width."""
    random = np.random.default_rng(0)
    lengths = np.stack([random.integers(1, 1000, 300), random.integers(1, 30, 300)], axis=1)
    batching = Batching(((200, 8), (500, 16), (1000, 30)), batch_tokens=8000, packed=False, seed=0)
    plan = plan_of(lengths, batching)
    for batch in epoch_of(plan, 0):
        assert batch.lengths in batching.buckets
        assert batch.size == 8000 // batch.lengths[0]
        assert all((lengths[index] <= batch.lengths).all() for row in batch.members for index in row)
    assert members(epoch_of(plan, 0)) == Counter(range(300))


def larger(config, times):
    data = config.data
    return dataclasses.replace(config, data=dataclasses.replace(data, batch_tokens=data.batch_tokens * times))


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("tiny", {"batching": "packed"}),
        ("tiny", {"batching": "buckets"}),
        ("dialogue-en", {}),
        ("language-model", {}),
        ("speech", {}),
        ("synthesis", {}),
    ],
)
def test_no_python_runs_for_each_example(preset, changes):
    """A batch of four times as many examples takes as many calls of functions."""
    config = PRESETS[preset]
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
    kind = find_system(config.system).task
    random = np.random.default_rng(0)

    def calls(config):
        task = kind(config, *([TOKENIZERS] if kind is Translation else [TOKENIZER]))
        fields, count = task.stored_fields, 4000
        lengths = random.integers(3, 10, (count, len(sides(fields))))
        arrays = {name: np.zeros((count, *field.shape), field.dtype) for name, field in fields.items()}
        arrays |= examples_with(lengths, fields)
        batcher = Batcher(arrays, task.fields, task.plan(PAIRS, arrays))
        batcher(0)
        rows = batcher.plan(1)
        return len(rows.chosen), python_calls(lambda: batcher(1))

    few, many = calls(config), calls(larger(config, 4))
    assert many[0] > 3 * few[0]
    assert many[1] <= few[1] + 4


@BOTH
def test_nothing_short_enough_is_an_error(data):
    with pytest.raises(UserError, match="--data.max-length 20"):
        make_plan(PAIRS, TOKENIZERS, LENGTHS + 30, data)


def test_a_batch_must_hold_the_longest_sentence():
    with pytest.raises(UserError, match="--data.batch-tokens 99 cannot hold"):
        DataConfig(max_length=100, batch_tokens=99)
