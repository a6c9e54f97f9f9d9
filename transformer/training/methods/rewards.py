"""Rewards: how good candidates are, from 0 to 1, compared with the references of a batch."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from transformer.config import SpecialIds
from transformer.tasks.metrics.scores import bleu_metric

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
    has, most = (
        jnp.stack([jnp.maximum(x - order + 1, 0) for order in orders]) for x in (lengths, reference_lengths)
    )
    return jnp.stack(matches), has, most


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
