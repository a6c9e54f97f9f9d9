"""Likelihood under the mixture of generating and copying, and the coverage loss."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import Config
from transformer.copying.config import CopyingConfig
from transformer.copying.model import TINY, CopyingTransformer, Mixture
from transformer.errors import UserError
from transformer.model.encoder_decoder import shift_right
from transformer.training.objective import Batch, Metrics, Objective


def copying_objective(config: Config) -> Objective:
    """-log P(target | source) of the mixture, and coverage where it has a weight.

    Its metrics are `nll`, `correct`, how many words had more than half of the probability, `copied`, how
    much of each was copied (1 - p_gen), and `coverage` where it counts: sums over the words.

    Raises:
      UserError: the tokenizer loses unknown words; label smoothing is asked for.
    """
    if config.data.tokenizer != "open-word":
        raise UserError(
            f"--data.tokenizer {config.data.tokenizer}: to be copied, words outside the vocabulary must keep "
            "their identity: use open-word"
        )
    if config.training.label_smoothing:
        raise UserError(
            "--training.label-smoothing must be 0: what a copied word would be smoothed with is undefined"
        )
    if not config.data.joint_vocabulary:
        raise UserError("--data.no-joint-vocabulary: words are copied within one vocabulary")
    assert isinstance(config.model, CopyingConfig)
    coverage_weight = config.model.coverage_weight

    def objective(
        model: CopyingTransformer, variables: Any, batch: Batch, rng: Array | None, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Metrics, Any]:
        source, target = batch["source"], batch["target"]
        log_p, likely, mixture = forced(model, variables, source, target, rng)
        words = (target != model.config.special.pad).astype(jnp.float32)
        loss = -(log_p * words).sum()
        metrics = {
            "nll": loss,
            "correct": (likely * words).sum(),
            "copied": (jnp.exp(mixture.log_copy) * words).sum(),
        }
        if coverage_weight:
            seen = jnp.cumsum(mixture.pointer, axis=1) - mixture.pointer
            metrics["coverage"] = (jnp.minimum(mixture.pointer, seen).sum(axis=-1) * words).sum()
            loss += coverage_weight * metrics["coverage"]
        return loss, words.sum(), jax.tree.map(jax.lax.stop_gradient, metrics), variables

    return objective  # type: ignore[return-value]


def forced(
    model: CopyingTransformer,
    variables: Any,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
    rng: Array | None = None,
) -> tuple[Float[Array, "b t"], Float[Array, "b t"], Mixture]:
    """With teacher forcing: log P of every target token, whether that is more than one half (1 or
    0), and the mixture.

    P(w) = p_gen P_vocab(w) + (1 - p_gen) sum of the pointer over the places that hold w (See et
    al. 2017, Eq. 9). A word outside the vocabulary that the source lacks is generated as <unk>.
    """
    special = model.config.special
    given = shift_right(target, special.bos)

    def run(model: CopyingTransformer) -> tuple[Array, Mixture]:
        memory = model.encode(source, deterministic=rng is None)
        hidden = model.decode(memory, given, deterministic=rng is None)
        return model.output(hidden), model.mixture(hidden, memory)

    rngs = None if rng is None else {"dropout": rng}
    found: Any = model.apply(variables, rngs=rngs, method=run)
    logits, mixture = found
    log_vocabulary = jax.nn.log_softmax(logits)
    outside = target >= logits.shape[-1]
    held = target[:, :, None] == source[:, None, :]
    spoken = jnp.where(outside, special.unk, target)
    generated = jnp.take_along_axis(log_vocabulary, spoken[..., None], axis=-1)[..., 0] + mixture.log_generate
    generated = jnp.where(outside & held.any(axis=-1), -jnp.inf, generated)
    pointed = jnp.where(held, mixture.pointer, 0).sum(axis=-1)
    log_p = jnp.logaddexp(generated, jnp.log(pointed + TINY) + mixture.log_copy)
    return log_p, (log_p > math.log(0.5)).astype(jnp.float32), mixture
