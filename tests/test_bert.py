"""BERT becomes the encoder of a run whose decoder is new (tests/make_bert_golden.py)."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.cli.models import import_command
from transformer.cli.train import train_main
from transformer.interop.pretrained import import_model
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data" / "bert"


@pytest.fixture(scope="module", params=["one-layer", "two-layers"])
def imported(request, tmp_path_factory):
    folder, run_dir = DATA / request.param, tmp_path_factory.mktemp("imported") / "run"
    import_model(folder, run_dir)
    golden = json.loads((folder / "golden.json").read_text())
    return SimpleNamespace(folder=folder, golden=golden, translator=Translator.load(run_dir))


def test_ids_are_those_of_the_reference(imported):
    tokenizer, special = imported.translator.tokenizers[0], imported.translator.model.config.special
    expected = [[index for index in row if index != special.pad] for row in imported.golden["ids"]]
    assert [[*tokenizer.encode(text), special.eos] for text in imported.golden["sources"]] == expected


def test_states_of_the_encoder_are_those_of_the_reference(imported):
    translator, ids = imported.translator, jnp.asarray(imported.golden["ids"])
    states = translator.model.apply(translator.variables, ids, method="encode").states
    expected = np.asarray(imported.golden["states"])
    is_text = np.asarray(ids) != translator.model.config.special.pad
    assert expected.std() > 0.2
    np.testing.assert_allclose(np.asarray(states)[is_text], expected[is_text], atol=1e-4, rtol=0)


def test_the_decoder_is_that_of_a_new_model(imported):
    params = imported.translator.variables["params"]
    ids = jnp.zeros((1, 2), jnp.int32)
    initial = imported.translator.model.init(jax.random.key(0), ids, ids)["params"]
    new = {name for name in params if name.startswith(("decoder", "target"))}
    assert {"decoder_0", "target_embedding", "target_positions"} <= new
    for name in new:
        ours, expected = (jax.tree.leaves(each[name]) for each in (params, initial))
        for x, y in zip(ours, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def test_the_command_says_that_the_decoder_is_untrained(tmp_path, capsys):
    import_command([str(DATA / "two-layers"), str(tmp_path / "run")])
    assert "that of this run is untrained: train it with train.py --init-from" in capsys.readouterr().out


def test_a_training_starts_from_it(tmp_path, monkeypatch):
    """Its two vocabularies are separate, unlike those of the defaults."""
    run = import_model(DATA / "two-layers", tmp_path / "run")
    asked = []
    monkeypatch.setattr(
        "transformer.training.loop.train.train", lambda config, run_dir, **_: asked.append(config)
    )
    monkeypatch.setattr(sys, "argv", ["train.py", "--init-from", str(run.path), "--data.train-tsv", "a"])
    assert train_main() == 0
    assert asked[0].model == run.config.model
    assert not asked[0].data.joint_vocabulary
