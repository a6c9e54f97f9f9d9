"""The loss of hidden tokens."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from transformer.config import Config
from transformer.model.parameters import Variables
from transformer.systems.masked_language_model.model import MaskedLanguageModel
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

MASKED, REPLACED = 0.8, 0.1
"""Of the tokens to predict: the share that is masked, and that is replaced by a random token (Devlin et al.
2019, section 3.1). The others are unchanged."""
FACTOR = 0x9E3779B1
"""An odd number, whose powers tell the positions of a sentence apart."""


class Hidden(NamedTuple):
    """Sentences of which some tokens are hidden."""

    source: Int[Array, "b s"]
    """What the encoder reads."""
    predicted: Bool[Array, "b s"]
    """True at the tokens to predict."""


def masked_lm_objective(config: Config) -> Objective:
    """Label-smoothed cross-entropy of the hidden tokens.

    What is hidden depends on the seed, the number of updates, the sentence and the position alone: not on
    the batch, the number of devices or of slices. In evaluation it depends on the sentence and the position.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, both of each hidden
    token.
    """
    smoothing, seed = config.training.label_smoothing, config.training.seed

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, MaskedLanguageModel)
        key = jax.random.key(0)
        if not context.deterministic:
            key = jax.random.fold_in(jax.random.key(seed), context.step)
        target = batch["source"]
        hidden = hide(key, target, model.config)

        def run(model: MaskedLanguageModel) -> tuple[Array, Array]:
            return model.output_factors(model.hidden(hidden.source, deterministic=context.deterministic))

        outputs, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
        states, table = outputs
        weights = hidden.predicted.astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(states, table, target, weights, smoothing)
        weight = weights.sum()
        return Loss(loss, weight, {"nll": (nll, weight), "correct": (correct, weight)}, **sown)

    return objective


def hide(key: Array, ids: Int[Array, "b s"], config: MaskedLanguageModelConfig) -> Hidden:
    """Hides tokens of sentences. Special tokens are not predicted.

    Args:
      key: of the seed and the update. Each draw also depends on the sentence and the position.
      ids: the sentences.
      config: which share, and the id of the mask.
    """
    special = jnp.asarray(
        [config.special.pad, config.special.bos, config.special.eos, config.special.unk, config.mask]
    )
    rows = jax.vmap(jax.random.fold_in, (None, 0))(key, _digests(ids, config.special.pad))
    of_tokens = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    keys = of_tokens(rows, jnp.arange(ids.shape[1], dtype=jnp.uint32))

    def draw(key: Array) -> tuple[Array, Array, Array]:
        first, second = jax.random.uniform(key, (2,))
        return first, second, jax.random.randint(jax.random.fold_in(key, 1), (), 0, config.vocab_size)

    chosen, kind, other = jax.vmap(jax.vmap(draw))(keys)
    predicted = (chosen < config.mask_share) & ~jnp.isin(ids, special)
    replaced = jnp.where(kind < MASKED, config.mask, jnp.where(kind < MASKED + REPLACED, other, ids))
    return Hidden(jnp.where(predicted, replaced, ids), predicted)


def _digests(ids: Int[Array, "b s"], pad: int) -> UInt32[Array, " b"]:
    """A number for each sentence, which does not depend on its padding."""
    powers = jnp.cumprod(jnp.full(ids.shape[1], FACTOR, jnp.uint32))
    tokens = jnp.where(ids == pad, 0, ids + 1).astype(jnp.uint32)
    return (tokens * powers).sum(axis=1, dtype=jnp.uint32)
