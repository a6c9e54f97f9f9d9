"""Speech recognition, with the objective of training with CTC (Watanabe et al. 2017), or of CTC alone."""

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.decoding import DecodingConfig
from transformer.config.model import ModelConfig, SpecialIds
from transformer.config.options import Config
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.hooks import Hooks
from transformer.decoding.searches.ctc import CtcScores, CtcSearch
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.parameters import Variables
from transformer.model.transformer import cross_attention
from transformer.model.variants.ctc import labels_of, log_likelihoods, positions_needed
from transformer.systems.speech.model import SpeechTransformer, limits_of_frames
from transformer.systems.speech.options import ctc_weight_of
from transformer.systems.speech.task import SpeechToText
from transformer.systems.system import System
from transformer.training.objective import (
    Batch,
    Context,
    Loss,
    Metrics,
    Objective,
    TranslationObjective,
    apply_training,
    translation_objective,
)

# The objective of recognition with CTC: joint training with attention (Watanabe et al. 2017), or alone.


def speech_objective(config: Config, _: Any = None) -> Objective:
    """Cross-entropy of the texts; with `--model.ctc-weight` also CTC, or CTC alone."""
    attention = translation_objective(config.training.label_smoothing)
    weight: float = config.model.ctc_weight
    return JointObjective(weight, attention) if weight else attention


@dataclass(frozen=True)
class JointObjective:
    """(1 - w) times the loss of attention and w times that of CTC, both sums over a batch.

    The weight of the batch is its number of target tokens, <eos> included. A recording that is too short for
    any path that spells its text has an infinite loss of CTC: it has no part in that sum. With CTC alone its
    tokens do not count in the weight either.

    The metrics are those of attention; `ctc`, the negative log-likelihood of CTC in nats for each token that
    counts in it; and `too_short`, whether a recording is. With CTC alone `ctc` is `nll` too.
    """

    ctc_weight: float
    attention: TranslationObjective

    def __call__(self, model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, SpeechTransformer)
        is_alone = self.ctc_weight == 1
        target_input, _ = self.attention.decoder_input(model, batch)
        (factors, log_probs, mask), sown = apply_training(
            model,
            variables,
            context,
            batch["source"],
            None if is_alone else target_input,
            deterministic=context.deterministic,
            rngs=context.rngs("dropout"),
            method=_outputs,
        )
        nll, counts, is_short = ctc_sums(log_probs, mask, batch["target"], model.config.special)
        is_token = batch["target"] != model.config.special.pad
        rows = is_token.any(axis=1).sum().astype(jnp.float32)
        metrics: Metrics = {"ctc": (nll, counts), "too_short": (is_short.sum().astype(jnp.float32), rows)}
        if is_alone:
            return Loss(nll, counts, {"nll": (nll, counts), **metrics}, **sown)
        loss = self.attention.of_factors(model, batch, factors, sown)
        total = (1 - self.ctc_weight) * loss.total + self.ctc_weight * nll
        return replace(loss, total=total, metrics={**loss.metrics, **metrics})


def ctc_sums(
    log_probs: Float[Array, "b s v"], mask: Bool[Array, "b s"], target: Array, special: SpecialIds
) -> tuple[Float[Array, ""], Float[Array, ""], Bool[Array, " b"]]:
    """The negative log-likelihood of CTC of the targets that have a path, the number of their tokens with
    <eos>, and which targets have none."""
    labels = labels_of(target, special)
    is_short = positions_needed(labels, special.pad) > mask.sum(axis=1)
    is_row = (target != special.pad).any(axis=1)
    is_counted = is_row & ~is_short
    nll = -log_likelihoods(log_probs, mask, labels, special.pad)
    counts = jnp.where(is_counted, (target != special.pad).sum(axis=1), 0).sum().astype(jnp.float32)
    return jnp.where(is_counted, nll, 0).sum(), counts, is_short & is_row


def _outputs(
    model: SpeechTransformer, source: Array, target: Array | None, *, deterministic: bool
) -> tuple[tuple[Array, Array] | None, Float[Array, "b s v"], Bool[Array, "b s"]]:
    """The two factors of the logits of attention (None: CTC alone), log P of CTC, and the encoder's mask."""
    memory = model.encode(source, deterministic=deterministic)
    log_probs = model.ctc_log_probs(memory)
    if target is None:
        return None, log_probs, memory.mask
    hidden = model.decode(memory, target, deterministic=deterministic)
    return model.output_factors(hidden), log_probs, memory.mask


def search_by_options(search: AutoregressiveSearch, model: ModelConfig, options: DecodingConfig) -> Any:
    """Attention, CTC, or both, as the options ask for it."""
    weight = ctc_weight_of(model, options)
    if weight == 1:
        return CtcSearch(search.limits)
    return replace(search, hooks=Hooks((CtcScores(weight, model.special),))) if weight else search


def by_model(system: System, model: ModelConfig) -> System:
    """What can be done with CTC alone, which has no decoder; with other models all."""
    if model.ctc_weight != 1:
        return system
    return replace(system, search=CtcSearch(limits_of_frames), attentions=None, alignment=None, scores=None)


SYSTEM = System(
    model=SpeechTransformer,
    objective=speech_objective,
    search=AutoregressiveSearch(limits=limits_of_frames, by_options=search_by_options),
    attentions=cross_attention,
    alignment=forced_alignment(cross_attention),
    scores=forced_scores,
    task=SpeechToText,
    by_model=by_model,
)
