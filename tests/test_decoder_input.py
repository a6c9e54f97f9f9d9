"""Every model names what its decoder reads `decoder_input`, and takes it as `target`, its earlier name."""

import dataclasses
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from configs import CONFIGS
from of_a_config import job_of

import transformer
from transformer import Context, SpecialIds, Transformer, TransformerConfig, decoder_input
from transformer.systems.registry import REGISTRY, find_system
from transformer.training.objective import translation_objective

DOCS = Path(__file__).parent.parent / "docs"
SYSTEMS = [name for name in REGISTRY if not name.startswith("toy")]
SPOKEN = {"synthesis", "nonautoregressive-synthesis"}
"""Systems whose models are given the frames themselves, and shift them."""
PROMPTED = {"language-model"}
"""Systems whose models are called with a segment of running text; `decode` continues prompts."""
READING = {"masked-lm", "tagging", "detection"}
"""Systems whose models have no decoder that reads a target."""


def test_it_is_a_public_name():
    assert "decoder_input" in transformer.__all__
    special = SpecialIds()
    np.testing.assert_array_equal(decoder_input(jnp.array([[5, 6, 2, 0]]), special), [[1, 5, 6, 0]])


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_model_names_it_so(system):
    model = find_system(system).model
    named = {
        name: inspect.signature(method).parameters
        for name, method in inspect.getmembers(model, inspect.isfunction)
        if not name.startswith("_") or name == "__call__"
    }
    old = {name for name, parameters in named.items() if "target" in parameters}
    assert old <= ({"__call__", "decode", "target_mask"} if system in SPOKEN else {"target_mask"})
    new = {name for name, parameters in named.items() if "decoder_input" in parameters}
    if system not in SPOKEN | READING:
        assert {"decode"} if system in PROMPTED else {"__call__", "hidden", "decode"} <= new


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name not in SPOKEN | READING | PROMPTED])
def test_both_names_give_the_same(system):
    config = job_of(next(config for config in CONFIGS.values() if config.system == system)).config
    model = find_system(system).model(dataclasses.replace(config.model, num_layers=1))
    *inputs, read = find_system(system).task.example(config)
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs, read)

    def program(*names):
        def run(variables, inputs, read):
            return model.apply(variables, *inputs, **dict.fromkeys(names, read))

        return str(jax.make_jaxpr(run)(variables, inputs, read))

    assert program("decoder_input") == program("target")
    with pytest.raises(TypeError):
        program("decoder_input", "target")


@pytest.mark.thorough
def test_models_of_other_packages_keep_the_earlier_name():
    """The loss reads the argument as the model names it."""
    seen = []

    class Earlier(Transformer):
        def hidden(self, source, target, *, segments=None, deterministic=True):
            seen.append(target)
            return super().hidden(source, target, segments=segments, deterministic=deterministic)

    config = TransformerConfig(vocab_size=9, num_layers=1, d_model=8, d_ff=8, num_heads=2, dropout=0.0)
    batch = {"source": jnp.array([[4, 5, 2]]), "target": jnp.array([[6, 7, 2]])}
    variables = jax.jit(Transformer(config).init)(jax.random.key(0), *batch.values())
    objective = translation_objective(0.0)
    losses = [
        jax.jit(lambda v, b, model: objective(model, v, b, Context()).total, static_argnums=2)(
            variables, batch, model
        )
        for model in (Earlier(config), Transformer(config))
    ]
    assert losses[0] == losses[1]
    assert len(seen) == 1


@pytest.mark.slow
def test_the_loop_on_the_page_learns_and_decodes(capsys):
    """A loop whose decoder read the target itself would have no loss, and translate nothing."""
    (program,) = (DOCS / "reference/model.md").read_text(encoding="utf-8").split("```python\n")[1:]
    names: dict = {}
    exec(program.split("```")[0], names)
    assert capsys.readouterr().out == "1.0\n"
    same = np.all(np.asarray(names["best"]) == names["target"], axis=1)
    assert same.shape == (200,)
    assert same.all()
