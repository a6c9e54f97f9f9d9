"""BERT becomes a masked language model (tests/make_bert_golden.py)."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_run import changed, quiet, write_text

from transformer import Context, Run, UserError, train
from transformer.commands.models import import_command
from transformer.commands.train import train_main
from transformer.interop.pretrained import import_model
from transformer.systems.masked_language_model import system as objective
from transformer.systems.masked_language_model.system import Hidden, masked_lm_objective

DATA = Path(__file__).parent / "data" / "bert"


@pytest.fixture(scope="module", params=["one-layer", "two-layers"])
def imported(request, tmp_path_factory):
    folder, run_dir = DATA / request.param, tmp_path_factory.mktemp("imported") / "run"
    run = import_model(folder, run_dir)
    model, variables = run.system.model(run.config.model), run.variables("best")
    golden = json.loads((folder / "golden.json").read_text())
    return SimpleNamespace(folder=folder, golden=golden, run=run, model=model, variables=variables)


@pytest.mark.by_default("one-layer")
def test_ids_are_those_of_the_reference(imported):
    special = imported.run.config.model.special
    expected = [[index for index in row if index != special.pad] for row in imported.golden["ids"]]
    examples = imported.run.task.examples(imported.golden["sources"])
    assert [example["source"] for example in examples] == expected


@pytest.mark.by_default("two-layers")
def test_states_of_the_encoder_are_those_of_the_reference(imported):
    ids = jnp.asarray(imported.golden["ids"])
    states = imported.model.apply(imported.variables, ids, method="encode").states
    expected = np.asarray(imported.golden["states"])
    is_text = np.asarray(ids) != imported.run.config.model.special.pad
    assert expected.std() > 0.2
    np.testing.assert_allclose(np.asarray(states)[is_text], expected[is_text], atol=1e-4, rtol=0)


@pytest.mark.thorough
@pytest.mark.by_default("one-layer")
def test_the_loss_of_hidden_tokens_is_that_of_the_reference(imported, monkeypatch):
    """With the masks of the reference, in place of ours."""
    golden = imported.golden.get("hidden")
    if golden is None:
        assert "head" in imported.variables["params"]  # a new one
        return
    labels = np.asarray(golden["labels"])
    hidden = Hidden(jnp.asarray(golden["source"]), jnp.asarray(labels >= 0))
    monkeypatch.setattr(objective, "hide", lambda *_: hidden)
    loss_of = masked_lm_objective(changed(imported.run.config, label_smoothing=0.0))
    ids = jnp.asarray(imported.golden["ids"])
    loss = loss_of(imported.model, imported.variables, {"source": ids}, Context())
    assert float(loss.weight) == (labels >= 0).sum() > 6
    assert float(loss.total / loss.weight) == pytest.approx(golden["loss"], abs=1e-4)
    assert float(loss.metrics["nll"][0]) == pytest.approx(float(loss.total), abs=1e-4)
    log_p = jax.nn.log_softmax(imported.model.apply(imported.variables, hidden.source))
    chosen = np.take_along_axis(np.asarray(log_p), np.maximum(labels, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(np.where(labels < 0, 0, chosen), golden["log_p"], atol=1e-4)


def test_the_mask_is_that_of_the_vocabulary(imported):
    words = (imported.folder / "vocab.txt").read_text().split("\n")
    assert words[imported.run.config.model.mask] == "[MASK]"


@pytest.mark.slow
def test_a_head_that_is_missing_is_new(tmp_path, capsys):
    import_command([str(DATA / "two-layers"), str(tmp_path / "run")])
    output = capsys.readouterr().out
    assert "the folder has no head that predicts hidden tokens" in output
    assert "--init-encoder-from" in output
    import_command([str(DATA / "one-layer"), str(tmp_path / "other")])
    assert "no head" not in capsys.readouterr().out


@pytest.mark.slow
def test_it_is_trained_further(tmp_path, call):
    """On one's own text, from the command line."""
    parent = import_model(DATA / "one-layer", tmp_path / "bert")
    text = write_text(tmp_path, "train", 60)["train_source"]
    small = ["--data.max-length", "16", "--data.batch-tokens", "256", "--training.steps", "2"]
    words = ["--init-from", parent.path, "--data.train", text, *small, "--run-dir", tmp_path / "run"]
    assert call(train_main, *words)[0] == 0
    run = Run(tmp_path / "run")
    assert replace(run.config.model, dtype="auto") == parent.config.model
    assert run.task.content() == parent.task.content()
    before, after = parent.variables("best")["params"], run.variables("last")["params"]
    assert jax.tree.map(jnp.shape, before) == jax.tree.map(jnp.shape, after)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"tie_word_embeddings": False}, "config.json: tie_word_embeddings is false"),
        ({"is_decoder": True}, "config.json: is_decoder is true"),
        ({"position_embedding_type": "relative_key"}, "config.json: position_embedding_type 'relative_key'"),
    ],
)
def test_what_is_not_supported_is_refused(damage, message, tmp_path):
    shutil.copytree(DATA / "one-layer", tmp_path / "bert")
    described = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps(described | damage))
    with pytest.raises(UserError, match=message):
        import_model(tmp_path / "bert", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["bert.encoder.layer.0.output.dense.weight", "cls.predictions.bias"])
def test_a_tensor_that_is_missing_is_named(tmp_path, name):
    """Also one of the head, if the folder has the others."""
    shutil.copytree(DATA / "one-layer", tmp_path / "bert")
    tensors = load_file(tmp_path / "bert/model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "bert/model.safetensors")
    with pytest.raises(UserError, match=f"there is no tensor {name.removeprefix('bert.')}"):
        import_model(tmp_path / "bert", tmp_path / "run")


def test_it_is_no_translator(imported, tmp_path):
    config = replace(imported.run.config, training=replace(imported.run.config.training, steps=1))
    with pytest.raises(UserError, match="--init-from"):
        train(config, imported.run.path, watch=quiet())
