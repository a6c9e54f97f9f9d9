"""Training on a reward of the model's own outputs: minimum risk (Shen et al. 2016) and REINFORCE (Ranzato et
al. 2016)."""

import functools
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config import Config
from transformer.config.methods import RewardConfig
from transformer.decoding.beam import BeamSearch
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import never_predicted
from transformer.decoding.limits import Limits
from transformer.decoding.sampling import Greedy, Randomness, Sampled
from transformer.decoding.scores import wu_penalty
from transformer.decoding.search import AutoregressiveSearch
from transformer.decoding.steps import Strategy, search_all
from transformer.model.encoder_decoder import EncoderDecoder, decoder_input
from transformer.model.parameters import Variables
from transformer.model.products import logits
from transformer.training.methods.rewards import Spell, reward_of
from transformer.training.objective import Batch, Context, Loss, Objective, TranslationObjective
from transformer.training.slices import in_slices


def reward_objective(config: Config, plain: TranslationObjective, spell: Spell, search: Any) -> Objective:
    """Cross-entropy and, with the weight `share`, the risk or the REINFORCE loss of candidates. They are
    searched within the step, with the cache, and then scored by one pass with teacher forcing. Both are
    without dropout, so that the scores are those by which samples were drawn.

    A sentence weighs as in cross-entropy. Its risk is a cost of the whole sentence, and is multiplied by the
    number of its target tokens; its REINFORCE loss is a sum over the tokens of a candidate already. In
    evaluation it is `plain`. The metrics are those of `plain`, and `reward`, the mean over candidates; with
    the greedy baseline also `greedy reward`.

    Args:
      config: of the run.
      plain: cross-entropy.
      spell: the text of output ids, for rewards of text.
      search: of the system, which limits the candidates.
    """
    assert isinstance(search, AutoregressiveSearch)
    options = config.reward
    settings = replace(config.decoding, extra_length=options.extra_length, max_length=None)
    reward = reward_of(options.reward, config.model.special, spell, config.training.bleu_tokenize or "13a")

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        loss = plain(model, variables, batch, context)
        if context.deterministic:
            return loss
        assert isinstance(model, EncoderDecoder)
        inputs = plain.inputs_of(batch)
        target = batch["target"]
        rngs = context.rngs("candidates")
        assert rngs
        limits = search.limits(inputs, model.config.special, settings)
        candidates_of = functools.partial(_searched, model, jax.lax.stop_gradient(variables), inputs, limits)
        candidates = candidates_of(choice_of(options), rngs["candidates"])
        rewards = reward(candidates, target)
        log_p = log_probabilities(model, variables, inputs, candidates, limits)
        num_tokens = (target != model.config.special.pad).sum(axis=-1).astype(jnp.float32)
        rows = (num_tokens > 0).astype(jnp.float32)
        metrics = {**loss.metrics, "reward": ((rewards.mean(axis=-1) * rows).sum(), rows.sum())}
        if options.loss == "risk":
            different = _different(candidates)
            losses = risk(log_p, rewards, different, options.sharpness) * num_tokens
        else:
            baseline: Array = jnp.zeros(())
            if options.baseline == "greedy":
                baseline = reward(candidates_of(Greedy(), rngs["candidates"]), target)
                metrics["greedy reward"] = ((baseline[:, 0] * rows).sum(), rows.sum())
            elif options.baseline == "mean":
                baseline = mean_of_others(rewards)
            losses = reinforce(log_p, rewards - baseline)
        share = jnp.float32(options.share)
        if options.anneal:
            share *= jnp.minimum(jnp.asarray(context.step, jnp.float32) / options.anneal, 1)
        total = (1 - share) * loss.total + share * (losses * rows).sum()
        return replace(loss, total=total, metrics=metrics)

    return objective


def choice_of(options: RewardConfig) -> Strategy:
    """How candidates are searched."""
    if options.candidates == "beam":
        return BeamSearch(options.samples)
    return Sampled(options.samples)


def _searched(
    model: EncoderDecoder,
    variables: Variables,
    inputs: Inputs,
    limits: Limits,
    choice: Strategy,
    key: Array,
) -> Int[Array, "b n t"]:
    """Candidates for each row."""
    read = Randomness.of(key, jnp.arange(len(limits.each)), 1.0) if isinstance(choice, Sampled) else ()
    penalty = wu_penalty(0.6 if isinstance(choice, BeamSearch) else 0.0)
    return search_all(model, variables, inputs, limits, choice, penalty, read=read).tokens


def log_probabilities(
    model: EncoderDecoder,
    variables: Variables,
    inputs: Inputs,
    candidates: Int[Array, "b n t"],
    limits: Limits,
) -> Float[Array, "b n"]:
    """log P of each candidate as a sample: <pad> and <bos> have none, and the end of a candidate of maximum
    length is certain. This pass does not count in running statistics: it is not by `apply_training`."""
    special = model.config.search_ids
    rows, count, time = candidates.shape
    targets = candidates.reshape(rows * count, time)

    def run(model: EncoderDecoder) -> tuple[Array, Array]:
        memory = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), model.encode(**inputs))  # type: ignore[arg-type]
        return model.output_factors(model.decode(memory, decoder_input(targets, special)))

    factors: Any = model.apply(variables, method=run)
    hidden, table = factors
    never = never_predicted(special, table.shape[0])

    def chosen(hidden: Array, targets: Array) -> Array:
        log_p = jax.nn.log_softmax(jnp.where(never, -jnp.inf, logits(hidden, table)))
        is_token = targets != special.pad
        return jnp.take_along_axis(log_p, jnp.where(is_token, targets, special.eos)[..., None], -1)[..., 0]

    log_p = in_slices(chosen, table.shape[0], hidden, targets).reshape(candidates.shape)
    was_free = jnp.arange(time) < limits.each[:, None, None] - 1
    return jnp.where((candidates != special.pad) & was_free, log_p, 0).sum(axis=-1)


def risk(
    log_p: Float[Array, "b n"],
    rewards: Float[Array, "b n"],
    different: Bool[Array, "b n"],
    sharpness: float,
) -> Float[Array, " b"]:
    """The expected cost, 1 - reward, of different candidates by their probabilities P^alpha, renormalised
    (Shen et al. 2016, Eq. 5-7).

    Args:
      log_p: log P of the candidates.
      rewards: of the candidates.
      different: which to count.
      sharpness: alpha.
    """
    share = jax.nn.softmax(jnp.where(different, sharpness * log_p, -jnp.inf), axis=-1)
    return (share * (1 - rewards)).sum(axis=-1)


def reinforce(log_p: Float[Array, "b n"], advantages: Float[Array, "b n"]) -> Float[Array, " b"]:
    """A loss whose gradient is an unbiased estimate of that of the negative expected reward (Williams 1992):
    the mean of -(r - b) log P over samples."""
    return -(jax.lax.stop_gradient(advantages) * log_p).mean(axis=-1)


def mean_of_others(rewards: Float[Array, "b n"]) -> Float[Array, "b n"]:
    """For each sample the mean reward of the others, which does not depend on it."""
    return (rewards.sum(axis=-1, keepdims=True) - rewards) / (rewards.shape[-1] - 1)


def _different(candidates: Int[Array, "b n t"]) -> Bool[Array, "b n"]:
    """Which candidates equal none before them. Empty ones are not counted, except the first."""
    same = (candidates[:, :, None] == candidates[:, None, :]).all(axis=-1)
    return ~(same & jnp.tri(candidates.shape[1], k=-1, dtype=bool)).any(axis=-1)
