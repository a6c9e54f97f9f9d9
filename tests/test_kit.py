"""The kit for tests of systems: what holds is said, and a broken contract is named."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small_run import changed, quiet, small_config
from tiers import mostly_slow
from toy_runs import toy_config
from toys import TOYS, register_toys

from transformer import Config, TransformerConfig, train
from transformer.data.sequences import Field
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.nonautoregressive.options import NonAutoregressiveConfig
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import REGISTRY, find_system, options_of
from transformer.testing import check_system, padded

QUICK = ("tagging",)
NAMES = (*REGISTRY, *TOYS)


TEXT = {
    "transformer": TransformerConfig,
    "recurrent": RecurrentConfig,
    "convolutional": ConvolutionalConfig,
    "fast-autoregressive": FastAutoregressiveConfig,
    "nonautoregressive": NonAutoregressiveConfig,
    "copying": CopyingConfig,
}
"""The systems of texts, and their options."""


def small_system(name: str, folder: Path) -> Config:
    """The config of a small system, without randomness in an update."""
    if name == "nonautoregressive-synthesis":  # its teacher
        teacher = folder.parent / "synthesis" / "one-whole"
        teacher.parent.mkdir()
        train(toy_config("synthesis", folder), teacher, watch=quiet())
    if name not in TEXT:
        return toy_config(name, folder)
    config, sizes = small_config(folder), {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    known = {item.name for item in fields(TEXT[name])}
    own = {"nonautoregressive": {"decoder_input": "length"}}.get(name, {})  # hides no random tokens
    model = TEXT[name](dropout=0.0, **{key: value for key, value in sizes.items() if key in known}, **own)
    search = options_of(name).decoding
    return replace(
        config,
        system=name,
        model=model,
        data=replace(config.data, tokenizer="open-word" if name == "copying" else config.data.tokenizer),
        optimizer=replace(config.optimizer, epsilon=1e-4),
        training=replace(config.training, label_smoothing=0.0),
        decoding=config.decoding if isinstance(config.decoding, search) else search(rows=8, buckets=(8,)),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", mostly_slow(NAMES, QUICK))
def test_every_system_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    if name in TOYS:
        register_toys()
    try:
        checked = check_system(small_system(name, tmp_path / name), tmp_path / "runs")
    finally:
        for toy in TOYS:
            REGISTRY.pop(toy, None)
    assert checked["resumes"] == "with the same bits"
    assert checked["slices"] == "with the same results"


def test_padding_of_a_batch() -> None:
    arrays = {"ids": Field(fill=7), "labels": Field(padded=False)}
    batch = {"ids": np.ones((2, 3), int), "labels": np.ones(2, int)}
    larger = padded(batch, arrays, 1, 2)
    np.testing.assert_array_equal(larger["ids"], [[1, 1, 1, 7, 7]] * 2 + [[7] * 5])
    np.testing.assert_array_equal(larger["labels"], [1, 1, 0])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("broken", "message"), [("padding", "padding: .* differs by"), ("random", "slices: .* differs by")]
)
def test_a_broken_contract_is_named(broken: str, message: str, tmp_path: Path, monkeypatch: Any) -> None:
    """An objective that counts padding, and one that is random in each slice."""
    seed = 8 + len(broken)  # whose programs no other test has made
    config = changed(toy_config("tagging", tmp_path), seed=seed)
    system = find_system("tagging")

    def objective(config: Any, load_teacher: Any) -> Any:
        sound = system.objective(config, load_teacher)

        def wrong(model: Any, variables: Any, batch: Any, context: Any) -> Any:
            loss = sound(model, variables, batch, context)
            if broken == "padding":
                return replace(loss, weight=loss.weight + batch["source"].size)
            chance = 1.0 if context.deterministic else 0.8 + 0.4 * jax.random.uniform(context.key)
            return replace(loss, total=loss.total * chance)

        return wrong

    monkeypatch.setattr("transformer.systems.tagging.system.SYSTEM", replace(system, objective=objective))
    with pytest.raises(AssertionError, match=message):
        check_system(config, tmp_path / "runs")
