"""Corpora that are mixed by weights, and directions by a temperature, in shards."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_run import changed, interrupted, quiet, same, small_config, write_text
from test_shards import here, opened

from transformer import UserError, train
from transformer.config.corpus import DataConfig
from transformer.config.pairs import mix_stages
from transformer.data.sources import corpora
from transformer.tasks.preparation import prepare

__all__ = ["here"]  # a fixture
SIZES = {"clean": 300, "noisy": 700}


def config_of(folder: Path, mix=("clean=1", "noisy=1"), **options):
    """Of a small run with two corpora, whose lines begin with their names."""
    config = small_config(folder)
    write_text(folder, "train", 10)
    for name, size in SIZES.items():
        for side in ("en", "de"):
            lines = (f"{name} {number} {'house' * (number % 3)}\n" for number in range(size))
            (folder / f"{name}.{side}").write_text("".join(lines))
    data = {
        "train_source": folder / "{corpus}.en",
        "train_target": folder / "{corpus}.de",
        "shard_pairs": 150,
        "mix": tuple(mix),
        "batching": "packed",
        **options,
    }
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


def drawn(plan, corpus, start: int, stop: int) -> list[Counter]:
    """How often each pair is drawn in some updates."""
    texts = list(corpus.splits["train"])
    counts = Counter()
    for step in range(start, stop):
        counts.update(texts[number][0].split(" house")[0] for number in plan(step).chosen.tolist())
    return counts


def share_of(counts: Counter, name: str) -> float:
    return sum(count for text, count in counts.items() if text.startswith(name)) / counts.total()


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_shares_are_those_of_the_weights_in_each_stage(tmp_path, here, batching):
    config = config_of(tmp_path, ["noisy=1", "@150", "clean=3", "noisy=1"], batching=batching)
    task, corpus = opened(config)
    assert "clean 300, noisy 700" not in corpus.note  # in the order of the option
    assert "pairs by corpus: noisy 700, clean 300" in corpus.note
    assert "shares of training pairs: 100.0% : 0.0%, from update 150 25.0% : 75.0%" in corpus.note
    plan = prepare(task, corpus).batcher.plan
    assert share_of(drawn(plan, corpus, 0, 150), "noisy") == 1
    later = drawn(plan, corpus, 150, 150 + 3 * plan.STEPS)
    assert share_of(later, "clean") == pytest.approx(0.75, abs=0.02)
    of_clean = [count for text, count in later.items() if text.startswith("clean")]
    assert len(of_clean) == SIZES["clean"]
    if batching == "packed":  # whole windows have each as often as the others
        assert max(of_clean) - min(of_clean) <= 2
    plan.close()


def test_a_mixture_is_a_pure_function_and_hosts_share_it(tmp_path, here):
    config = config_of(tmp_path, ["clean=2", "noisy=1", "@5", "noisy=1"])
    task, corpus = opened(config)
    one = prepare(task, corpus).batcher
    hosts = [prepare(task, corpus, host=host, hosts=2).batcher for host in range(2)]
    for step in (300, 4, 5, 132, 133, 0):
        whole, shares = one(step), [host(step) for host in hosts]
        for name, array in whole.items():
            np.testing.assert_array_equal(
                array, np.concatenate([share[name] for share in shares])[: len(array)]
            )
    batches = [one.plan(step).chosen.tolist() for step in range(40)]
    assert len({str(batch) for batch in batches}) == 40


def test_other_weights_have_the_vocabulary_and_the_shards_that_are_there(tmp_path, here, monkeypatch):
    """They would depend on what was trained before otherwise."""
    monkeypatch.setattr(corpora, "SAMPLED", 200)
    made = []
    for mix in (["clean=1", "noisy=1"], ["clean=1", "noisy=99"], ["clean=0", "noisy=1"]):
        task, corpus = opened(config_of(tmp_path, mix))
        shares = Counter(source.split()[0] for source, _ in corpus.sample)
        assert shares["clean"] == pytest.approx(100, abs=50)
        assert shares["noisy"] == pytest.approx(100, abs=50)
        plan = prepare(task, corpus).batcher.plan
        made.append(plan.shards.folder)
        plan.close()
    assert len(set(made)) == 1


def test_training_on_a_mixture_resumes_bit_for_bit(tmp_path, here):
    config = changed(config_of(tmp_path), steps=24, evaluate_every=8)
    run = train(config, tmp_path / "whole", watch=quiet())
    assert same(run, train(config, interrupted(run, tmp_path / "again"), watch=quiet()))
    other = dataclasses.replace(config.data, mix=("clean=1", "noisy=2"))
    with pytest.raises(UserError, match="--data.mix: "):
        train(dataclasses.replace(config, data=other), run, watch=quiet())
    with pytest.raises(UserError, match="a mixture in shards has no epochs: give --training.steps"):
        train(changed(config, epochs=2.0), tmp_path / "epochs", watch=quiet())


def test_a_corpus_without_examples_is_refused(tmp_path, here):
    config = config_of(tmp_path)
    (tmp_path / "noisy.de").write_text("\n" * SIZES["noisy"])
    with pytest.raises(UserError, match="all pairs of a corpus of --data.mix, or of a direction, are empty"):
        prepare(*opened(config))


def test_directions_have_a_temperature(tmp_path, here):
    """As `shares` says: 300 and 700 pairs at temperature 2."""
    config = config_of(tmp_path, mix=())
    for name, languages in (("clean", "en:de"), ("noisy", "de:fr")):
        source, target = languages.split(":")
        for language, side in ((source, "en"), (target, "de")):
            text = (tmp_path / f"{name}.{side}").read_text()
            (tmp_path / f"{source}-{target}.{language}").write_text(text)
            (tmp_path / f"valid-{source}-{target}.{language}").write_text(text[:200])
    names = {
        f"{split}_{side}": tmp_path / f"{start}{{source}}-{{target}}.{{{side}}}"
        for split, start in (("train", ""), ("validation", "valid-"), ("test", "valid-"))
        for side in ("source", "target")
    }
    data = dataclasses.replace(
        config.data,
        **names,
        directions=("en:de", "de:fr"),
        temperature=2.0,
        tokenizer="bpe",
        vocab_size=290,
        max_length=60,
        buckets=(60,),
    )
    task, corpus = opened(dataclasses.replace(config, data=data))
    plan = prepare(task, corpus).batcher.plan
    weights = np.sqrt([300, 700])
    counts = drawn(plan, corpus, 0, 256)
    assert share_of(counts, "clean") == pytest.approx(weights[0] / weights.sum(), abs=0.02)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("a", "write the name of a corpus and its weight"),
        ("a=1 a=2", "a is there twice"),
        ("a=-1", "a weight is a number from 0"),
        ("a=x", "a weight is a number from 0"),
        ("a=nan", "a weight is a number from 0"),
        ("a=0", "give a corpus a positive weight in each stage"),
        ("a=1 @9", "give a corpus a positive weight in each stage"),
        ("a=1 @9 b=1 @9 a=1", "write weights, then the update"),
        ("@9 a=1", "write weights, then the update"),
        ("a=1 @x b=1", "write weights, then the update"),
        pytest.param(f"a=1 @{'9' * 5000} b=1", "write weights, then the update", id="digits"),
        ("{x}=1", "write the name of a corpus and its weight"),
    ],
)
def test_wrong_weights(mix, message):
    with pytest.raises(UserError, match=message):
        mix_stages(mix.split())


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_rows_are_not_read_as_lines(name):
    with pytest.raises(UserError, match="it is no text: name it with --data.train"):
        DataConfig(train_source=Path(name), train_target=Path(name))


def test_what_a_mixture_needs():
    files = {"train_tsv": Path("{corpus}.tsv"), "validation_tsv": Path("v.tsv")}
    assert DataConfig(mix=("a=1",), **files).pairs_of_a_shard == 1_000_000
    with pytest.raises(UserError, match="write {corpus} where the names of the training files"):
        DataConfig(mix=("a=1",), **{**files, "train_tsv": Path("train.tsv")})
    with pytest.raises(UserError, match="nothing is held out of shards"):
        DataConfig(mix=("a=1",), train_tsv=Path("{corpus}.tsv"))
    with pytest.raises(UserError, match="with --data.temperature: each gives weights"):
        DataConfig(mix=("a=1",), directions=("en:de", "de:en"), temperature=2.0, **files)
