"""Training an imported model is that of its publisher: the losses of ten updates by AdamW, with clipping and
weight decay, equal those of `transformers` (tests/make_updates_golden.py)."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from make_updates_golden import BETAS, CLIP, DATA, DECAY, EPSILON, IGNORED, RATE
from safetensors.numpy import load_file

from transformer.interop.pretrained import export_model, import_model
from transformer.model.encoder_decoder import decoder_input
from transformer.runs.run import Run
from transformer.systems.parameters import declared_parameters
from transformer.training.parametrisation import parametrisation_of

GOLDEN = json.loads((DATA / "updates.json").read_text())


def clipped():
    """Clipping by the norm of all gradients, as torch does it."""

    def update(gradients, state, params=None):
        factor = jnp.minimum(1, CLIP / (optax.tree.norm(gradients) + 1e-6))
        return jax.tree.map(lambda x: x * factor, gradients), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@pytest.mark.by_default("pretrained/t5")
@pytest.mark.parametrize("name", GOLDEN)
def test_ten_updates_are_those_of_the_reference(tmp_path, name):
    golden = GOLDEN[name]
    run = import_model(DATA / name, tmp_path / "run")
    none = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    config = replace(run.config, model=replace(run.config.model, **none))
    model, params = run.system.model(config.model), run.variables("last")["params"]
    how = parametrisation_of(config, params, declared_parameters(run.system, config))
    trained, fixed = how.split(params)
    special, labels = config.model.special, np.asarray(golden["labels"])
    target = jnp.asarray(np.where(labels == IGNORED, special.pad, labels))
    source = jnp.asarray(golden["source"])
    optimizer = optax.chain(clipped(), optax.adamw(RATE, *BETAS, eps=EPSILON, weight_decay=DECAY))

    def loss_of(trained):
        logits = model.apply({"params": how.merge(trained, fixed)}, source, decoder_input(target, special))
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), target[..., None], axis=-1)[..., 0]
        return -(log_p * (target != special.pad)).sum() / (target != special.pad).sum()

    @jax.jit
    def step(trained, state):
        loss, gradients = jax.value_and_grad(loss_of)(trained)
        updates, state = optimizer.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state, loss

    state, losses = optimizer.init(trained), []
    for _ in golden["losses"]:
        trained, state, loss = step(trained, state)
        losses.append(float(loss))
    # rounding grows from update to update; what is trained in another way is 1e-2 apart and more
    np.testing.assert_allclose(losses, golden["losses"], rtol=1e-3)
    assert losses[-1] < 0.95 * losses[0]


def test_a_run_with_scaled_queries_is_exported_as_before(tmp_path):
    """Earlier versions stored the queries of T5 times sqrt(d_k), and divided the scores."""
    run = import_model(DATA / "pretrained/t5", tmp_path / "run")
    params = run.variables("last")["params"]
    factor = run.config.model.key_width**0.5
    scaled = jax.tree_util.tree_map_with_path(
        lambda path, x: np.asarray(x) * np.float32(factor if path[-1].key == "query" else 1), params
    )
    config = replace(run.config, model=replace(run.config.model, scale_scores=True))
    Run.create(tmp_path / "earlier", config, run.task, variables={"params": scaled})
    stored = []
    for name in ("run", "earlier"):
        export_model(tmp_path / name, tmp_path / f"{name}-out")
        stored.append(load_file(tmp_path / f"{name}-out" / "model.safetensors"))
    assert stored[0].keys() == stored[1].keys()
    for name, x in stored[0].items():
        np.testing.assert_allclose(stored[1][name], x, rtol=1e-6)
