"""Training on a reward of the model's own outputs, from 0 to 1: minimum risk (Shen et al. 2016) and REINFORCE
(Ranzato et al. 2016)."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from transformer.config.methods import RewardConfig
from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.decoding.beam import BeamSearch
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import never_predicted
from transformer.decoding.sampling import Greedy, Randomness, Sampled
from transformer.decoding.scores import Limits, wu_penalty
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.steps import Strategy, search_all
from transformer.model.encoder_decoder import EncoderDecoder, decoder_input
from transformer.model.parameters import Variables, logits
from transformer.tasks.metrics.scores import bleu_metric
from transformer.training.cross_entropy import in_slices
from transformer.training.objective import Batch, Context, Loss, Objective, TranslationObjective

# Rewards: how good candidates are, from 0 to 1, compared with the references of a batch.


Reward = Callable[[Int[Array, "b n t"], Int[Array, "b r"]], Float[Array, "b n"]]
"""(candidates, references) -> the reward of each candidate. Both end with <eos>, then <pad>; a candidate of
<pad> alone has the reward 0."""
Spell = Callable[[Sequence[int]], str]
"""The text of ids."""
ORDER = 4


def reward_of(name: str, special: SpecialIds, spell: Spell, tokenize: str = "13a") -> Reward:
    """The reward that `RewardConfig.reward` names.

    Args:
      name: of the reward.
      special: ids of the vocabulary.
      spell: for rewards of text.
      tokenize: sacreBLEU's tokenizer, for BLEU of text.
    """
    if name.startswith("text-"):
        return _by_text(name.removeprefix("text-"), special, spell, tokenize)
    measure = {"gleu": gleu, "bleu": bleu}[name]

    def reward(candidates: Array, references: Array) -> Array:
        return measure(*(jnp.where(x == special.eos, special.pad, x) for x in (candidates, references)))

    return reward


def gleu(candidates: Int[Array, "b n t"], references: Int[Array, "b r"]) -> Float[Array, "b n"]:
    """Of the n-grams of 1 to 4 tokens, the share that both have in common: the smaller of precision and
    recall (Wu et al. 2016, section 4.3). The tokens are positive ids, then 0."""
    matches, in_candidate, in_reference = ngram_matches(candidates, references)
    return matches.sum(0) / jnp.maximum(jnp.maximum(in_candidate.sum(0), in_reference.sum(0)), 1)


def bleu(candidates: Int[Array, "b n t"], references: Int[Array, "b r"]) -> Float[Array, "b n"]:
    """Sentence BLEU of tokens, as sacreBLEU's `sentence_bleu`: orders that a candidate is too short for do
    not count, and without matches the first precision is 1/2 of one n-gram, the next 1/4, ... (Chen and
    Cherry 2014, smoothing 3). Arguments as of `gleu`."""
    matches, in_candidate, in_reference = ngram_matches(candidates, references)
    missing = jnp.cumsum((matches == 0) & (in_candidate > 0), axis=0)
    precisions = jnp.where(matches > 0, matches, 0.5**missing) / jnp.maximum(in_candidate, 1)
    logs = jnp.where(in_candidate > 0, jnp.log(precisions), 0).sum(0) / jnp.maximum(
        (in_candidate > 0).sum(0), 1
    )
    brevity = jnp.minimum(0, 1 - in_reference[0] / jnp.maximum(in_candidate[0], 1))
    return jnp.where(matches.sum(0) > 0, jnp.exp(logs + brevity), 0)


def ngram_matches(
    candidates: Int[Array, "b n t"], references: Int[Array, "b r"]
) -> tuple[Int[Array, "orders b n"], Int[Array, "orders b n"], Int[Array, "orders b 1"]]:
    """For n-grams of 1 to 4 tokens: how many a candidate has in common with its reference, each as often as
    in both; how many it has; how many the reference has."""
    references = references[:, None]
    lengths, reference_lengths = (candidates > 0).sum(axis=-1), (references > 0).sum(axis=-1)
    orders = range(1, ORDER + 1)
    matches = []
    for order, equal, repeated in zip(
        orders, _equal(candidates, references), _equal(candidates, candidates), strict=True
    ):
        earlier = (repeated & jnp.tri(candidates.shape[-1], k=-1, dtype=bool)).sum(axis=-1)
        begins = jnp.arange(candidates.shape[-1]) < (lengths - order + 1)[..., None]
        matches.append((begins & (earlier < equal.sum(axis=-1))).sum(axis=-1))
    has, reference_has = (
        jnp.stack([jnp.maximum(x - order + 1, 0) for order in orders]) for x in (lengths, reference_lengths)
    )
    return jnp.stack(matches), has, reference_has


def _equal(first: Int[Array, "... t"], second: Int[Array, "... r"]) -> list[Bool[Array, "... t r"]]:
    """Whether the n-grams that begin at two positions are equal, for each order."""
    equal = [(first[..., :, None] == second[..., None, :]) & (first > 0)[..., :, None]]
    for order in range(1, ORDER):
        later = equal[0][..., order:, order:]
        later = jnp.pad(later, [(0, 0)] * (later.ndim - 2) + [(0, order), (0, order)])
        equal.append(equal[-1] & later)
    return equal


def _by_text(name: str, special: SpecialIds, spell: Spell, tokenize: str) -> Reward:
    """sacreBLEU's score of the text of a sentence, over 100. The host computes it while the update waits."""

    def texts(ids: np.ndarray) -> list[str]:
        rows = ids.reshape(-1, ids.shape[-1]).tolist()
        return [spell([i for i in row if i not in (special.eos, special.pad)]) for row in rows]

    def scores(candidates: ArrayLike, references: ArrayLike) -> np.ndarray:
        from sacrebleu.metrics.chrf import CHRF

        metric = bleu_metric(tokenize, effective_order=True) if name == "bleu" else CHRF()
        candidates = np.asarray(candidates)
        references = np.asarray(references)
        reference_texts = np.repeat(texts(references), candidates.shape[1])
        values = [
            metric.sentence_score(text, [str(reference)]).score
            for text, reference in zip(texts(candidates), reference_texts, strict=True)
        ]
        return np.asarray(values, np.float32).reshape(candidates.shape[:2]) / 100

    def reward(candidates: Array, references: Array) -> Array:
        shape = jax.ShapeDtypeStruct(candidates.shape[:2], jnp.float32)
        rewards: Array = jax.pure_callback(scores, shape, candidates, references)
        return rewards

    return reward


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
    return search_all(model, variables, inputs, limits, choice, penalty, row_inputs=read).tokens


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
