"""Training text in shards: the same bits however many processes make them, every pair once an epoch, training
that begins early and resumes, and what is refused."""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from in_shards import SHARD, Threads, config_of, content_of, here, ids_of, opened
from run_command import on_devices
from small_run import changed, interrupted, quiet, same

from transformer import PRESETS, Run, UserError, train, train_tokenizer
from transformer.config.corpus import DataConfig
from transformer.data.shards import WINDOW, shard_order
from transformer.data.sources import corpora, own_text
from transformer.tasks import prepared_shards
from transformer.tasks.preparation import prepare
from transformer.tasks.prepared_shards import PreparedShards
from transformer.tasks.texts.translation import Translation
from transformer.trainer.train import prepare_corpus

__all__ = ["here"]  # a fixture
ROOT = Path(__file__).parent.parent
SIDES = ("source", "target")


def test_processes_make_the_same_bits_as_one(tmp_path, here, monkeypatch):
    config = config_of(tmp_path)
    data = prepare(*opened(config))
    plan = data.batcher.plan
    plan.shards.wait(range(len(plan.shards)))
    folder = plan.shards.folder
    expected = content_of(folder)
    plan.close()
    assert len(plan.shards) == 5
    assert len(expected) == 5 * 6
    monkeypatch.undo()
    folder.rename(tmp_path / "made_here")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=2))
    again = prepare(*opened(config)).batcher.plan
    again.shards.wait(range(5))
    assert content_of(again.shards.folder) == expected
    again.close()


@pytest.mark.slow
def test_a_cluster_makes_the_same_bits(tmp_path, monkeypatch):
    """Two cores of a Ray cluster that is started here, with the command that trains nothing; then a process
    of it is killed."""
    pytest.importorskip("ray")
    config = config_of(tmp_path)
    names = [f"{split}_{side}" for split in ("train", "validation") for side in ("source", "target")]
    files = [f"--data.{name.replace('_', '-')}={getattr(config.data, name).name}" for name in names]
    options = [*files, "--data.tokenizer=char", f"--data.shard-pairs={SHARD}", "--data.prepare"]
    made = []
    for engine in ("local", "ray"):
        command = [sys.executable, ROOT / "train.py", *options]
        line = [*command, "--data.engine", engine, "--data.cache-dir", engine]
        environment = {**on_devices(1), "PYTHONPATH": str(ROOT)}
        told = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (told.returncode, "The corpus is prepared, in" in told.stdout) == (0, True), told.stderr
        (folder,) = (tmp_path / engine).glob("corpora/*/shards-*")
        made.append(content_of(folder))
    assert made[0] == made[1]
    assert len(made[0]) == 5 * 6
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    task, corpus = opened(config)
    killed = KilledOnce(task.config, task.tokenizers)
    shards = PreparedShards(killed, corpus.splits["train"], SHARD, tmp_path / "killed", b"", on_ray=True)
    killed.mark.mkdir()
    shards.begin(range(5))
    with contextlib.closing(shards):
        shards.wait(range(5))
    assert not killed.mark.exists()


class KilledOnce(Translation):
    """A task whose process is killed if there is a folder, which it removes."""

    @property
    def mark(self):
        return Path(self.config.data.cache_dir, "kill")

    def stored_examples(self, records):
        with contextlib.suppress(FileNotFoundError):
            self.mark.rmdir()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().stored_examples(records)


def test_hosts_without_a_shared_disk_make_each_its_shards_and_exchange_them(
    tmp_path, here, monkeypatch, caplog
):
    made = list[Path]()
    make = prepared_shards._is_made
    monkeypatch.setattr(prepared_shards, "_is_made", lambda *shard: made.append(shard[1]) or make(*shard))
    monkeypatch.setattr(prepared_shards, "_ASK", 0.1)
    exchange = Path("file://" + str(tmp_path / "bucket"))

    config = config_of(tmp_path, exchange=exchange)
    disks = {
        disk: opened(
            dataclasses.replace(config, data=dataclasses.replace(config.data, cache_dir=tmp_path / disk))
        )
        for disk in "abc"
    }

    def shards_of(disk: str, host: int, hosts: int) -> tuple[PreparedShards, list[int]]:
        batcher = prepare(*disks[disk], host=host, hosts=hosts).batcher
        batcher.plan.shards.wait(range(5))
        return batcher.plan.shards, [batcher.plan(step).chosen.tolist() for step in range(9)]

    with ThreadPoolExecutor(2) as threads:
        hosts = list(threads.map(shards_of, ("a", "b"), (0, 1), (2, 2)))
    counts = Counter(path.relative_to(tmp_path).parts[0] for path in made)
    assert counts == {"a": 3, "b": 2}
    assert hosts[0][1] == hosts[1][1]
    for number in range(5):
        files = [sorted(shards._path(number).iterdir()) for shards, _ in hosts]
        for one, other in zip(*files, strict=True):
            assert one.read_bytes() == other.read_bytes()
    # a new machine, alone, makes none; what was not copied is copied
    about = next((tmp_path / "bucket").glob("*/*/00002/about.json"))
    about.unlink()
    assert shards_of("c", 0, 1)[1] == hosts[0][1]
    assert len(made) == 6
    assert made[-1].name == "00002"
    assert about.exists()
    # one that has other text waits, and says so
    monkeypatch.setattr(prepared_shards, "_MOST_LATE", -1)
    task, corpus = disks["c"]
    text, other = corpus.splits["train"], Path("file://" + str(tmp_path / "other"))
    alone = PreparedShards(task, text, SHARD, tmp_path / "d", b"", exchange=other, host=1, hosts=2)
    assert not any(alone._is_there(0) for _ in range(2))
    assert "waiting for another host: has it the same text?" in caplog.text


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_every_pair_once_an_epoch_and_a_pure_function(tmp_path, here, batching):
    config = config_of(tmp_path, batching=batching)
    task, corpus = opened(config)
    data = prepare(task, corpus)
    plan = data.batcher.plan
    assert plan.steps_per_epoch > 0
    plan.shards.wait(range(5))
    steps = plan.steps_per_epoch
    whole = Counter(
        tuple(tuple(example[side]) for side in ("source", "target"))
        for example in task.stored_examples(list(corpus.splits["train"]))
    )
    orders = []
    starts = [0, steps]
    for start in starts:
        seen, order = Counter(), []
        for step in range(start, start + steps):
            rows = plan(step)
            arrays, where = rows.examples
            texts = corpus.splits["train"].__getitems__(rows.chosen.tolist())
            stored = task.stored_examples(texts)
            for index, example in zip(where, stored, strict=True):
                pair = tuple(tuple(arrays[side][index].tolist()) for side in ("source", "target"))
                assert pair == (tuple(example["source"]), tuple(example["target"]))
                seen[pair] += 1
                order.append(pair)
        assert seen == whole
        orders.append(order)
    assert orders[0] != orders[1]
    again = prepare(task, corpus).batcher
    for step in (2 * steps + 3, steps - 1, 0):
        for name, array in data.batcher(step).items():
            np.testing.assert_array_equal(array, again(step)[name], err_msg=f"{name} of step {step}")


def test_hosts_have_the_rows_of_one_and_windows_are_of_shards_from_everywhere(tmp_path, here):
    config = config_of(tmp_path)
    task, corpus = opened(config)
    whole = prepare(task, corpus).batcher
    hosts = [prepare(task, corpus, host=host, hosts=2).batcher for host in range(2)]
    for step in range(3):
        batch = whole(step)
        shares = [host(step) for host in hosts]
        for name, array in batch.items():
            np.testing.assert_array_equal(
                array, np.concatenate([share[name] for share in shares])[: len(array)]
            )
    for part in whole.plan.shards.pairs:
        positions = part.chosen / len(corpus.splits["train"].chosen)
        assert positions.min() < 0.1
        assert positions.max() > 0.9


def test_training_begins_with_the_first_shards_and_resumes_bit_for_bit(tmp_path, here, monkeypatch):
    config = config_of(tmp_path, shard_pairs=60, batch_tokens=128)  # of twelve shards, two have five updates
    config = changed(config, steps=27, evaluate_every=11)  # it resumes in the middle of the ninth
    run = train(config, tmp_path / "whole", watch=quiet())
    assert Run(run).checkpoints.steps()[-2] == 22
    more = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=3))
    assert same(run, train(more, interrupted(run, tmp_path / "again"), watch=quiet()))
    other = dataclasses.replace(config.data, shard_pairs=61)
    with pytest.raises(UserError, match="made with other options: --data.shard-pairs: 60 -> 61"):
        train(dataclasses.replace(config, data=other), run, watch=quiet())
    # no shard is made anew; and a run does not wait for shards that it does not read
    cache = config.data.cache_dir
    made = sorted(cache.glob("corpora/*/shards-*/[0-9]*"))
    assert len(made) == 12
    for number in shard_order(12, config.data.seed, epoch=0)[WINDOW:]:
        made[number].rename(made[number].with_suffix(".away"))
    monkeypatch.setattr(Threads, "submit", lambda *arguments: Never())
    few = changed(config, steps=2, evaluate_every=2)
    assert train(few, tmp_path / "few", watch=quiet())


class Never:
    """A shard that is never made."""

    def done(self):
        return True

    def result(self):
        raise AssertionError("waited for a shard that is not needed")

    def cancel(self):
        return True


def test_an_epoch_in_options_waits_for_all_shards(tmp_path, here):
    config = changed(config_of(tmp_path), epochs=2.0, evaluate_every=1000, steps=1)
    run = Run(train(config, tmp_path / "run", watch=quiet()))
    task, corpus = opened(config_of(tmp_path))
    assert run.config.training.steps == 2 * prepare(task, corpus).batcher.plan.steps_per_epoch


def test_what_was_made_is_not_made_again(tmp_path, here, monkeypatch):
    config = config_of(tmp_path, prepare=True)
    with pytest.raises(UserError, match="--data.prepare trains nothing: leave it out"):
        train(config, tmp_path / "run", watch=quiet())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="needs ray: pip install '.\\[cluster\\]'"):
        prepare_corpus(config_of(tmp_path, engine="ray"), None, quiet(), "")
    prepare_corpus(config, tmp_path / "run", quiet(), "")
    task, corpus = opened(config_of(tmp_path))
    plan = prepare(task, corpus).batcher.plan
    assert plan.shards.all_there()
    lost = plan.shards.folder / "00003"
    kept = {
        file: file.stat().st_mtime_ns for file in plan.shards.folder.rglob("*.uint16") if lost != file.parent
    }
    shutil.rmtree(lost)
    again = prepare(task, corpus).batcher.plan
    again.shards.wait(range(5))
    assert lost.exists()
    assert len(kept) == 4 * 3
    assert all(file.stat().st_mtime_ns == before for file, before in kept.items())


def test_a_shard_that_another_process_makes_is_waited_for(tmp_path, here):
    task, corpus = opened(config_of(tmp_path))
    plan = prepare(task, corpus).batcher.plan
    plan.shards.wait(range(5))
    first = plan.shards.folder / f"{shard_order(5, 0, epoch=0)[0]:05d}"
    away = first.rename(tmp_path / "away")
    with first.with_suffix(".lock").open("wb") as lock, ThreadPoolExecutor(1) as thread:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = thread.submit(prepare, task, corpus)
        time.sleep(0.5)
        assert not waiting.done()
        away.rename(first)
        assert waiting.result().batcher.plan.steps_per_epoch == plan.steps_per_epoch


def test_a_process_that_ends_is_told(tmp_path):
    task, corpus = opened(config_of(tmp_path))
    train_text = corpus.splits["train"]
    shards = PreparedShards(Killed(task.config, task.tokenizers), train_text, SHARD, tmp_path, b"", workers=1)
    shards.begin([0])
    with pytest.raises(UserError, match="has ended. If memory is short, run the same command again"):
        shards(0)
    shards.close()


class Killed(Translation):
    """A task whose process is killed, as by a system that is short of memory."""

    def stored_examples(self, records):
        os.kill(os.getpid(), signal.SIGKILL)


def test_machines_that_share_no_folder_are_told(tmp_path, monkeypatch):
    class Elsewhere(Threads):
        """Makes shards where this process does not see them."""

        def submit(self, make, *shard):
            return super().submit(lambda: True)

    monkeypatch.setattr(prepared_shards, "ProcessPoolExecutor", Elsewhere)
    monkeypatch.setattr(prepared_shards, "_MOST_LATE", 0.0)
    with pytest.raises(
        UserError, match=r"shards-\w+/0000\d was made on another machine, and is not here: name"
    ):
        prepare(*opened(config_of(tmp_path)))
    with pytest.raises(UserError, match="has no folder /none: run the command in one that all machines"):
        prepared_shards._make_there("/none", b"")


def test_there_are_at_most_as_many_processes_as_cores(tmp_path, monkeypatch):
    """4,096 would take the memory and the open files of a machine."""
    task, corpus = opened(config_of(tmp_path))
    for known, asked, workers in ((2.0, 4096, 2), (2.0, 1, 1), (2.0, 0, 2), (0.5, 3, 1), (None, 0, 1)):
        monkeypatch.setattr(prepared_shards, "cores", lambda known=known: known)
        shards = PreparedShards(task, corpus.splits["train"], SHARD, corpus.folder, b"", asked)
        assert shards._workers == workers


def test_a_damaged_shard_is_named(tmp_path, here):
    task, corpus = opened(config_of(tmp_path))
    plan = prepare(task, corpus).batcher.plan
    plan.shards.wait(range(5))
    for file in plan.shards.folder.glob("*/target.uint16"):
        content = file.read_bytes()
        file.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
    with pytest.raises(UserError, match="is damaged .its numbers are others than were written.; remove it"):
        prepare(task, corpus)
    for file in plan.shards.folder.glob("*/source.uint16"):
        file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(UserError, match="is damaged .it is not complete.; remove it to prepare it again"):
        prepare(task, corpus)
    for pairs in '"x"', "{}", "-1", "1e400", "[" * 100_000:
        for file in plan.shards.folder.glob("*/about.json"):
            file.write_text(f'{{"pairs": {pairs}}}')
        with pytest.raises(UserError, match="is damaged .*remove it to prepare it again"):
            prepare(task, corpus)


def test_a_text_that_was_changed_in_between_is_not_read(tmp_path):
    """Its blocks begin elsewhere now, so that lines of other pairs would be together."""
    config = config_of(tmp_path)
    _, corpus = opened(config)
    pairs = corpus.splits["train"]
    source = config.data.train_source
    source.write_text("a new first line\n" + source.read_text())
    with pytest.raises(UserError, match=f"{source}: the text changed while it was read; run the same"):
        next(pairs.blocks())


@pytest.mark.parametrize("kind", get_args(get_type_hints(DataConfig)["tokenizer"]))
def test_every_kind_of_tokenizer_can_be_sent_to_a_process(kind):
    lines = [f"the {word} house and {word}er trees" for word in ("red", "green", "blue", "old", "new")] * 20
    tokenizer = train_tokenizer(lines, kind, 280)
    assert pickle.loads(pickle.dumps(tokenizer)).encode_all(lines) == tokenizer.encode_all(lines)


def test_several_directions_are_those_of_the_whole(tmp_path, here):
    """The examples begin with the codes of their languages, and filters keep them apart."""
    config = config_of(tmp_path)
    rows = {
        "en": ["a red house", "a dog", "we see it", ""],
        "de": ["ein rotes Haus", "ein Hund", "a dog", "leer"],
    }
    rows["fr"] = ["une maison rouge", "un chien", "nous le voyons", "vide"]
    for language, lines in rows.items():
        for split in ("train", "validation"):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines * 3))
    files = {
        f"{split}_{side}": tmp_path / f"{split}.{{{side}}}"
        for split in ("train", "validation")
        for side in ("source", "target")
    }
    seen = []
    for shard_pairs in (0, 7):
        data = DataConfig(
            **files,
            cache_dir=tmp_path / "cache",
            directions=("en:de", "en:fr", "de:en"),
            tokenizer="bpe",
            vocab_size=290,
            max_length=40,
            buckets=(40,),
            batch_tokens=80,
            batching="packed",
            filter=("ratio=9",),
            shard_pairs=shard_pairs,
        )
        task, corpus = opened(dataclasses.replace(config, data=data))
        assert "en to de 12 (33.3%), en to fr 12 (33.3%), de to en 12 (33.3%)" in corpus.note
        plan = prepare(task, corpus).batcher.plan
        if shard_pairs:
            plan.shards.wait(range(len(plan.shards)))
        found = Counter()
        examples = prepare(task, corpus).batcher.examples
        for step in range(plan.steps_per_epoch):
            arrays, where = plan(step).examples or (examples, plan(step).chosen)
            for index in where:
                found[tuple(tuple(arrays[side][index].tolist()) for side in ("source", "target"))] += 1
        seen.append(found)
    assert seen[0] == seen[1]
    assert sum(seen[0].values()) == 3 * 3 * 3  # a side of the fourth pair is empty in each direction


@pytest.mark.parametrize("directions", [(), ("en:de", "de:en")])
def test_what_is_held_out_of_shards_is_that_of_the_whole(tmp_path, here, monkeypatch, directions):
    """Where the sample is all of the text. Of larger text no source of the validation is trained on."""
    words = [f"house {number % 250} is {'old' * (number % 2)}" for number in range(300)]
    for name, text in {"train.en": words, "train.de": [f"haus {word}" for word in words]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text))
    (tmp_path / "train.en").write_text((tmp_path / "train.en").read_text() + "haus house 7 is old\n")
    (tmp_path / "train.de").write_text((tmp_path / "train.de").read_text() + "house 7 is old\n")
    nothing = dict.fromkeys(f"{split}_{side}" for split in ("validation", "test") for side in SIDES)
    names = ("{source}", "{target}") if directions else ("en", "de")
    files = {f"train_{side}": tmp_path / f"train.{name}" for side, name in zip(SIDES, names, strict=True)}

    def splits(**options):
        options = {
            "directions": directions,
            "tokenizer": "bpe",
            "vocab_size": 290,
            **files,
            **nothing,
            **options,
        }
        _, corpus = opened(config_of(tmp_path, **options))
        train = [pair for pair in corpus.splits["train"] if any(pair[:2])]
        return Counter(train), Counter(corpus.splits["validation"])

    whole, shards = splits(shard_pairs=0), splits(shard_pairs=80)
    assert shards == whole
    assert len(whole[1]) > 5
    monkeypatch.setattr(own_text, "SAMPLED", 80)
    train, validation = splits(shard_pairs=80)
    held_out = {pair[0] for pair in validation}
    assert 2 < len(held_out) < len({pair[0] for pair in whole[1]})
    assert not held_out & {text for pair in train for text in pair[: 2 if directions else 1]}
    assert {pair for pair in (whole[0] | whole[1]) if pair not in train} >= set(validation)


# What there is no shard of.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --data.train-source and --data.train-target, --data.train-tsv, or --data.train"),
        (
            {"train": Path("a.jsonl"), "target": ("a", "b")},
            "what is held out of shards has no --data.group and no further references: give --data.valid",
        ),
        (
            {"train_tsv": Path("a"), "validation_tsv": Path("b"), "context": 2, "subword_sampling": 0.1},
            "with --data.context and --data.subword-sampling: shards have none of that",
        ),
        ({"shard_pairs": 0, "workers": 2}, "--data.workers: only shards are prepared by several"),
        ({"shard_pairs": 0, "engine": "ray"}, "--data.engine ray: only shards are prepared by several"),
        ({"workers": 2, "engine": "ray"}, "--data.workers: Ray decides how many there are"),
    ],
)
def test_options_without_shards(options, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**{"shard_pairs": 100, **options}).check_files()


OF_TEXT = {name: preset for name, preset in PRESETS.items() if isinstance(preset.data, DataConfig)}
OF_COLUMNS = sorted(name for name, preset in OF_TEXT.items() if preset.data.names_columns)


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_rows_with_named_columns(tmp_path, here, name):
    """Of texts they have the examples of the whole; labels and trees have no shards."""
    preset, path = PRESETS[name], tmp_path / "rows.jsonl"
    _, module = corpora.TABLES[preset.data.dataset]
    rows = itertools.islice(module.records("train", 0), 60)
    path.write_text("".join(f"{json.dumps(row._asdict())}\n" for row in rows))
    options = {"train": path, "validation": path, "vocab_size": 400, "cache_dir": tmp_path / "cache"}
    data = dataclasses.replace(preset.data, **options)
    if data.task not in ("translation", "summaries", "answers"):
        with pytest.raises(UserError, match="--data.shard-pairs 20 with --data.task: shards have none"):
            dataclasses.replace(data, shard_pairs=20)
        return
    seen = []
    for shard_pairs in (0, 20):
        config = dataclasses.replace(preset, data=dataclasses.replace(data, shard_pairs=shard_pairs))
        task, corpus = opened(config)
        prepare(task, corpus)
        seen.append(Counter(ids_of(task, list(corpus.splits["train"]))))
    assert seen[0] == seen[1]
    assert sum(seen[0].values()) == 60


@pytest.mark.parametrize("name", sorted(OF_TEXT.keys() - set(OF_COLUMNS)))
def test_every_system_of_pairs_has_shards(tmp_path, here, name):
    preset = PRESETS[name]
    config = config_of(tmp_path)
    data = dataclasses.replace(config.data, tokenizer=preset.data.tokenizer, vocab_size=280, max_length=32)
    config = dataclasses.replace(config, system=preset.system, model=preset.model, data=data)
    task, corpus = opened(config)
    batcher = prepare(task, corpus).batcher
    assert batcher.plan.dropped == 0
    assert batcher(0)["source"].any()
