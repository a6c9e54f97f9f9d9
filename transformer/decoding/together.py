"""A model with a language model of its outputs in its search (shallow fusion, Gulcehre et al. 2015).

Beams are ranked by log P(Y|X) + weight * log p(Y). The language model reads nothing but the output: its
cached step runs beside that of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.data.sequences import Field
from transformer.decoding.calls import Inputs, advance, init_cache
from transformer.model.cache import CacheOfBoth
from transformer.model.noise import NOISE
from transformer.model.parameters import Variables

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
        """That of the model."""
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
    """Both models and their variables."""

    both: WithLanguageModel
    variables: Variables

    @property
    def _variables(self) -> Variables:
        """Those of the model."""
        noise = {name: self.variables[name] for name in self.variables if name == NOISE}
        return {**self.variables["model"], **noise}

    def encode(self, **inputs: Array) -> Inputs:
        """The inputs, which the model encodes when it makes its cache."""
        return inputs

    def steering(self, inputs: Inputs) -> Inputs:
        """What the model gives to hooks."""
        if not hasattr(self.both.model, "steering"):
            return {}

        def run(model: Any) -> Inputs:
            arrays: Inputs = model.steering(model.encode(**_of_model(inputs)))
            return arrays

        arrays: Inputs = self.both.model.apply(self._variables, method=run)  # type: ignore[assignment]
        return arrays

    def init_cache(self, inputs: Inputs, beams: int, length: int) -> CacheOfBoth:
        """Both caches before the first token."""
        language_model, weight = self.both.language_model, inputs[WEIGHT]
        begin = {"source": jnp.full((len(weight), 1), self.both.config.special.bos, jnp.int32)}
        size = language_model.config.vocab_size  # type: ignore[attr-defined]
        return CacheOfBoth(
            init_cache(self.both.model, self._variables, _of_model(inputs), beams, length),
            init_cache(language_model, self.variables["language_model"], begin, beams, length),
            weight,
            jnp.zeros((len(weight), beams, size)),
        )

    def decode_step(
        self, cache: CacheOfBoth, tokens: Int[Array, "b n"]
    ) -> tuple[Float[Array, "b n v"], CacheOfBoth]:
        """The logits of the model, and caches with what is added to its log-probabilities."""
        logits, of_model = advance(self.both.model, self._variables, cache.model, tokens)
        language_model, variables = self.both.language_model, self.variables["language_model"]
        predicted, of_language = advance(language_model, variables, cache.language_model, tokens)
        added = cache.weight[:, None, None] * jax.nn.log_softmax(predicted)
        return logits, CacheOfBoth(of_model, of_language, cache.weight, added)


def _of_model(inputs: Inputs) -> Inputs:
    return {name: x for name, x in inputs.items() if name != WEIGHT}
