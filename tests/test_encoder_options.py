"""An encoder that differs from its decoder, against two models that are each like one of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from configs import CONFIGS
from of_a_config import declared_parameters, model_shapes
from toy_sentences import SOURCE, TARGET

from transformer import (
    BeamConfig,
    Config,
    DataConfig,
    EncoderConfig,
    Transformer,
    TransformerConfig,
    UserError,
)
from transformer.config.corpus import CorpusConfig
from transformer.systems.registry import REGISTRY, find_system, options_of
from transformer.translator.search_inputs import within_positions

OF_ENCODER = {
    "d_model": 12,
    "d_ff": 20,
    "num_heads": 3,
    "d_k": 6,
    "d_v": 5,
    "norm": "pre",
    "norm_epsilon": 1e-3,
    "token_type": True,
    "scale_scores": True,
    "final_norm": True,
    "embedding_norm": True,
    "activation": "gelu",
    "gated": True,
    "feed_forward_bias": False,
    "attention_bias": True,
    "key_bias": False,
    "positions": "learned",
    "first_position": 2,
    "position_buckets": 8,
    "bucket_distance": 12,
    "max_positions": 9,
    "mechanism": "additive",
    "normalization": "layer",
}
OTHER = {name: value for name, value in OF_ENCODER.items() if name not in ("mechanism", "d_model")}
OTHER["scale_scores"] = False  # which is for dot products


@pytest.mark.thorough
@pytest.mark.by_default("of the same width")
@pytest.mark.parametrize("given", [OF_ENCODER, OTHER], ids=["all", "of the same width"])
def test_the_encoder_is_that_of_one_model_and_the_decoder_that_of_another(tiny, random_variables, given):
    like_decoder = tiny(share_embeddings="target", num_layers=2, decoder_layers=1)
    like_encoder = replace(like_decoder, **given)
    mixed = Transformer(replace(like_decoder, encoder_stack=EncoderConfig(**given)))
    params = random_variables(mixed)["params"]
    source, target = jnp.asarray(SOURCE), jnp.asarray(TARGET)

    def part(model, variables, method, *inputs):
        return jax.jit(lambda v, *x: model.apply(v, *x, method=method))({"params": variables}, *inputs)

    memory = part(mixed, params, "encode", source)
    alone = part(Transformer(like_encoder), params, "encode", source).states
    if "d_model" in given:
        bridge = params["bridge"]
        alone = np.einsum("bsm,mn->bsn", alone, bridge["kernel"]) + bridge["bias"]
    else:
        assert "bridge" not in params
    np.testing.assert_allclose(memory.states, alone, atol=1e-5)
    hidden = part(mixed, params, "decode", memory, target)
    other = part(Transformer(like_decoder), params, "decode", memory, target)
    np.testing.assert_array_equal(hidden, other)
    assert not np.allclose(memory.states, part(mixed, params, "encode", source[:, ::-1]).states, atol=1e-2)


def test_every_option_of_the_encoder_is_tried():
    assert OF_ENCODER.keys() == vars(EncoderConfig()).keys()


TRANSFORMERS = sorted(name for name in REGISTRY if issubclass(options_of(name).model, TransformerConfig))


@pytest.mark.parametrize("system", TRANSFORMERS)
def test_every_system_that_is_a_transformer_takes_them(system):
    """Each parameter declares its axes, and the encoder's have its width."""
    assert len(TRANSFORMERS) > 4
    preset = next(config for config in CONFIGS.values() if config.system == system)
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "vocab_size": 30}
    encoder = EncoderConfig(d_model=24, norm="pre" if preset.model.norm == "post" else "post")
    model = replace(preset.model, **sizes, share_embeddings="none", encoder_stack=encoder)
    config = find_system(system).task.without_corpus(replace(preset, model=model)).config
    params = model_shapes(config)["params"]
    assert params["bridge"]["kernel"].shape == (24, 16)
    assert params["encoder_0"]["self_attention"]["query"].shape[0] == 24
    assert declared_parameters(config).keys() >= {("bridge", "kernel"), ("bridge", "bias")}


@pytest.mark.parametrize(
    ("given", "encoder", "message"),
    [
        ({}, {"d_model": 24}, "--model.share-embeddings target"),
        ({"share_embeddings": "target"}, {"d_model": 25}, "in the encoder .*d-model 25 is not divisible"),
        ({}, {"norm_epsilon": 0.0}, "--model.encoder-stack.norm-epsilon must be in"),
        ({}, {"num_heads": 3}, "in the encoder .*--model.num-heads 3"),
    ],
)
def test_what_does_not_fit_is_refused(given, encoder, message):
    with pytest.raises(UserError, match=message):
        TransformerConfig(d_model=16, num_heads=2, **given, encoder_stack=EncoderConfig(**encoder))


def test_limits_are_those_of_both(tiny):
    table = {"positions": "learned", "max_positions": 9}
    for model, expected in (
        (tiny(encoder_stack=EncoderConfig(**table)), (None, 9)),
        (tiny(**table, encoder_stack=EncoderConfig(max_positions=7)), (9, 7)),
        (tiny(**table, encoder_stack=EncoderConfig(positions="sinusoidal")), (9, None)),
    ):
        assert (model.longest, model.longest_source) == expected
        found = within_positions(BeamConfig(buckets=(6, 16)), *expected)
        assert (found.max_length, found.buckets) == (expected[0], (6, expected[1] or 16))
    long = Config(model=tiny(encoder_stack=EncoderConfig(**table)), data=CorpusConfig(max_length=12))
    assert long.data.max_length == 12  # of a target; what the encoder reads may be no sequence
    with pytest.raises(
        UserError, match="--model.encoder-stack.max-positions 9 is less than --data.max-length 12"
    ):
        Config(model=tiny(encoder_stack=EncoderConfig(**table)), data=DataConfig(max_length=12))
    linear, batch = EncoderConfig(mechanism="linear"), EncoderConfig(normalization="batch")
    assert tiny(encoder_stack=linear).packing_conflict == "--model.encoder-stack.mechanism linear"
    assert tiny(encoder_stack=batch).needs_whole_batch == "--model.encoder-stack.normalization batch"
