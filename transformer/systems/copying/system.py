"""Models that copy words of the source: likelihood of generating and copying, the coverage loss, search,
scores and alignments."""

import functools
import math
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config.options import Config, text_data
from transformer.decoding.calls import Inputs
from transformer.decoding.forced import TokenScores, score_tokens
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.encoder_decoder import decoder_input
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.systems.copying.model import TINY, CopyingTransformer, Mixture, counted, pointer
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.system import System
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

# Likelihood of generating and copying, and the coverage loss.


def copying_objective(config: Config) -> Objective:
    """-log P(target | source) of the mixture, and coverage if it has a weight.

    The metrics are means over the tokens: `nll`; `correct`, whether a token has more than half of the
    probability; `copied`, its share of copying (1 - p_gen); and `coverage`, if it has a weight.

    Raises:
      UserError: the tokenizer is not open-word, label smoothing is used, or vocabularies are separate.
    """
    data = text_data(config)
    if data.tokenizer != "open-word":
        raise UserError(
            f"--data.tokenizer {data.tokenizer}: out-of-vocabulary words need their own ids to be "
            "copied: use open-word"
        )
    if config.training.label_smoothing:
        raise UserError("--training.label-smoothing must be 0: label smoothing is undefined for copied words")
    if not data.joint_vocabulary:
        raise UserError("--data.no-joint-vocabulary: copying needs a joint vocabulary")
    assert isinstance(config.model, CopyingConfig)
    coverage_weight = config.model.coverage_weight

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, CopyingTransformer)
        source, target = batch["source"], batch["target"]
        (log_p, likely, mixture), sown = forced(model, variables, source, target, context)
        is_token = (target != model.config.special.pad).astype(jnp.float32)
        loss = -(log_p * is_token).sum()
        weight = is_token.sum()
        sums = {
            "nll": loss,
            "correct": (likely * is_token).sum(),
            "copied": (jnp.exp(mixture.log_copy) * is_token).sum(),
        }
        if coverage_weight:
            seen = jnp.cumsum(mixture.pointer, axis=1) - mixture.pointer
            sums["coverage"] = (jnp.minimum(mixture.pointer, seen).sum(axis=-1) * is_token).sum()
            loss += coverage_weight * sums["coverage"]
        metrics = {name: (jax.lax.stop_gradient(total), weight) for name, total in sums.items()}
        return Loss(loss, weight, metrics, **sown)

    return objective


Forced = tuple[Float[Array, "b t"], Float[Array, "b t"], Mixture]
EVALUATION = Context()


def forced(
    model: CopyingTransformer,
    variables: Variables,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
    context: Context = EVALUATION,
) -> tuple[Forced, dict[str, Variables]]:
    """With teacher forcing: log P of every target token, whether P is more than one half (1 or 0), and the
    mixture; and what the model has sown.

    P(w) = p_gen P_vocab(w) + (1 - p_gen) sum of the pointer over the positions of w (See et al. 2017, Eq. 9).
    An out-of-vocabulary word that is not in the source is generated as <unk>. A pointer network gives a word
    that is not in the source the probability 1e-30.
    """
    special = model.config.special
    target_input = decoder_input(target, special)

    def run(model: CopyingTransformer) -> Mixture:
        memory = model.encode(source, deterministic=context.deterministic)
        hidden = model.decode(memory, target_input, deterministic=context.deterministic)
        return model.mixture(hidden, memory, counted(target_input, source))

    mixture, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
    log_vocabulary = jax.nn.log_softmax(mixture.logits)
    outside = target >= model.config.output_size
    held = target[:, :, None] == source[:, None, :]
    spoken = jnp.where(outside, special.unk, target)
    generated = jnp.take_along_axis(log_vocabulary, spoken[..., None], axis=-1)[..., 0] + mixture.log_generate
    generated = jnp.where(outside & held.any(axis=-1), -jnp.inf, generated)
    pointed = jnp.where(held, mixture.pointer, 0).sum(axis=-1)
    log_p = jnp.logaddexp(generated, jnp.log(pointed + TINY) + mixture.log_copy)
    return (log_p, (log_p > math.log(0.5)).astype(jnp.float32), mixture), sown


# Search, scores and alignments of models that copy.


@functools.partial(jax.jit, static_argnums=2)
def named(tokens: Int[Array, "b n t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b n t"]:
    """Replaces ids at or above the vocabulary size, which are source positions, by the ids there."""
    position = jnp.clip(tokens - vocab_size, 0, source.shape[1] - 1)
    copied = jnp.take_along_axis(source[:, None, :], position, axis=2)
    return jnp.where(tokens >= vocab_size, copied, tokens)


def _copied_words(model: CopyingTransformer, result: SearchResult, inputs: Inputs) -> SearchResult:
    """The source's ids for copied words."""
    return replace(result, tokens=named(result.tokens, inputs["source"], model.config.output_size))


copying_search = AutoregressiveSearch(named=_copied_words)


def copying_scores(
    model: CopyingTransformer, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token, including <eos>. The entropy is that of the choice between generating and
    copying, and of the word or the source position chosen."""
    (log_p, _, mixture), _ = forced(model, variables, inputs["source"], target)
    is_token = target != model.config.special.pad
    generate = jnp.exp(mixture.log_generate)
    copy = jnp.exp(mixture.log_copy)
    pointed_entropy = -(mixture.pointer * jnp.log(jnp.maximum(mixture.pointer, TINY))).sum(axis=-1)
    generated_entropy = score_tokens(mixture.logits, jnp.zeros_like(target), -1).entropy
    entropy = copy * (pointed_entropy - mixture.log_copy)
    of_generating = generate * (generated_entropy - mixture.log_generate)
    entropy += jnp.where(generate > 0, of_generating, 0)  # 0 log 0 = 0
    return TokenScores(jnp.where(is_token, log_p, 0), jnp.where(is_token, entropy, 0))


def pointers(
    model: CopyingTransformer, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """The pointer distribution over the source for each token of a translation."""
    (_, _, mixture), _ = forced(model, variables, inputs["source"], target)
    return mixture.pointer


SYSTEM = System(
    model=CopyingTransformer,
    objective=lambda config, _: copying_objective(config),
    search=copying_search,
    attentions=pointer,
    alignment=pointers,
    scores=copying_scores,
    copies=True,
)
