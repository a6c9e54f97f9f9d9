"""What depends on the kind of device is decided when a run begins, stored, and kept elsewhere."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from configs import CONFIGS
from of_a_config import check_config, decided_for, job_of
from small_run import changed, quiet, same, small_config
from tiers import mostly_slow

from transformer import Config, Run, TransformerConfig, UserError, train
from transformer.config.methods import RewardConfig
from transformer.config.options import as_decided
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.presets import PRESETS
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import REGISTRY, find_system

FLOAT32_ONLY, PACKS = {"recurrent", "fast-autoregressive"}, {"transformer"}


def preset_of(system: str) -> Config:
    return next(preset for preset in CONFIGS.values() if preset.system == system)


def decided(config: Config, platform: str) -> tuple[str, str]:
    config = decided_for(config, platform)
    check_config(config)
    return config.model.dtype, config.data.batching


def open_options(config: Config) -> Config:
    """The config with nothing decided."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, dtype="auto"),
        data=dataclasses.replace(config.data, batching="auto"),
    )


@pytest.mark.parametrize("system", REGISTRY)
def test_every_system(system):
    config = open_options(preset_of(system))
    fast = "float32" if system in FLOAT32_ONLY else "bfloat16", "packed" if system in PACKS else "buckets"
    assert decided(config, "cpu") == ("float32", "buckets")
    assert decided(config, "tpu") == decided(config, "gpu") == fast


@pytest.mark.parametrize(
    ("options", "batching"),
    [
        ({"model": TransformerConfig(mechanism="linear")}, "buckets"),
        ({"model": TransformerConfig(cross_mechanism="monotonic")}, "buckets"),
        ({"reward": RewardConfig(share=0.5)}, "buckets"),
        ({}, "packed"),
    ],
)
def test_rows_are_packed_where_the_options_allow_it(options, batching):
    assert decided(Config(**options), "tpu")[1] == batching


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_what_is_given_stays(platform):
    config = PRESETS["base"]
    for dtype, batching in (("float32", "packed"), ("bfloat16", "buckets")):
        given = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, dtype=dtype),
            data=dataclasses.replace(config.data, batching=batching),
        )
        assert decided(given, platform) == (dtype, batching)


@pytest.mark.parametrize("kind", [RecurrentConfig, FastAutoregressiveConfig])
def test_bfloat16_is_refused_where_it_is_not_supported(kind):
    kind(dtype="float32")
    with pytest.raises(UserError, match="--model.dtype bfloat16: this model supports float32 only"):
        kind(dtype="bfloat16")


@pytest.mark.slow
def test_a_run_that_is_resumed_elsewhere_keeps_what_it_has_decided(tmp_path, monkeypatch):
    """It begins on an accelerator and ends on a CPU, like one that is on an accelerator all the time."""
    config = small_config(tmp_path)

    def train_on(platform, given, name):
        monkeypatch.setattr("transformer.trainer.resolved.platform", lambda: platform)
        train(given, tmp_path / name, watch=quiet())

    train_on("gpu", changed(config, steps=4), "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "stayed")
    for name, platform in {"moved": "cpu", "stayed": "gpu"}.items():
        train_on(platform, config, name)
        stored = Run(tmp_path / name).config
        assert (stored.model.dtype, stored.data.batching) == ("bfloat16", "packed")
    assert same(tmp_path / "moved", tmp_path / "stayed")


def test_on_a_cpu_nothing_is_left_open(finished):
    stored = Run(finished).config
    assert (stored.model.dtype, stored.data.batching) == ("float32", "buckets")


def test_a_preset_of_another_system_is_left_open():
    """Reports compare a run with every preset; not all of them support what it has decided."""
    run = decided_for(PRESETS["base"], "tpu")
    for name in ("tiny-recurrent", "language-model"):
        assert as_decided(PRESETS[name], run).model.dtype == "auto"
    assert as_decided(PRESETS["big"], run).model.dtype == "bfloat16"


@pytest.mark.thorough
@pytest.mark.parametrize("system", mostly_slow(sorted(REGISTRY.keys() - FLOAT32_ONLY), ["transformer"]))
def test_bfloat16_changes_only_the_precision_of_products(system):
    """Outputs are near those in float32; parameters, sums and gradients are float32."""
    config = job_of(preset_of(system)).config
    example, outputs, random = find_system(system).task.example(config), {}, np.random.default_rng(0)
    example = jax.tree.map(
        lambda x: jnp.asarray(
            random.integers(4, 20, x.shape)
            if jnp.issubdtype(x.dtype, jnp.integer)
            else random.normal(size=x.shape),
            x.dtype,
        ),
        example,
    )
    variables = jax.jit(find_system(system).model(config.model).init)(jax.random.key(0), *example)
    for dtype in ("float32", "bfloat16"):
        model = find_system(system).model(dataclasses.replace(config.model, dtype=dtype))
        outputs[dtype] = [
            np.asarray(x)
            for x in jax.tree.leaves(jax.jit(model.apply)(variables, *example))
            if x.dtype == jnp.float32
        ]
    assert outputs["float32"]
    for exact, coarse in zip(outputs["float32"], outputs["bfloat16"], strict=True):
        finite = np.isfinite(exact)
        assert 0 < np.abs(exact[finite] - coarse[finite]).max() < 0.1 * np.abs(exact[finite]).max()
