"""The encoder of a new model is that of another run."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_run import changed, drawn_run, interrupted, parameters, quiet, same, small_config, write_text
from toy_runs import sentences_config

from transformer import PRESETS, Config, Run, TransformerConfig, Translator, UserError, train
from transformer.commands.train import train_main
from transformer.config.model import SpecialIds
from transformer.config.training import TrainingConfig
from transformer.config.transformer import EncoderConfig
from transformer.interop.pretrained import import_model
from transformer.model.stack import ENCODER
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.trainer.starts import encoded

BERT = Path(__file__).parent / "data" / "bert"
SENTENCES = ["red cat runs", "blue bird sings sleeps"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A masked language model of the words of the small text."""
    folder = tmp_path_factory.mktemp("encoder")
    config = sentences_config(folder, "one")
    text = write_text(folder, "train", 200)["train_source"]
    config = replace(config, data=replace(config.data, train=text), mesh=Config().mesh)
    return drawn_run(config, folder / "run")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return import_model(BERT / "two-layers", tmp_path_factory.mktemp("bert") / "run")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A translation model whose decoder has one layer, with a vocabulary of its own."""
    config = small_config(tmp_path_factory.mktemp("text"))
    model = replace(config.model, decoder_layers=1, share_embeddings="target", dropout=0.0)
    return replace(config, model=model, data=replace(config.data, joint_vocabulary=False))


def begun(config: Config, run: Run, folder: Path, **options) -> Run:
    """A run that has not moved from where it started."""
    training = {"init_encoder_from": run.path, "steps": 1, "evaluate_every": 1, **options}
    config = replace(changed(config, **training), optimizer=replace(config.optimizer, peak=0.0))
    return Run(train(config, folder / "run", watch=quiet()))


def assert_started(run: Run, parent: Run) -> None:
    """The encoder is the parent's, and everything else as before training."""
    after, before = run.variables("last")["params"], parent.variables("best")["params"]
    ids = jnp.zeros((1, 2), jnp.int32)
    model = run.system.model(run.config.model)
    fresh = model.init(jax.random.key(run.config.training.seed), ids, ids)["params"]
    for name, parameters_of in after.items():
        if name.startswith(ENCODER):
            jax.tree.map(np.testing.assert_array_equal, parameters_of, before[name])
        else:  # jit rounds otherwise
            jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), parameters_of, fresh[name])
    source = jnp.asarray([[4, 5, 6, run.config.model.special.eos]])
    theirs = parent.system.model(parent.config.model).apply(parent.variables("best"), source, method="encode")
    ours = model.apply(run.variables("last"), source, method="encode")
    if "bridge" not in after:
        np.testing.assert_allclose(ours.states, theirs.states, atol=1e-5)


@pytest.mark.slow
def test_the_encoder_is_that_of_the_run(encoder, config, tmp_path):
    run = begun(config, encoder, tmp_path)
    assert_started(run, encoder)
    assert run.config.model.num_layers == 2
    assert run.config.model.decoder_depth == 1
    source, target = run.task.tokenizers
    assert source.content() == encoder.task.tokenizer.content()
    assert target.kind == "whitespace"
    assert run.config.training.init_encoder_from == encoder.path


@pytest.mark.slow
def test_a_narrower_decoder_has_a_bridge(encoder, config, tmp_path):
    run = begun(replace(config, model=replace(config.model, d_model=8)), encoder, tmp_path)
    assert run.config.model.encoder_stack.d_model == 16
    assert run.variables("last")["params"]["bridge"]["kernel"].shape == (16, 8)
    assert_started(run, encoder)


def test_another_width_is_refused_where_both_share_a_matrix(encoder, config, tmp_path):
    shared = replace(
        config,
        model=replace(config.model, d_model=8, share_embeddings="all"),
        data=replace(config.data, joint_vocabulary=True),
    )
    with pytest.raises(UserError, match="different widths cannot share one matrix"):
        begun(shared, encoder, tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_vocabulary_for_both(encoder, config, tmp_path):
    """The decoder's embeddings are pretrained too."""
    shared = replace(
        config,
        model=replace(config.model, share_embeddings="all"),
        data=replace(config.data, joint_vocabulary=True),
    )
    run = begun(shared, encoder, tmp_path)
    assert_started(run, encoder)
    source, target = run.task.tokenizers
    assert source.content() == target.content() == encoder.task.tokenizer.content()


@pytest.mark.slow
def test_bert_with_a_vocabulary_of_the_target(bert, config, tmp_path):
    """Whose special ids are BERT's. Outputs do not begin with [CLS]."""
    run = begun(config, bert, tmp_path)
    assert_started(run, bert)
    source, target = run.task.tokenizers
    assert source.special == target.special == bert.config.model.special != SpecialIds()
    assert source.start
    assert not target.start
    assert len(Translator.load(run.path).translate(SENTENCES)) == 2


@pytest.mark.slow
def test_bert_with_its_vocabulary_for_both(bert, config, tmp_path):
    data = replace(config.data, joint_vocabulary=True, max_length=32, buckets=(32,))
    run = begun(replace(config, data=data, decoding=replace(config.decoding, buckets=(32,))), bert, tmp_path)
    source, target = run.task.tokenizers
    assert target.encode("a dog") == source.encode("a dog")[1:]
    assert len(Translator.load(run.path).translate(SENTENCES)) == 2


@pytest.mark.slow
def test_the_encoder_of_a_translation_model(encoder, config, tmp_path):
    """Also of one that predicts all words at once, and for one."""
    first = begun(config, encoder, tmp_path / "first")
    masked = {name: getattr(config.model, name) for name in vars(TransformerConfig())}
    other = replace(
        config,
        system="nonautoregressive",
        model=NonAutoregressiveConfig(**masked),
        decoding=NonAutoregressiveDecodingConfig(rows=16, buckets=(8,)),
    )
    second = begun(other, first, tmp_path / "second")
    assert_started(second, encoder)


@pytest.mark.slow
def test_it_learns_and_resumes_without_the_other_run(encoder, config, tmp_path):
    (tmp_path / "other").symlink_to(encoder.path)
    begins = changed(config, init_encoder_from=tmp_path / "other")
    whole = train(begins, tmp_path / "whole", watch=quiet())
    losses = [record["nll"] for record in Run(whole).log.records("evaluation")]
    assert losses[-1] < losses[0]
    (tmp_path / "other").unlink()
    train(begins, interrupted(whole, tmp_path / "parts"), watch=quiet())
    assert same(whole, tmp_path / "parts")
    train(Run(whole).config, interrupted(whole, tmp_path / "stored"), watch=quiet())
    assert same(whole, tmp_path / "stored")
    with pytest.raises(UserError, match="was made with other options: --model.d-ff"):
        train(replace(begins, model=replace(begins.model, d_ff=99)), whole, watch=quiet())


@pytest.mark.slow
def test_a_frozen_encoder_stays_that_of_the_run(encoder, config, tmp_path):
    """And one with a rate of its own moves less."""
    start = changed(config, init_encoder_from=encoder.path, steps=4)
    before = encoder.variables("best")["params"]

    def moved(config, name):
        """The largest change of each part of the encoder."""
        after = Run(train(config, tmp_path / name, watch=quiet())).variables("last")["params"]
        changes = jax.tree.map(
            lambda x, y: float(abs(x - y).max()),
            {part: after[part] for part in after if part.startswith(ENCODER)},
            {part: before[part] for part in before if part.startswith(ENCODER)},
        )
        return {part: max(jax.tree.leaves(changes[part])) for part in changes}

    frozen = moved(changed(start, freeze=("encoder", "source")), "frozen")
    assert len(frozen) == 3
    assert set(frozen.values()) == {0}
    slow = replace(start, optimizer=replace(start.optimizer, groups=("encoder=0.01", "source=0.01")))
    slower, free = moved(slow, "slow"), moved(start, "free")
    assert all(0 < slower[part] < 0.1 * free[part] for part in free)


@pytest.mark.slow
def test_the_command(bert, config, tmp_path, call, refused):
    """The decoder is the preset's, with a vocabulary of its own; a run that exists is resumed."""
    text = ["--data.train-source", config.data.train_source, "--data.train-target", config.data.train_target]
    text += ["--data.tokenizer", "word", "--data.cache-dir", tmp_path / "cache"]
    small = ["--model.d-model", "24", "--model.d-ff", "32", "--model.num-heads", "2"]
    small += ["--model.decoder-layers", "1", "--training.steps", "2", "--data.batch-tokens", "512"]
    words = ["quickstart", "--init-encoder-from", bert.path, *text, *small]
    assert call(train_main, *words, "--run-dir", tmp_path / "run")[0] == 0
    run = Run(tmp_path / "run")
    model = run.config.model
    assert (model.d_model, model.of_encoder.d_model, model.num_layers) == (24, 16, 2)
    assert (model.share_embeddings, run.config.data.joint_vocabulary) == ("target", False)
    before = parameters(run.path)
    again = "--run-dir", tmp_path / "run", *text[:4], "--data.cache-dir", tmp_path / "cache"
    assert call(train_main, *again)[0] == 0
    assert call(train_main, *words, "--run-dir", tmp_path / "run")[0] == 0
    for x, y in zip(before, parameters(run.path), strict=True):
        np.testing.assert_array_equal(x, y)
    both = "--init-encoder-from", bert.path, "--init-from", bert.path
    assert "--init-from and --init-encoder-from both say" in refused(train_main, "quickstart", *both, *text)


@pytest.mark.slow
def test_what_has_no_such_encoder_is_refused(encoder, config, tmp_path):
    start = replace(config.training, init_encoder_from=encoder.path)
    for name, message in (
        ("tiny-recurrent", "system recurrent has no encoder of a Transformer"),
        ("masked-lm", "system masked-lm has no encoder of a Transformer that reads text; leave it out"),
        ("speech", "system speech has no encoder of a Transformer that reads text"),
    ):
        with pytest.raises(UserError, match=message):
            train(replace(PRESETS[name], training=start), tmp_path / "run", watch=quiet())
    recurrent = replace(PRESETS["tiny-recurrent"].model, d_model=8, share_embeddings="target")
    recurrent = replace(changed(config, steps=1), system="recurrent", model=recurrent)
    other = train(recurrent, tmp_path / "rnn", watch=quiet())
    with pytest.raises(UserError, match="holds a recurrent model, which has no encoder of a Transformer"):
        begun(config, Run(other), tmp_path)
    named = replace(config, data=replace(config.data, source_tokenizer=other / "source.model"))
    with pytest.raises(UserError, match="--data.source-tokenizer .*: --init-encoder-from brings"):
        begun(named, encoder, tmp_path)
    with pytest.raises(UserError, match="--init-from and --init-encoder-from both say"):
        TrainingConfig(init_from=other, init_encoder_from=other)
    assert not (tmp_path / "run").exists()


def test_options_of_the_encoder_are_those_of_the_run_and_others_stay():
    decoder = TransformerConfig(
        num_layers=6, d_model=32, num_heads=4, d_k=5, norm="pre", share_embeddings="target", dropout=0.3
    )
    other = replace(
        PRESETS["bert-base"].model, vocab_size=9, num_layers=3, special=SpecialIds(0, 5, 6, 7), window=4
    )
    model = encoded(decoder, other)
    assert model.decoder_depth == 6
    assert model.dropout == 0.3
    assert (model.d_model, model.norm, model.positions) == (32, "pre", "sinusoidal")
    assert (model.num_layers, model.vocab_size, model.window, model.special) == (3, 9, 4, other.special)
    for name in vars(EncoderConfig()):
        resolved = {"d_k": "key_width", "d_v": "value_width"}.get(name, name)
        assert getattr(model.of_encoder, resolved) == getattr(other, resolved), name
    assert encoded(model, model) == model
    assert encoded(decoder, model) == model
