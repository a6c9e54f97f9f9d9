"""The study of methods, with small runs, and what it does with runs and configs."""

import shutil

import pytest
from of_a_config import check_config

from benchmarks.runs import compare, updates
from benchmarks.runs import test_set as set_of_test
from benchmarks.studies import methods
from transformer import UserError
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


def test_translations_are_compared(finished):
    references = [target for _, target in set_of_test(finished)]
    first = ["wrong" for _ in references]
    found = compare(finished, first, references)
    assert (found.bleu, found.difference) == (pytest.approx(100), pytest.approx(100))
    assert found.p < 0.05
    assert compare(finished, references, references).p == 1


@pytest.mark.slow
def test_updates_go_through_the_batches(config):
    losses = {}
    for repeat in (False, True):
        each = updates(config, repeat)
        losses[repeat] = [next(each)[1]["loss"] for _ in range(3)]
    assert losses[False][0] == losses[True][0]
    assert losses[False][1:] != losses[True][1:]
    assert losses[True][2] < losses[True][0]
