"""Corpora that are mixed by weights, and directions by a temperature, in shards."""

import dataclasses
import html
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from in_shards import here, opened
from small_run import changed, interrupted, quiet, same, small_config, write_text
from test_corpora import write_table
from test_shards import OF_COLUMNS, OF_TEXT

from transformer import PRESETS, Run, Translator, UserError, train
from transformer.config.corpus import SPLITS, DataConfig
from transformer.config.pairs import mix_stages
from transformer.data.sources import directions, own_text
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
    monkeypatch.setattr(own_text, "SAMPLED", 200)
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


def test_a_corpus_without_examples_is_refused(tmp_path, here):
    config = config_of(tmp_path)
    (tmp_path / "noisy.de").write_text("\n" * SIZES["noisy"])
    with pytest.raises(UserError, match="all training pairs of noisy are empty, left out by --data.filter"):
        prepare(*opened(config))


def test_a_corpus_of_which_nothing_is_drawn_is_named(tmp_path, here):
    config = changed(config_of(tmp_path, ["clean=1", "@9", "noisy=1"]), steps=9)
    task, corpus = opened(config)
    assert "Warning: --data.mix gives noisy no weight in the 9 updates" in task.decide(corpus)
    task, corpus = opened(changed(config, steps=10))
    assert not [note for note in task.decide(corpus) if "--data.mix" in note]


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


# Tags and scores of each corpus.


def tagged_config(folder: Path, **options):
    """Of the small run: each corpus has its validation and test text, and its name begins each source."""
    for name in SIZES:
        write_text(folder, f"valid-{name}", 12)
    valid = {"source": folder / "valid-{corpus}.in", "target": folder / "valid-{corpus}.out"}
    files = {f"{split}_{side}": path for split in ("validation", "test") for side, path in valid.items()}
    return config_of(folder, default_tag="clean", **{**files, "max_length": 10, "buckets": (10,), **options})


@pytest.mark.parametrize("joint", [True, False])
def test_each_source_begins_with_the_tag_of_its_corpus(tmp_path, here, joint):
    config = tagged_config(tmp_path, noise=("upper=0.5",), filter=("long=90",))
    model = dataclasses.replace(config.model, share_embeddings="all" if joint else "none")
    data = dataclasses.replace(config.data, joint_vocabulary=joint)
    config = dataclasses.replace(config, model=model, data=data)
    task, corpus = opened(config)
    assert list(task.tokenizers[0].codes) == ["clean", "noisy"]
    batcher = prepare(task, corpus).batcher
    shards = batcher.plan.shards
    texts = list(corpus.splits["train"])
    for number in range(len(shards)):
        shard = shards(number)
        firsts = shard.examples["source"].values[shard.examples["source"].ends[: len(shard.lines)]]
        for line, first in zip(shard.lines.tolist(), firsts.tolist(), strict=True):
            assert task.tokenizers[0].codes[texts[line][0].split()[0]] == first
    of_target = task.tokenizers[1].codes
    assert bool(of_target) == joint
    assert not {*batcher.examples["target"].values} & {*of_target.values()}
    batcher.plan.close()
    records = list(corpus.splits["validation"])
    assert [record.group for record in records] == ["clean", "noisy"] * 12
    ids = [example["source"] for example in task.input_examples(records[:2], 10)]
    codes = task.tokenizers[0].codes
    assert [row[0] for row in ids] == [codes["clean"], codes["noisy"]]
    (plain,) = task.input_examples([("red dog", "")], 10)
    assert plain["source"][0] == codes["clean"]


def test_a_run_of_tagged_corpora_resumes_bit_for_bit_and_has_their_scores_and_shares(tmp_path, here):
    config = changed(tagged_config(tmp_path, mix=("clean=3", "noisy=1")), steps=24, evaluate_every=8)
    run = Run(train(config, tmp_path / "whole", watch=quiet()))
    assert same(run.path, train(config, interrupted(run.path, tmp_path / "again"), watch=quiet()))
    other = dataclasses.replace(config.data, mix=("clean=1", "noisy=2"))
    with pytest.raises(UserError, match="--data.mix: "):
        train(dataclasses.replace(config, data=other), run.path, watch=quiet())
    with pytest.raises(UserError, match="a mixture in shards has no epochs: give --training.steps"):
        train(changed(config, epochs=2.0), tmp_path / "epochs", watch=quiet())
    results = json.loads((run.path / "results.json").read_text())
    assert results["bleu"]["parts"].keys() == {"clean", "noisy"}
    last = run.log.records("evaluation")[-1]
    assert {"bleu clean", "bleu noisy"} <= last.keys()
    pattern = r"(\w+) [\d,]+ \((\S+)%, planned (\S+)%; each pair \S+ times\)"
    shares = re.findall(pattern, last["drawn"])
    assert [(name, planned) for name, _, planned in shares] == [("clean", "75.0"), ("noisy", "25.0")]
    assert float(shares[0][1]) == pytest.approx(75, abs=1)
    assert last["drawn"] in html.unescape((run.path / "report.html").read_text())
    translator = Translator.load(run.path)
    task = translator.between("noisy", None).task
    (example,) = task.input_examples([("red", "")], 10)
    assert example["source"][0] == task.tokenizers[0].codes["noisy"]
    assert translator.translate("red dog") == translator.translate("red dog", source_language="clean")
    with pytest.raises(UserError, match="--source-language nosy: .*did you mean noisy"):
        translator.translate("red dog", source_language="nosy")
    with pytest.raises(UserError, match="--target-language: the texts of this model begin with no code"):
        translator.translate("red dog", target_language="noisy")


def test_each_corpus_has_held_out_validation_text(tmp_path, here):
    nothing = dict.fromkeys(f"{split}_{side}" for split in SPLITS[1:] for side in ("source", "target"))
    _, corpus = opened(config_of(tmp_path, **nothing))
    counts = Counter((record.group, record.source.split()[0]) for record in corpus.splits["validation"])
    assert counts == {("clean", "clean"): 15, ("noisy", "noisy"): 35}
    held_out = {record.source for record in corpus.splits["validation"]}
    assert not held_out & {source for source, _ in corpus.splits["train"]}


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_a_mixture_of_tables_is_that_of_their_text(tmp_path, here, suffix):
    config = tagged_config(tmp_path)
    for name in SIZES:
        for split, ends in ((name, ("en", "de")), (f"valid-{name}", ("in", "out"))):
            columns = [(tmp_path / f"{split}.{end}").read_text().splitlines() for end in ends]
            write_table(tmp_path / f"{split}.{suffix}", list(zip(*columns, strict=True)))
    names = dict.fromkeys(f"{split}_{side}" for split in SPLITS for side in ("source", "target"))
    tables = {split: tmp_path / f"{'valid-' * (split != 'train')}{{corpus}}.{suffix}" for split in SPLITS}
    data = dataclasses.replace(config.data, **names, **tables, source_language="en", target_language="de")
    made = []
    for some in (config, dataclasses.replace(config, data=data)):
        task, corpus = opened(some)
        plan = prepare(task, corpus).batcher.plan
        validation = [tuple(record) for record in corpus.splits["validation"]]
        made.append((list(corpus.splits["train"]), validation, drawn(plan, corpus, 0, 20)))
        plan.close()
    assert made[0] == made[1]


@pytest.mark.parametrize("name", sorted(OF_TEXT.keys() - set(OF_COLUMNS)))
def test_every_system_of_pairs_has_tags(tmp_path, here, name):
    preset = PRESETS[name]
    config = tagged_config(tmp_path, tokenizer=preset.data.tokenizer, vocab_size=290, max_length=32)
    config = dataclasses.replace(config, system=preset.system, model=preset.model)
    task, corpus = opened(config)
    ids = prepare(task, corpus).batcher(0)["source"]
    codes = task.tokenizers[0].codes
    assert len(codes) == 2
    assert {*ids[:, 0].tolist()} <= {*codes.values(), config.model.special.pad}
    if name == "base":
        assert list(task.grown(task.config, [], ["legal"]).tokenizers[0].codes) == ["clean", "noisy", "legal"]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default_tag": "b"}, "--data.default-tag b: --data.mix has no such corpus"),
        ({"default_tag": "a.b", "mix": ("a.b=1",)}, "a.b cannot be a tag: name it with letters"),
        (
            {"default_tag": "a", "directions": ("en:de", "de:en"), "validation_tsv": Path("v")},
            "sources begin with something else",
        ),
        ({"directions": ("en:de", "de:en")}, "--data.directions and --data.group have their scores"),
        ({"test_source": Path("t.en"), "test_target": Path("{corpus}")}, "in all names of --data.test files"),
    ],
)
def test_wrong_tags(options, message):
    files = {"train_tsv": Path("{corpus}.tsv"), "validation_tsv": Path("v-{corpus}.tsv")}
    with pytest.raises(UserError, match=message):
        DataConfig(**{"mix": ("a=1",), **files, **options})


def test_what_a_mixture_needs():
    files = {"train_tsv": Path("{corpus}.tsv"), "validation_tsv": Path("v.tsv")}
    assert DataConfig(mix=("a=1",), **files).pairs_of_a_shard == 1_000_000
    assert directions.of_corpus(DataConfig(mix=("a=1",), engine="ray", **files), "a").train_tsv == Path(
        "a.tsv"
    )
    with pytest.raises(UserError, match="{corpus} in names of files: name the corpora .* with --data.mix"):
        DataConfig(**files).check_files()
    with pytest.raises(UserError, match="write {corpus} where the names of the training files"):
        DataConfig(mix=("a=1",), **{**files, "train_tsv": Path("train.tsv")})
    with pytest.raises(UserError, match="with --data.temperature: each gives weights"):
        DataConfig(mix=("a=1",), directions=("en:de", "de:en"), temperature=2.0, **files)
