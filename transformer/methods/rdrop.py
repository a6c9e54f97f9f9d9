"""R-Drop (Liang et al. 2021): two passes with other dropout masks should predict the same."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.config import Config
from transformer.model.parameters import Variables
from transformer.model.products import logits
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, TranslationObjective
from transformer.training.slices import sums_in_slices


def rdrop_objective(config: Config, plain: TranslationObjective) -> Objective:
    """The mean cross-entropy of two passes, plus alpha / 2 times their divergence, (KL(p || q) + KL(q || p))
    / 2, of each target token: half of Liang et al. 2021, Eq. 4. In evaluation it is `plain`.

    The metrics are those of `plain` in the first pass, and `divergence`.
    """
    alpha = config.rdrop.weight

    def compare(table: Array, states: tuple[Array, Array], targets: Array, words: Array) -> dict[str, Array]:
        """Sums over words."""
        both = [logits(each, table) for each in states]
        p, q = map(jax.nn.log_softmax, both)
        apart = ((jnp.exp(p) - jnp.exp(q)) * (p - q)).sum(axis=-1) / 2
        losses = [cross_entropy(each, targets, plain.smoothing) for each in both]
        found = {
            "loss": sum(losses[1:], losses[0]) / 2 + alpha / 2 * apart,
            "nll": cross_entropy(both[0], targets),
            "correct": (both[0].argmax(axis=-1) == targets).astype(jnp.float32),
            "divergence": apart,
        }
        return {name: (values * words).sum() for name, values in found.items()}

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        if context.deterministic:
            return plain(model, variables, batch, context)
        twice = {name: jnp.concatenate([x, x]) for name, x in batch.items()}
        (hidden, table), sown = plain.factors(model, variables, twice, context)
        targets = batch["target"]
        words = (targets != model.config.special.pad).astype(jnp.float32)  # type: ignore[attr-defined]
        first, second = jnp.split(hidden, 2)
        sums = sums_in_slices(compare, table, (first, second), targets, words)
        total, weight = sums.pop("loss"), words.sum()
        metrics = {name: (jax.lax.stop_gradient(value), weight) for name, value in sums.items()}
        return Loss(total, weight, metrics, **sown)

    return objective
