"""Several models as one: at every step the search sees the mean of their distributions.

Models of one architecture are computed together by `jax.vmap`, with their variables stacked: a model of an
`Ensemble` stands for all that are alike.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.decoding.calls import Inputs, advance, init_cache, whole
from transformer.decoding.scores import TokenScores, score_tokens
from transformer.model.cache import AnyCache, EnsembleCache, StackedCache
from transformer.model.encoder_decoder import decoder_input
from transformer.model.noise import NOISE
from transformer.model.parameters import Variables

K = TypeVar("K", bound=Hashable)


class Ensemble(nn.Module):
    """Models with the same vocabulary, as the model of a search. Its variables are those of the members, as
    `together` puts them; it has none of its own, and is never bound."""

    kinds: tuple[nn.Module, ...]
    """Models that generate one token after another, each for all members that are like it."""
    weights: tuple[tuple[float, ...], ...]
    """Of the distributions of the members of each kind; together they add up to 1."""
    mean: str = "probabilities"
    """Of probabilities, or of their logarithms (a geometric mean, normalised)."""

    @property
    def config(self) -> ModelConfig:
        """Of the first member, whose special ids all share."""
        return self.kinds[0].config  # type: ignore[attr-defined, no-any-return]

    def apply(  # type: ignore[override]
        self, variables: Variables, *arguments: Any, method: str | Callable[..., Any]
    ) -> Any:
        """Calls a method, as `flax.linen.Module.apply` does."""
        noise = {name: variables[name] for name in variables if name == NOISE}
        bound = _Bound(self, variables["members"], noise)
        return method(bound, *arguments) if callable(method) else getattr(bound, method)(*arguments)

    def combined(self, logits: Sequence[Float[Array, "_ ... v"]]) -> Float[Array, "... v"]:
        """The logarithm of the mean of the members' distributions, up to a constant.

        Args:
          logits: of the members of each kind.
        """
        log_p = jnp.concatenate([jax.nn.log_softmax(kind_logits) for kind_logits in logits])
        weights = jnp.array(sum(self.weights, ())).reshape(-1, *(1,) * (log_p.ndim - 1))
        if self.mean == "logarithms":
            return (weights * log_p).sum(axis=0)
        return jax.nn.logsumexp(log_p, axis=0, b=weights)


def alike(members: Sequence[K]) -> dict[K, list[int]]:
    """The indices of equal members."""
    indices: dict[K, list[int]] = {}
    for index, member in enumerate(members):
        indices.setdefault(member, []).append(index)
    return indices


def together(variables: Sequence[Sequence[Variables]]) -> Variables:
    """The variables of an ensemble, from those of the members of each kind."""

    def stacked(*leaves: Any) -> Array:
        return jnp.stack(leaves)

    return {"params": {}, "members": tuple(jax.tree.map(stacked, *several) for several in variables)}


def by_members(
    model: Ensemble, variables: Variables, one: Callable[[int, nn.Module, Variables], Array]
) -> list[Float[Array, "m ..."]]:
    """What a function computes with every member: an array for each kind.

    Args:
      model: the ensemble.
      variables: its variables.
      one: (index of the kind, model, variables) -> result.
    """
    pairs = zip(model.kinds, variables["members"], strict=True)
    return [jax.vmap(functools.partial(one, index, kind))(held) for index, (kind, held) in enumerate(pairs)]


@dataclass(frozen=True)
class _Bound:
    """An ensemble and its variables."""

    model: Ensemble
    variables: tuple[Variables, ...]
    noise: Variables
    """The same for all members."""

    def encode(self, **inputs: Array) -> Inputs:
        """The inputs, which each member encodes when it makes its cache."""
        return inputs

    def init_cache(self, inputs: Inputs, beams: int, length: int) -> EnsembleCache:
        """The cache of each."""

        def one(kind: nn.Module, held: Variables) -> AnyCache:
            return init_cache(kind, held, inputs, beams, length)

        caches = []
        for kind, held in zip(self.model.kinds, self.variables, strict=True):
            make_cache = functools.partial(one, kind)
            axes = StackedCache.axes(jax.eval_shape(make_cache, jax.tree.map(lambda x: x[0], held)))
            caches.append(StackedCache(jax.vmap(make_cache, out_axes=axes)(held)))
        return EnsembleCache(tuple(caches))

    def decode_step(
        self, cache: EnsembleCache, tokens: Int[Array, "b n"]
    ) -> tuple[Float[Array, "b n v"], EnsembleCache]:
        """The mean of what each predicts."""

        def one(kind: nn.Module, held: Variables, cache: AnyCache) -> tuple[Array, AnyCache]:
            return advance(kind, {**held, **self.noise}, cache, tokens)

        logits = []
        caches = []
        for kind, held, stacked in zip(self.model.kinds, self.variables, cache.members, strict=True):
            axes = StackedCache.axes(stacked.cache)
            advance_members = jax.vmap(functools.partial(one, kind), in_axes=(0, axes), out_axes=(0, axes))
            predicted, after = advance_members(held, stacked.cache)
            logits.append(predicted)
            caches.append(StackedCache(after))
        return self.model.combined(logits), EnsembleCache(tuple(caches))


def ensemble_scores(
    model: Ensemble, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token under the mean."""
    shifted = decoder_input(target, model.config.special)

    def one(_: int, kind: nn.Module, held: Variables) -> Array:
        return jnp.asarray(whole(kind, held, inputs, shifted))

    logits = by_members(model, variables, one)
    return score_tokens(model.combined(logits), target, model.config.special.pad)
