"""Studies of methods, rewards and tasks, with small runs."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from of_a_config import check_config

from benchmarks.runs import test_set as set_of_test
from benchmarks.studies import bootstrap, methods, rewards, tasks
from benchmarks.studies.updates import updates
from transformer import Config, UserError
from transformer.data.built_in.spelling import spelled
from transformer.systems.transformer.options import METHODS


def test_every_variant_is_compared(tmp_path):
    plan = methods.Plan(tmp_path, None, 40, 3)
    for name, variant in methods.METHODS.items():
        config = plan.config(name, 1)
        check_config(config)
        assert config.training.steps == (10 if variant.continues else 40)
        assert (config.training.init_from is not None) == variant.continues
    assert set(METHODS) <= set(methods.METHODS)
    plain, fat = (plan.config(name, 0) for name in (methods.PLAIN, "fat"))
    assert fat.system == "fast-autoregressive"
    for name in ("d_model", "num_layers", "dropout", "share_embeddings"):
        assert getattr(fat.model, name) == getattr(plain.model, name)


def test_the_table_of_methods():
    row = {"bleu": 30.0, "interval": 1.5, "difference": 0.5, "p": 0.04, "seeds": 1, "spread": None}
    row |= {"update": 1.1, "memory": 1.0, "decoding": 0.9, "options": "--x 1"}
    lines = methods.table([row | {"name": "plain"}, row | {"name": "rdrop", "spread": 0.25, "seeds": 3}])
    assert lines.splitlines()[2] == "| plain | `--x 1` | 30.00 ± 1.50 |  |  | 1 | 1.10 | 1.00 | 0.90 |"
    assert "| +0.50 ± 0.25 | 0.040 | 3 |" in lines


def test_a_folder_with_other_updates_is_refused(finished, tmp_path):
    plan = methods.Plan(tmp_path, None, 7, 1)
    shutil.copytree(finished, plan.path(methods.PLAIN, 0))
    (tmp_path / "plain-0.json").write_text('{"translations": []}')
    with pytest.raises(UserError, match="plain-0 has .* updates, not 7: name another WORK"):
        plan.build(methods.PLAIN, 0)


# Rewards


def test_a_run_is_continued_with_and_without_a_reward(finished, tmp_path):
    plan = rewards.Plan(finished, tmp_path, updates=20)
    for name in rewards.METHODS:
        config = plan.config(name, 1)
        check_config(config)
        assert config.training.init_from == finished
        assert (config.training.steps, config.training.seed) == (20, 1)
        assert (config.reward.share > 0) == (name != "cross-entropy")


def test_the_table_of_rewards():
    before = bootstrap.Comparison(40.0, 1.5, 0.0, 1.0)
    each = [{"bleu": 40.0 + x, "difference": x, "p": 0.04} for x in (0.25, 0.75)]
    row = {"name": "minimum risk", "each": each, "rewards": [0.35, 0.36]}
    lines = rewards.table(before, 0.3, [row]).splitlines()
    assert lines[2] == "| before | 40.00 ± 1.50 | | | | 30.0 % |"
    assert lines[3] == "| minimum risk | 40.50 | +0.25, +0.75 | +0.50 ± 0.35 | 0.040, 0.040 | 35.0, 36.0 % |"


@pytest.mark.slow
def test_the_expected_reward_is_that_of_samples(finished):
    assert 0 < rewards.expected(finished, "best") < 1


def test_translations_are_compared(finished):
    references = [target for _, target in set_of_test(finished)]
    first = ["wrong" for _ in references]
    found = bootstrap.compare(finished, first, references)
    assert (found.bleu, found.difference) == (pytest.approx(100), pytest.approx(100))
    assert found.p < 0.05
    assert bootstrap.compare(finished, references, references).p == 1


@pytest.mark.slow
def test_rewards_at_a_small_size(finished, tmp_path, capsys):
    rewards.main([str(finished), str(tmp_path), "--updates", "4", "--seeds", "2"])
    rows = json.loads((tmp_path / "rewards.json").read_text())["rows"]
    assert [row["name"] for row in rows] == list(rewards.METHODS)
    assert [len(row["each"]) for row in rows] == [2, 2, 2]
    with pytest.raises(UserError, match="has 4 updates, not 5: name another WORK"):
        rewards.main([str(finished), str(tmp_path), "--updates", "5", "--seeds", "2"])


# Batches


@pytest.mark.slow
def test_updates_go_through_the_batches(config):
    losses = {}
    for repeat in (False, True):
        each = updates(config, repeat)
        losses[repeat] = [next(each)[1]["loss"] for _ in range(3)]
    assert losses[False][0] == losses[True][0]
    assert losses[False][1:] != losses[True][1:]
    assert losses[True][2] < losses[True][0]


# Tasks


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_models_of_a_task(task):
    for name, config in tasks.TASKS[task]().items():
        check_config(config)
        assert isinstance(config, Config), name


def test_when_a_task_is_solved():
    def run(*scores):
        records = [{"step": step, "bleu": bleu} for step, bleu in enumerate(scores, start=1)]
        return SimpleNamespace(log=SimpleNamespace(records=lambda kind: records))

    assert tasks.solved(run(50, 99.5, 98, 99, 100)) == 4
    assert tasks.solved(run(99, 98)) is None


def test_blocks_that_are_repeated():
    lines = tasks.repeated(3)
    assert len(set(lines)) == 100
    assert lines[57] == spelled([5, 7, 5, 7, 5, 7])


def test_attention_near_the_diagonal():
    def translator(alignment):
        return SimpleNamespace(search=lambda *_, **__: [[SimpleNamespace(alignment=alignment)]])

    lines = [("1 2 3 4 5 6 7 8", "")]
    assert tasks.diagonality(translator(np.eye(8)), lines) == pytest.approx(1)
    even = tasks.diagonality(translator(np.full((8, 8), 1 / 8)), lines)
    places = np.arange(8) / 8
    near = np.exp(-((places[:, None] - places) ** 2) / (2 * 0.2**2))
    assert even == pytest.approx(near.mean(), rel=1e-5)


@pytest.mark.slow
def test_a_task_is_trained_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tasks, "test_set", lambda run_dir: set_of_test(run_dir)[:10])
    monkeypatch.setattr(tasks, "repeated", lambda count: [spelled([7] * count)])
    tasks.main([str(tmp_path), "--tasks", "spelling", "--only", "plain", "monotonic", "--updates", "1"])
    rows = json.loads((tmp_path / "spelling.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["plain", "monotonic"]
    assert all(len(row["repeated"]) == 6 for row in rows)
    assert "| monotonic |" in (tmp_path / "spelling.md").read_text()
    with pytest.raises(UserError, match="--only nothing: there is no such model"):
        tasks.main([str(tmp_path), "--tasks", "sorting", "--only", "nothing"])
