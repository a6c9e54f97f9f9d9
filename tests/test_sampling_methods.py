"""How a run samples subwords is decided when it begins, and never changes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from invented_text import LINES
from small_run import interrupted, parameters, quiet, same, small_config
from test_word_sampling import trained_elsewhere

from transformer import Config, DataConfig, Run, UserError, train
from transformer.data.epochs import SampledPlan
from transformer.data.plans import Batcher
from transformer.data.sequences import arrays_of
from transformer.data.sources.source import InMemory
from transformer.data.store import Corpus
from transformer.data.tokenizers.sampled_examples import SentenceDraw, WordDraw
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.tasks.texts.translation import Translation

PAIRS = InMemory(zip(LINES[:300], LINES[300:600], strict=True))
BPE = train_tokenizer(LINES, "bpe", 400)
SAMPLED = DataConfig(
    tokenizer="bpe", subword_sampling=0.2, max_length=60, buckets=(60,), batch_tokens=60 * 40
)


def task_of(tokenizer=BPE, **options) -> Translation:
    return Translation(Config(data=dataclasses.replace(SAMPLED, **options)), (tokenizer, tokenizer))


def decided(task, folder):
    task.decide(Corpus("pairs", {"train": PAIRS, "validation": PAIRS}, folder))
    return task.config.data.sampling_by


def batcher_of(task) -> Batcher:
    examples = arrays_of(task.stored_examples(PAIRS), task.stored_fields)
    return Batcher(examples, task.fields, task.plan(PAIRS, examples))


def test_new_runs_sample_words_where_words_are_independent(tmp_path):
    crossing = trained_elsewhere("bpe", split_by_whitespace=False)
    assert decided(task_of(), tmp_path) == "word"
    assert decided(task_of(crossing), tmp_path) == "sentence"
    assert decided(task_of(sampling_by="sentence"), tmp_path) == "sentence"
    assert decided(task_of(subword_sampling=0.0), tmp_path) is None
    with pytest.raises(UserError, match="--data.sampling-by word: pieces of the source .* cross spaces"):
        batcher_of(task_of(crossing, sampling_by="word"))


def test_the_decision_makes_the_plan(tmp_path):
    task = task_of()
    assert isinstance(batcher_of(task).plan._draw, SentenceDraw)  # as before there was a choice
    task.decide(Corpus("pairs", {"train": PAIRS, "validation": PAIRS}, tmp_path))
    assert isinstance(batcher_of(task).plan._draw, WordDraw)


def test_strength_0_trains_on_the_best_segmentations():
    batcher = batcher_of(task_of(subword_sampling=0.0, sampling_by="word"))
    assert not isinstance(batcher.plan, SampledPlan)
    for pair, ids in zip(batcher.plan(0).chosen, batcher(0)["target"], strict=False):
        assert ids[ids > 0].tolist() == [*BPE.encode(PAIRS[pair][1]), 2]


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_samples_belong_to_seed_and_epoch(batching, monkeypatch):
    """They spell their sentences, in parts of any number, in any window, whoever asks first."""
    monkeypatch.setattr(WordDraw, "part", 70)
    monkeypatch.setattr(SampledPlan, "BATCHES", 1)
    task = task_of(sampling_by="word", batching=batching)
    batcher, again = batcher_of(task), batcher_of(task)
    epoch = batcher.plan.steps_per_epoch
    assert batcher.plan._windows > 1
    found = {step: batcher(step) for step in range(2 * epoch)}
    for step in reversed(range(2 * epoch)):
        for name, array in again(step).items():
            assert (array == found[step][name]).all()
    texts = [
        {
            (text, tuple(ids))
            for step in range(number * epoch, (number + 1) * epoch)
            for side in ("source", "target")
            for row in found[step][side]
            for ids in np.split(row, np.flatnonzero(row == 2) + 1)[:-1]
            for text in [BPE.decode(ids)]
        }
        for number in range(2)
    ]
    assert {text for each in texts for text, _ in each} <= {*LINES}
    assert len(texts[0]) > 300
    assert len(texts[0] & texts[1]) < len(texts[0]) / 2


def test_everything_is_drawn_apart():
    """Sides, epochs, windows and seeds have segmentations of their own of the same sentence."""
    twice = InMemory((line, line) for line in LINES[:200])

    def drawn(epoch=0, window=0, **options):
        task = task_of(sampling_by="word", **options)
        examples = arrays_of(task.stored_examples(twice), task.stored_fields)
        draw = WordDraw(task.data, {"source": BPE, "target": BPE}, examples)
        [found] = draw(epoch, window, np.arange(200))
        return [list(each) for each in found["source"]], [list(each) for each in found["target"]]

    source, target = drawn()
    assert (source, target) == drawn()
    others = [target, drawn(epoch=1)[0], drawn(window=1)[0], drawn(seed=1)[0]]
    for other in others:
        assert sum(a != b for a, b in zip(source, other, strict=True)) > 100


@pytest.fixture(scope="module")
def sampling(tmp_path_factory) -> Config:
    config = small_config(tmp_path_factory.mktemp("text"))
    data = dataclasses.replace(
        config.data, tokenizer="bpe", vocab_size=290, subword_sampling=0.2, max_length=40, buckets=(40,)
    )
    return dataclasses.replace(config, data=data)


@pytest.fixture(scope="module")
def by_words(sampling, tmp_path_factory) -> Path:
    return train(sampling, tmp_path_factory.mktemp("runs") / "words", watch=quiet())


@pytest.mark.slow
def test_a_run_that_samples_words_is_resumed_bit_for_bit(sampling, by_words, tmp_path):
    resumed = train(sampling, interrupted(by_words, tmp_path / "resumed"), watch=quiet())
    assert Run(resumed).config.data.sampling_by == "word"
    assert same(by_words, resumed)


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_sampling_sentences(sampling, by_words, tmp_path):
    """Its config has no such option."""
    data = dataclasses.replace(sampling.data, sampling_by="sentence")
    whole = train(dataclasses.replace(sampling, data=data), tmp_path / "whole", watch=quiet())
    old = interrupted(whole, tmp_path / "old")
    stored = json.loads((old / "config.json").read_text())
    assert stored["data"].pop("sampling_by") == "sentence"
    (old / "config.json").write_text(json.dumps(stored))
    train(sampling, old, watch=quiet())
    assert Run(old).config.data.sampling_by is None
    assert same(whole, old)
    assert any((a != b).any() for a, b in zip(parameters(whole), parameters(by_words), strict=True))
