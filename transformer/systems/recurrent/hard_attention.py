"""REINFORCE for hard attention (Williams 1992; Xu et al. 2015).

Sampled positions have no gradient. Instead, the objective of each choice is log p(choice) times (return -
baseline). Its return is the sum of the log-probabilities of this word and all later ones. The baseline is the
same sum if every step attends to the most probable position, as in decoding (self-critical training: Rennie
et al. 2017). The difficulty of the words is in both, and cancels.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import Config
from transformer.model.encoder_decoder import decoder_input
from transformer.model.parameters import Variables
from transformer.systems.recurrent.model import Recurrent, Steps
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import (
    Batch,
    Context,
    Loss,
    Objective,
    apply_training,
    translation_objective,
)


def recurrent_objective(config: Config) -> Objective:
    """The objective of the recurrent model: cross-entropy, and REINFORCE for hard attention."""
    assert isinstance(config.model, RecurrentConfig)
    if config.model.attention == "hard":
        return hard_attention_objective(config.training.label_smoothing, config.model)
    return translation_objective(config.training.label_smoothing)


def hard_attention_objective(smoothing: float, config: RecurrentConfig) -> Objective:
    """Label-smoothed cross-entropy with sampled positions, plus REINFORCE for these.

    The metrics are those of `translation_objective` and the `entropy` of the sampling distributions, in nats.
    In evaluation nothing is sampled: it is `translation_objective`.
    """
    plain = translation_objective(smoothing)

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        if context.deterministic:
            return plain(model, variables, batch, context)
        assert isinstance(model, Recurrent)
        target = batch["target"]
        special = model.config.special
        is_token = (target != special.pad).astype(jnp.float32)

        inputs = batch["source"], decoder_input(target, special)
        decode = functools.partial(
            apply_training, model, variables, context, *inputs, method=_steps_and_logits
        )
        (steps, logits), sown = decode(rngs=context.rngs("dropout", "draw"))
        (_, greedy_logits), _ = decode(rngs=context.rngs("dropout"))
        nll = cross_entropy(logits, target)
        greedy_nll = cross_entropy(greedy_logits, target)
        # return - baseline
        advantage = _from_here_on(jax.lax.stop_gradient(greedy_nll - nll) * is_token)
        chosen = jnp.take_along_axis(steps.weights, steps.choices[..., None], axis=-1)[..., 0]
        entropy = -(steps.weights * jnp.log(steps.weights + 1e-20)).sum(axis=-1)
        draws = -config.reward_weight * advantage * jnp.log(chosen + 1e-20)
        loss = cross_entropy(logits, target, smoothing) - config.entropy_weight * entropy
        loss += draws - jax.lax.stop_gradient(draws)  # a gradient, but no value, which would mean nothing
        weight = is_token.sum()
        correct = logits.argmax(-1) == target
        metrics = {
            name: (jax.lax.stop_gradient((values * is_token).sum()), weight)
            for name, values in {"nll": nll, "correct": correct, "entropy": entropy}.items()
        }
        return Loss((loss * is_token).sum(), weight, metrics, **sown)

    return objective


def _steps_and_logits(model: Recurrent, source: Array, target: Array) -> tuple[Steps, Array]:
    memory = model.encode(source, deterministic=False)
    steps, embedded = model.steps(memory, target, deterministic=False)
    return steps, model.output(model.read(steps, embedded, deterministic=False))


def _from_here_on(values: Float[Array, "b t"]) -> Float[Array, "b t"]:
    """The sum of each word's value and those of all later words."""
    return jnp.cumsum(values[:, ::-1], axis=1)[:, ::-1]
