"""Several models as one: at every step the search sees the mean of their distributions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.decoding.scores import TokenScores, token_scores
from transformer.model.cache import Caches
from transformer.model.encoder_decoder import shift_right
from transformer.model.parameters import Variables

Mean = Literal["probabilities", "logarithms"]


class Ensemble(nn.Module):
    """Models with the same vocabulary, as the model of a search. Its variables are those of the members, as
    `together` puts them; it has none of its own, and is never bound.

    Args:
      members: models that generate one token after another.
      weights: of their distributions; they add up to 1.
      mean: of probabilities, or of their logarithms (a geometric mean, normalised).
    """

    members: tuple[nn.Module, ...]
    weights: tuple[float, ...]
    mean: Mean = "probabilities"

    @property
    def config(self) -> ModelConfig:
        """Of the first member, whose special ids all share."""
        return self.members[0].config  # type: ignore[attr-defined, no-any-return]

    def apply(  # type: ignore[override]
        self, variables: Variables, *given: Any, method: str | Callable[..., Any]
    ) -> Any:
        """Calls a method, as `flax.linen.Module.apply` does."""
        bound = _Bound(self, variables["members"])
        return method(bound, *given) if callable(method) else getattr(bound, method)(*given)

    def combined(self, logits: Sequence[Float[Array, "... v"]]) -> Float[Array, "... v"]:
        """The logarithm of the mean of the members' distributions, up to a constant."""
        log_p = jnp.stack([jax.nn.log_softmax(each) for each in logits])
        weights = jnp.array(self.weights).reshape(-1, *(1,) * (log_p.ndim - 1))
        if self.mean == "logarithms":
            return (weights * log_p).sum(axis=0)
        return jax.nn.logsumexp(log_p, axis=0, b=weights)


def together(variables: Sequence[Variables]) -> Variables:
    """The variables of an ensemble."""
    return {"params": {}, "members": tuple(variables)}


@dataclass(frozen=True)
class _Bound:
    """An ensemble and its variables."""

    model: Ensemble
    variables: tuple[Variables, ...]

    def _each(self, method: str, *given: Sequence[Any], **shared: Any) -> tuple[Any, ...]:
        own = zip(self.model.members, self.variables, *given, strict=True)
        return tuple(model.apply(held, *rest, **shared, method=method) for model, held, *rest in own)

    def encode(self, **inputs: Array) -> tuple[Any, ...]:
        """What each member encodes."""
        return self._each("encode", **inputs)

    def init_cache(self, memory: tuple[Any, ...], beams: int, length: int) -> Caches:
        """The cache of each."""
        many = len(self.variables)
        return Caches(self._each("init_cache", memory, [beams] * many, [length] * many))

    def decode_step(self, cache: Caches, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Caches]:
        """The mean of what each predicts."""
        found = self._each("decode_step", cache.members, [tokens] * len(self.variables))
        logits, caches = zip(*found, strict=True)
        return self.model.combined(logits), Caches(tuple(caches))


def ensemble_scores(
    model: Ensemble, variables: Variables, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token under the mean."""
    given = shift_right(target, model.config.special.bos)
    pairs = zip(model.members, variables["members"], strict=True)
    logits = [jnp.asarray(member.apply(held, source, given)) for member, held in pairs]
    return token_scores(model.combined(logits), target, model.config.special.pad)
