"""Noise in training text: what it changes, how often, and that nothing else does."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from in_shards import here, opened
from small_run import small_config, write_text

from transformer import UserError
from transformer.config.corpus import DataConfig
from transformer.config.pairs import NOISES, noise_of
from transformer.data.sources.noise import CHANGES, Noise
from transformer.data.store import DirectedPair
from transformer.tasks.preparation import prepare

__all__ = ["here"]  # a fixture
PAIRS = [(f"Number {number} is a whole number.", f"Die Zahl {number} ist ganz.") for number in range(2000)]


@pytest.mark.parametrize("name", NOISES)
def test_a_share_of_the_pairs_is_changed(name):
    noise = Noise({name: 0.25}, seed=3)
    changed = [(pair, noise(pair)) for pair in PAIRS if noise(pair) != pair]
    assert len(changed) == pytest.approx(500, abs=60)
    for (source, target), (new_source, new_target) in changed:
        if name == "typos":
            assert new_target == target
            assert abs(len(new_source) - len(source)) <= 1
            assert new_source.split()[1] == source.split()[1]  # no number
        elif name == "punctuation":
            assert (new_source, new_target) == (source[:-1], target[:-1])
        elif name == "upper":
            assert (new_source, new_target) == (source.upper(), target.upper())
        else:
            assert new_source == source.title()
            assert new_target == target.title()


def test_noise_depends_on_the_pair_and_the_seed_alone():
    shares = {name: 0.3 for name in NOISES}
    noise, again, other = Noise(shares, 0), Noise(shares, 0), Noise(shares, 1)
    assert [noise(pair) for pair in PAIRS] == [again(pair) for pair in reversed(PAIRS)][::-1]
    assert [noise(pair) for pair in PAIRS] != [other(pair) for pair in PAIRS]
    assert CHANGES.keys() == set(NOISES)
    # independent: both are drawn as often as the product says
    kinds = [Noise({name: 0.5}, 0) for name in ("upper", "punctuation")]
    both = sum(all(kind(pair) != pair for kind in kinds) for pair in PAIRS)
    assert both == pytest.approx(500, abs=300)
    assert noise(DirectedPair(*PAIRS[0], "en", "de"))[2:] == ("en", "de")


@pytest.mark.parametrize(
    "pair", [("", ""), ("", "x"), ("a b", "c"), (".", "."), ("猫。", "Katze."), ("ß", "ẞ")]
)
def test_short_pairs_stay_pairs(pair):
    noise = Noise(dict.fromkeys(NOISES, 1.0), 0)
    assert [bool(side) for side in noise(pair)] == [bool(side) for side in pair]


@pytest.mark.parametrize("shard_pairs", [0, 150])
def test_training_text_has_noise_and_validation_has_none(tmp_path, here, shard_pairs):
    config = small_config(tmp_path)
    text = write_text(tmp_path, "train", 300)
    data = dataclasses.replace(
        config.data,
        **text,
        shard_pairs=shard_pairs,
        noise=("upper=1",),
        tokenizer="char",
        max_length=60,
        buckets=(60,),
    )
    task, corpus = opened(dataclasses.replace(config, data=data))
    assert "noise in training pairs: upper=1" in corpus.note
    assert any(record[0] != record[0].upper() for record in corpus.splits["validation"])
    examples = prepare(task, corpus).batcher.examples
    tokenizer = task.tokenizers[0]
    lines = [
        tokenizer.decode(examples["source"].take(np.array([number])).values[:-1].tolist())
        for number in range(9)
    ]
    assert all(line == line.upper() for line in lines)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("typo=0.1", "typo is none of punctuation, typos, title, upper"),
        ("typos", "give a share of the pairs, such as typos=0.1"),
        ("typos=0", "give a share"),
        ("typos=nan", "give a share"),
        ("typos=2", "give a share"),
        ("typos=0.1 typos=0.1", "typos is there twice"),
        ("=1", "a name is none of"),
    ],
)
def test_wrong_noise(noise, message):
    with pytest.raises(UserError, match=message):
        noise_of(noise.split())


@pytest.mark.parametrize(
    "options", [{}, {"train_tsv": Path("a"), "context": 1}, {"train_tsv": Path("a"), "task": "labels"}]
)
def test_what_has_no_noise(options):
    with pytest.raises(UserError, match="only pairs of sentences in text files get noise"):
        DataConfig(noise=("upper=0.1",), **options).check_files()
