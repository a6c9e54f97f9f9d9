"""Several models as one: the mean of their distributions at every step, or a model and a language model of
its outputs (shallow fusion, Gulcehre et al. 2015).

Models of one architecture are computed together by `jax.vmap`, with their variables stacked: a model of an
`Ensemble` stands for all that are alike.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config.model import ModelConfig
from transformer.data.sequences import Field
from transformer.decoding.calls import Inputs, advance, init_cache
from transformer.decoding.forced import TokenScores, score_tokens, whole
from transformer.model.cache import AnyCache, put_rows
from transformer.model.encoder_decoder import NOISE, decoder_input
from transformer.model.parameters import Variables


@struct.dataclass
class StackedCache(AnyCache):
    """The caches of decoders of one architecture that generate the same tokens, as one: the decoders are the
    second axis of its arrays, and share its scalars."""

    cache: AnyCache

    @staticmethod
    def axes(cache: Any) -> Any:
        """The axis of the decoders for `jax.vmap`, of every array of a cache of one or of all."""
        return jax.tree.map(lambda x: 1 if x.ndim else None, cache)

    def _map(self, method: Callable[..., Any], *arguments: Any, axes: tuple[Any, ...] = ()) -> "StackedCache":
        cache_axes = StackedCache.axes(self.cache)
        return StackedCache(
            jax.vmap(method, in_axes=(cache_axes, *axes), out_axes=cache_axes)(self.cache, *arguments)
        )

    def select(self, parents: Int[Array, "b n"]) -> "StackedCache":
        return self._map(lambda cache: cache.select(parents))

    def put_rows(self, rows: Int[Array, " r"], new: "StackedCache") -> "StackedCache":
        axes = (StackedCache.axes(new.cache),)
        return self._map(lambda cache, other: cache.put_rows(rows, other), new.cache, axes=axes)


@struct.dataclass
class Caches(AnyCache):
    """The caches of decoders that generate the same tokens, and what else belongs to the rows of a search."""

    members: tuple[AnyCache, ...]
    of_rows: Any = ()
    """Arrays with rows first, which all beams share."""
    added: Float[Array, "b n v"] | None = None
    """What is added to the log-probabilities, as in `AnyCache`; each step recomputes it."""

    def select(self, parents: Int[Array, "b n"]) -> "Caches":
        return replace(self, members=tuple(cache.select(parents) for cache in self.members))

    def put_rows(self, rows: Int[Array, " r"], new: "Caches") -> "Caches":
        pairs = zip(self.members, new.members, strict=True)
        members = tuple(cache.put_rows(rows, other) for cache, other in pairs)
        return replace(self, members=members, of_rows=put_rows(self.of_rows, rows, new.of_rows))


# A model with a language model of its outputs in its search (shallow fusion, Gulcehre et al. 2015).


WEIGHT = "language_model_weight"
FIELDS = {WEIGHT: Field("float32", padded=False)}
"""What a search with a language model reads of each input: its weight."""


class WithLanguageModel(nn.Module):
    """A model that generates one token after another, with a language model of the same vocabulary. Its
    variables are those of both, as `together` puts them; it has none of its own, and is never bound."""

    model: nn.Module
    language_model: nn.Module
    """Its `encode` reads prompts, each of which begins with <bos>."""

    @property
    def config(self) -> ModelConfig:
        """The config of the model, without that of the language model."""
        return self.model.config  # type: ignore[attr-defined, no-any-return]

    def apply(  # type: ignore[override]
        self, variables: Variables, *arguments: Any, method: str | Callable[..., Any]
    ) -> Any:
        """Calls a method, as `flax.linen.Module.apply` does."""
        bound = _Bound(self, variables)
        return method(bound, *arguments) if callable(method) else getattr(bound, method)(*arguments)


def together(variables: Variables, of_language_model: Variables) -> Variables:
    """The variables of a `WithLanguageModel`."""
    return {"params": {}, "model": variables, "language_model": of_language_model}


@dataclass(frozen=True)
class _Bound:
    """A model and a language model, with the variables of both."""

    both: WithLanguageModel
    variables: Variables

    @property
    def _variables(self) -> Variables:
        """The variables of the model, with the noise of the search."""
        noise = {name: self.variables[name] for name in self.variables if name == NOISE}
        return {**self.variables["model"], **noise}

    def encode(self, **inputs: Array) -> Inputs:
        """The inputs, which the model encodes when it makes its cache."""
        return inputs

    def steering(self, inputs: Inputs) -> Inputs:
        """The arrays that the model gives to hooks."""
        if not hasattr(self.both.model, "steering"):
            return {}

        def run(model: Any) -> Inputs:
            arrays: Inputs = model.steering(model.encode(**_of_model(inputs)))
            return arrays

        arrays: Inputs = self.both.model.apply(self._variables, method=run)  # type: ignore[assignment]
        return arrays

    def init_cache(self, inputs: Inputs, beams: int, length: int) -> Caches:
        """The caches of the model and the language model before the first token."""
        language_model, weight = self.both.language_model, inputs[WEIGHT]
        begin = {"source": jnp.full((len(weight), 1), self.both.config.special.bos, jnp.int32)}
        size = language_model.config.vocab_size  # type: ignore[attr-defined]
        caches = (
            init_cache(self.both.model, self._variables, _of_model(inputs), beams, length),
            init_cache(language_model, self.variables["language_model"], begin, beams, length),
        )
        return Caches(caches, weight, jnp.zeros((len(weight), beams, size)))

    def decode_step(self, cache: Caches, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Caches]:
        """The logits of the model, and caches with what is added to its log-probabilities."""
        of_model, of_language = cache.members
        logits, of_model = advance(self.both.model, self._variables, of_model, tokens)
        language_model, variables = self.both.language_model, self.variables["language_model"]
        predicted, of_language = advance(language_model, variables, of_language, tokens)
        added = cache.of_rows[:, None, None] * jax.nn.log_softmax(predicted)
        return logits, replace(cache, members=(of_model, of_language), added=added)


def _of_model(inputs: Inputs) -> Inputs:
    return {name: x for name, x in inputs.items() if name != WEIGHT}


K = TypeVar("K", bound=Hashable)


class Ensemble(nn.Module):
    """Models with the same vocabulary, as the model of a search. Its variables are those of the members, as
    `together` puts them; it has none of its own, and is never bound."""

    kinds: tuple[nn.Module, ...]
    """Models that generate one token after another, each for all members that are like it."""
    weights: tuple[tuple[float, ...], ...]
    """The weight of each member's distribution, by kind of member; together they add up to 1."""
    mean: str = "probabilities"
    """How distributions are averaged: as probabilities, or as logarithms (a geometric mean, normalised)."""

    @property
    def config(self) -> ModelConfig:
        """The config of the first member, whose special ids all share."""
        return self.kinds[0].config  # type: ignore[attr-defined, no-any-return]

    def apply(  # type: ignore[override]
        self, variables: Variables, *arguments: Any, method: str | Callable[..., Any]
    ) -> Any:
        """Calls a method, as `flax.linen.Module.apply` does."""
        noise = {name: variables[name] for name in variables if name == NOISE}
        bound = _BoundModels(self, variables["members"], noise)
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


def as_one_model(variables: Sequence[Sequence[Variables]]) -> Variables:
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
    return [
        jax.vmap(functools.partial(one, index, module))(held) for index, (module, held) in enumerate(pairs)
    ]


@dataclass(frozen=True)
class _BoundModels:
    """An ensemble and its variables."""

    model: Ensemble
    variables: tuple[Variables, ...]
    noise: Variables
    """The noise of the search, which all members share."""

    def encode(self, **inputs: Array) -> Inputs:
        """The inputs, which each member encodes when it makes its cache."""
        return inputs

    def init_cache(self, inputs: Inputs, beams: int, length: int) -> Caches:
        """The cache of each."""

        def one(module: nn.Module, held: Variables) -> AnyCache:
            return init_cache(module, held, inputs, beams, length)

        caches = []
        for module, held in zip(self.model.kinds, self.variables, strict=True):
            make_cache = functools.partial(one, module)
            axes = StackedCache.axes(jax.eval_shape(make_cache, jax.tree.map(lambda x: x[0], held)))
            caches.append(StackedCache(jax.vmap(make_cache, out_axes=axes)(held)))
        return Caches(tuple(caches))

    def decode_step(self, cache: Caches, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Caches]:
        """The mean of what each predicts."""

        def one(module: nn.Module, held: Variables, cache: AnyCache) -> tuple[Array, AnyCache]:
            return advance(module, {**held, **self.noise}, cache, tokens)

        logits = []
        caches = []
        stacked_caches: Any = cache.members
        for module, held, stacked in zip(self.model.kinds, self.variables, stacked_caches, strict=True):
            axes = StackedCache.axes(stacked.cache)
            advance_members = jax.vmap(functools.partial(one, module), in_axes=(0, axes), out_axes=(0, axes))
            predicted, after = advance_members(held, stacked.cache)
            logits.append(predicted)
            caches.append(StackedCache(after))
        return self.model.combined(logits), Caches(tuple(caches))


def ensemble_scores(
    model: Ensemble, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token under the mean."""
    shifted = decoder_input(target, model.config.special)

    def one(_: int, module: nn.Module, held: Variables) -> Array:
        return jnp.asarray(whole(module, held, inputs, shifted))

    logits = by_members(model, variables, one)
    return score_tokens(model.combined(logits), target, model.config.special.pad)
