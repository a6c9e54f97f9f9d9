"""The order in which sets of labels are learned."""

import dataclasses
import itertools
import json
from collections import Counter

import numpy as np
import pytest
from small_run import quiet, same
from toy_label_sets import config_of, write

from transformer import DataConfig, UserError
from transformer.data.epochs import reordered, sampled_by, shuffled
from transformer.data.sequences import Field, Sequences
from transformer.data.sources.corpora import open_corpus
from transformer.data.store import TextRecord
from transformer.systems.registry import system_of
from transformer.tasks.preparation import prepare
from transformer.tasks.task import Evaluation
from transformer.tasks.texts import text_task_of
from transformer.trainer.checks import OF_CORPUS
from transformer.trainer.train import train

ORDERS = DataConfig.__annotations__["label_order"].__args__
COMMA, EOS = 9, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    write(folder)
    return folder


def task_and_corpus(folder, **options):
    config = config_of(folder, **options)
    corpus = open_corpus(config.data)
    task = text_task_of("label-sets").create(config, corpus)
    for check in OF_CORPUS:  # as in training: before anything is learned
        check(system_of(config), task, corpus)
    task.learn(corpus)
    task.decide(corpus)
    return task, corpus


def epoch_of(task, batcher, epoch):
    """Of each training example in an epoch, its text, and its labels in the order that is trained on."""
    steps = range(epoch * batcher.plan.steps_per_epoch, (epoch + 1) * batcher.plan.steps_per_epoch)
    for step in steps:
        batch = batcher(step)
        segments = batch.get("source_segments", np.sign(batch["source"])), batch.get("target_segments")
        for row, (source, target) in enumerate(zip(batch["source"], batch["target"], strict=True)):
            for number in range(1, segments[0][row].max(initial=0) + 1):
                of_source = source[segments[0][row] == number]
                of_target = target if segments[1] is None else target[segments[1][row] == number]
                yield task.spell(of_source.tolist()), task.labels_of(task.spell(of_target.tolist()))


def sets_of(pairs):
    """Texts and their labels, without an order."""
    return Counter((text, *sorted(labels)) for text, labels in pairs)


# --- arrays ---


def ids_of(labels):
    """The ids of labels with a comma after each but the last."""
    joined = [token for label in labels for token in (*label, COMMA)]
    return [*joined[:-1], EOS]


def test_sets_are_reordered_as_by_a_loop():
    """Labels of one or several ids, sets of one or several labels: each set is sorted by the keys."""
    random = np.random.default_rng(0)
    sets = []
    for _ in range(50):
        labels = [list(random.integers(10, 99, random.integers(1, 4))) for _ in range(random.integers(1, 6))]
        sets.append(labels)
    keys = random.random(sum(map(len, sets)))
    result = reordered(Sequences.of([*map(ids_of, sets)], Field("uint16")), COMMA, lambda *_: keys, random)
    rest = iter(keys)
    for number, labels in enumerate(sets):
        drawn = [next(rest) for _ in labels]
        expected = [label for _, label in sorted(zip(drawn, labels, strict=True), key=lambda pair: pair[0])]
        assert result[number].tolist() == ids_of(expected)
    assert result.values.dtype == np.uint16


def orders_of(keys, labels, count):
    """How often each order of a set is drawn."""
    many = Sequences.of([ids_of([[label] for label in labels])] * count, Field("int32"))
    result = reordered(many, COMMA, keys, np.random.default_rng(0)).values.reshape(count, -1)
    return Counter(map(tuple, result[:, : 2 * len(labels) : 2].tolist()))


def test_all_orders_are_equally_likely():
    drawn = orders_of(shuffled, (10, 11, 12), 6000)
    assert len(drawn) == 6
    assert all(abs(count - 1000) < 5 * (1000 * 5 / 6) ** 0.5 for count in drawn.values())


def test_orders_are_drawn_by_frequency():
    """The probability of an order is the product of the shares among the remaining labels (Plackett 1975)."""
    counts = np.zeros(20, np.int64)
    counts[[10, 11, 12]] = 6, 3, 1
    drawn = orders_of(sampled_by(counts), (10, 11, 12), 20_000)
    for order in itertools.permutations((10, 11, 12)):
        weights = counts[list(order)]
        p = np.prod([weights[index] / weights[index:].sum() for index in range(3)])
        assert abs(drawn[order] - 20_000 * p) < 5 * (20_000 * p * (1 - p)) ** 0.5


# --- batches ---


@pytest.mark.parametrize("batching", ["buckets", "packed"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
def test_batches_have_the_labels_of_their_text(folder, order, batching, tokenizer):
    """Every text has its labels in every epoch, in the order of the data, by frequency, or in new orders."""
    options = {"tokenizer": tokenizer, "vocab_size": 290 if tokenizer == "bpe" else 100, "max_length": 40}
    if (tokenizer, order) == ("bpe", "sampled"):
        with pytest.raises(UserError, match="sampled: .* is more than one token; use --data.tokenizer word"):
            task_and_corpus(folder, label_order=order, batching=batching, **options)
        return
    task, corpus = task_and_corpus(folder, label_order=order, batching=batching, **options)
    batcher = prepare(task, corpus).batcher
    epochs = [sorted(epoch_of(task, batcher, epoch)) for epoch in range(3)]
    assert epochs[0] == sorted(epoch_of(task, batcher, 0))
    records = sorted((record.source, task.labels_of(record.target)) for record in corpus.splits["train"])
    for epoch in epochs:
        assert sets_of(epoch) == sets_of(records)
    if order == "given":
        assert epochs[0] == records
    elif order == "sorted":
        counts = Counter(label for _, labels in records for label in labels)
        assert all(labels == sorted(labels, key=lambda x: (-counts[x], x)) for _, labels in epochs[0])
        assert epochs[0] == epochs[1] != records
    else:
        assert epochs[0] != epochs[1] != epochs[2]


def test_processes_have_their_share_of_the_same_orders(folder):
    task, corpus = task_and_corpus(folder, label_order="shuffled")
    whole = prepare(task, corpus).batcher
    shares = [prepare(task, corpus, host=host, hosts=2).batcher(3) for host in range(2)]
    for side, array in whole(3).items():
        assert (np.concatenate([share[side] for share in shares])[: len(array)] == array).all()


def test_orders_go_with_sampled_subwords(folder):
    """The labels of sampled segmentations are reordered, too."""
    options = {"tokenizer": "bpe", "vocab_size": 290, "max_length": 60, "subword_sampling": 0.2}
    task, corpus = task_and_corpus(folder, label_order="shuffled", sampling_by="sentence", **options)
    epoch = list(epoch_of(task, prepare(task, corpus).batcher, 0))
    records = {record.source: task.labels_of(record.target) for record in corpus.splits["train"]}
    assert all(sorted(labels) == sorted(records[text]) for text, labels in epoch)
    assert any(labels != records[text] for text, labels in epoch)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sorted", "sampled"])
def test_a_resumed_run_has_the_same_orders(folder, tmp_path, order):
    """Bit for bit, with an interruption in the middle of an epoch."""
    config = config_of(folder, label_order=order, cache_dir=tmp_path)
    config = dataclasses.replace(
        config, training=dataclasses.replace(config.training, steps=6, evaluate_every=3)
    )
    whole = train(config, tmp_path / "whole", watch=quiet())
    half = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=3))
    train(half, tmp_path / "halves", watch=quiet())
    assert same(whole, train(config, tmp_path / "halves", watch=quiet()))


# --- scores, refusals ---


def test_scores_do_not_depend_on_the_order(folder):
    task, corpus = task_and_corpus(folder)
    records = list(corpus.splits["train"])
    outputs = [records[index - 1].target for index in range(len(records))]
    turned = [", ".join(reversed(task.labels_of(output))) for output in outputs]
    references = [TextRecord(x.source, ", ".join(reversed(task.labels_of(x.target)))) for x in records]
    scores = [task.scores(Evaluation(*both, {})) for both in ((records, outputs), (references, turned))]
    assert scores[0] == scores[1]
    assert {0 < score.value < 100 for score in scores[0].values()} == {True}


def test_orders_that_cannot_be():
    for options, message in (
        ({"label_order": "sorted"}, "sorted: only sets of labels have no order; give --data.task label-sets"),
        (
            {"label_order": "sampled", "task": "label-sets", "subword_sampling": 0.1},
            "sampled: with --data.subword-sampling labels are more than one token; leave one of them out",
        ),
    ):
        with pytest.raises(UserError, match=f"--data.label-order {message}"):
            DataConfig(**options)


def test_a_vocabulary_whose_commas_are_not_apart(folder):
    with pytest.raises(UserError, match="shuffled: this vocabulary does not encode labels and the commas"):
        task_and_corpus(folder, label_order="shuffled", tokenizer="whitespace")


def test_counts_of_labels_are_stored(folder, tmp_path):
    task, _ = task_and_corpus(folder, label_order="sorted")
    task.save(tmp_path)
    again = type(task).load(task.config, tmp_path)
    assert (again.labels, again.counts, again.content()) == (task.labels, task.counts, task.content())
    (tmp_path / "labels.json").write_text(json.dumps({"labels": task.labels}))  # of an earlier version
    with pytest.raises(UserError, match="labels.json of this run has no counts, and"):
        type(task).load(task.config, tmp_path).content()
    (tmp_path / "labels.json").write_text(json.dumps({"labels": task.labels, "counts": [1]}))
    with pytest.raises(UserError, match=r"labels.json is damaged: there must be a count for each label"):
        type(task).load(task.config, tmp_path)
