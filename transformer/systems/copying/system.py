"""Models that copy words of the source: their search, scores and alignments."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.decoding.calls import Inputs
from transformer.decoding.scores import SearchResult, TokenScores, score_tokens
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.parameters import Variables
from transformer.systems.copying.model import CopyingTransformer, pointer
from transformer.systems.copying.objective import TINY, copying_objective, forced
from transformer.systems.system import System

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
