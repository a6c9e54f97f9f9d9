"""Learning where to look by drawing it: REINFORCE for hard attention (Williams 1992; Xu et al. 2015).

The drawn positions have no gradient. Each draw is instead made likelier by as much as the words that follow
it were likelier than usual: log p(choice) times (return - baseline). The return of a draw is the sum of the
log-probabilities of this word and the later ones; the baseline is the number of these words times a moving
average of the log-probability of a word, which the model's variables carry.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.baselines.config import RecurrentConfig
from transformer.baselines.recurrent import Recurrent, Steps
from transformer.config import Config
from transformer.model.encoder_decoder import shift_right
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import Batch, Metrics, Objective, translation_objective


def recurrent_objective(config: Config) -> Objective:
    """The recurrent model's: cross-entropy, and for hard attention the draws' own."""
    assert isinstance(config.model, RecurrentConfig)
    if config.model.attention == "hard":
        return hard_attention_objective(config.training.label_smoothing, config.model)
    return translation_objective(config.training.label_smoothing)


def hard_attention_objective(smoothing: float, config: RecurrentConfig) -> Objective:
    """Label-smoothed cross-entropy along drawn positions, plus REINFORCE for the draws.

    Its metrics are those of `translation_objective` and `entropy` of the draws, in nats, as sums over
    the words. Without an rng nothing is drawn: it is `translation_objective`.
    """
    plain = translation_objective(smoothing)

    def objective(
        model: Recurrent, variables: Any, batch: Batch, rng: Array | None, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Metrics, Any]:
        if rng is None:
            return plain(model, variables, batch, rng, step)
        target, special = batch["target"], model.config.special
        words = (target != special.pad).astype(jnp.float32)
        drawn: Any = model.apply(
            variables,
            batch["source"],
            shift_right(target, special.bos),
            rngs={"dropout": rng},
            method=_steps_and_logits,
        )
        steps, logits = drawn
        nll = cross_entropy(logits, target)
        log_p = jax.lax.stop_gradient(-nll) * words
        usual = variables["baseline"]["reward"]
        chosen = jnp.take_along_axis(steps.weights, steps.choices[..., None], axis=-1)[..., 0]
        entropy = -(steps.weights * jnp.log(steps.weights + 1e-20)).sum(axis=-1)
        advantage = _from_here_on(log_p - usual * words)  # return - baseline
        draws = -config.reward_weight * advantage * jnp.log(chosen + 1e-20)
        loss = cross_entropy(logits, target, smoothing) + draws - config.entropy_weight * entropy
        metrics = {
            "nll": (nll * words).sum(),
            "correct": ((logits.argmax(-1) == target) * words).sum(),
            "entropy": (entropy * words).sum(),
        }
        now = log_p.sum() / jnp.maximum(words.sum(), 1)
        moved = config.baseline_decay * usual + (1 - config.baseline_decay) * now
        metrics = jax.tree.map(jax.lax.stop_gradient, metrics)
        return (loss * words).sum(), words.sum(), metrics, {**variables, "baseline": {"reward": moved}}

    return objective  # type: ignore[return-value]


def _steps_and_logits(model: Recurrent, source: Array, target: Array) -> tuple[Steps, Array]:
    steps, embedded = model.steps(source, target, deterministic=False)
    return steps, model.output(model.read(steps, embedded, deterministic=False))


def _from_here_on(values: Float[Array, "b t"]) -> Float[Array, "b t"]:
    """At each word the sum of its own value and those of the words after it."""
    return jnp.cumsum(values[:, ::-1], axis=1)[:, ::-1]
