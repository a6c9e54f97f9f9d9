"""Searches that choose among few tokens: those of a lexical shortlist for each source.

A sentence has a row of candidates, and the rows of the output matrix that belong to them are gathered once.
The search sees a model whose vocabulary is the candidates: token i is the i-th of the row, and the first four
are the special ids. So a translation does not depend on what else is searched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import DecodingConfig, ModelConfig, SpecialIds
from transformer.data.sequences import Field
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import NO_HOOK
from transformer.decoding.limits import Limits
from transformer.decoding.scores import SearchResult
from transformer.decoding.search import AutoregressiveSearch, unchanged
from transformer.model.cache import ShortlistCache
from transformer.model.int8 import QuantizedMatrix
from transformer.model.parameters import Variables
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError

CANDIDATES = "shortlist"
"""The input with the candidates of each row."""
LOCAL = SpecialIds()
"""The special ids among the candidates: they come first."""
_NONE = -1  # where there are no more candidates


def field(per_id: int, once: int, longest: int) -> Field:
    """What a search reads of each source: so many candidates that even all different ones have room.

    Args:
      per_id: candidates of each source token.
      once: of every source.
      longest: the longest bucket.
    """
    return Field(fill=_NONE, share=per_id + (once + 4) / longest)


def always(special: SpecialIds) -> tuple[int, ...]:
    """The ids that come first, in the order of `LOCAL`."""
    return special.pad, special.bos, special.eos, special.unk


class Shortlisted(nn.Module):
    """A model that predicts one of the candidates. Its variables are those of the model; it has none of its
    own, and is never bound."""

    model: Transformer

    @property
    def config(self) -> ModelConfig:
        """That of the model, with the special ids of the candidates."""
        return replace(self.model.config, special=LOCAL)

    def apply(  # type: ignore[override]
        self, variables: Variables, *arguments: Any, method: str | Callable[..., Any]
    ) -> Any:
        """Calls a method, as `flax.linen.Module.apply` does."""

        def run(model: Transformer) -> Any:
            bound = _Bound(model)
            return method(bound, *arguments) if callable(method) else getattr(bound, method)(*arguments)

        return self.model.apply(variables, method=run)


@dataclass(frozen=True)
class _Bound:
    """The model, bound to its variables."""

    model: Transformer

    def encode(self, **inputs: Array) -> tuple[Any, Array]:
        """What the model reads of the source, and the candidates."""
        ids = inputs.pop(CANDIDATES)
        (source,) = inputs.values()
        return self.model.encode(source), ids

    def init_cache(self, memory: tuple[Any, Array], beams: int, length: int) -> ShortlistCache:
        """That of the model, with the output matrix of the candidates."""
        states, ids = memory
        table = self.model.unembedding()
        rows = jnp.maximum(ids, 0)
        gathered = table[rows]
        is_missing = (ids == _NONE) & (jnp.arange(ids.shape[1]) > max(always(LOCAL)))
        missing = jnp.where(is_missing, -jnp.inf, 0.0)
        bias = self.model.output_bias[rows] + missing if self.model.config.output_bias else missing
        dtype = jnp.float32 if isinstance(table, QuantizedMatrix) else self.model.config.compute_dtype
        cache = self.model.init_cache(states, beams, length)
        return ShortlistCache(cache, ids, gathered.astype(dtype).swapaxes(1, 2), bias)

    def decode_step(
        self, cache: ShortlistCache, tokens: Int[Array, "b n"]
    ) -> tuple[Float[Array, "b n k"], ShortlistCache]:
        """Logits of the candidates."""
        newest = jnp.take_along_axis(cache.ids, tokens, axis=1)
        hidden, after = self.model.hidden_step(cache.cache, newest)
        scaled = self.model.scaled(hidden).astype(cache.table.dtype)
        logits = jnp.einsum("bnm,bmk->bnk", scaled, cache.table, preferred_element_type=jnp.float32)
        return logits + cache.bias[:, None], replace(cache, cache=after)


@dataclass(frozen=True)
class _SourceLimits:
    """The limits of a search, which read the source with the special ids of the model."""

    limits: Callable[[Inputs, SpecialIds, DecodingConfig], Limits]
    special: SpecialIds

    def __call__(self, inputs: Inputs, special: SpecialIds, options: DecodingConfig) -> Limits:
        return self.limits(inputs, self.special, options)


def shortlisted(search: Any, model: nn.Module) -> tuple[AutoregressiveSearch, Shortlisted]:
    """The search among candidates, and its model.

    Raises:
      UserError: the model or the search cannot have a shortlist.
    """
    if not isinstance(search, AutoregressiveSearch) or type(model) is not Transformer:
        raise UserError(
            "--decoding.shortlist is for one model of system transformer; leave it out for others and for "
            "ensembles"
        )
    if search.hook is not NO_HOOK or search.named is not unchanged:
        raise UserError(
            "--decoding.shortlist does not go with prefixes, terms, codes of languages, a language model, "
            "and options that forbid tokens: leave one of them out"
        )
    limits = _SourceLimits(search.limits, model.config.special)
    return replace(search, limits=limits, named=_ids_of_candidates), Shortlisted(model)


def _ids_of_candidates(model: nn.Module, result: SearchResult, inputs: Mapping[str, Array]) -> SearchResult:
    """The result with ids of the vocabulary."""
    return replace(result, tokens=_named(result.tokens, inputs[CANDIDATES]))


@jax.jit
def _named(tokens: Int[Array, "b n t"], ids: Int[Array, "b k"]) -> Int[Array, "b n t"]:
    flat = tokens.reshape(len(tokens), -1)
    return jnp.take_along_axis(ids, flat, axis=1).reshape(tokens.shape)
