"""The calls that searches make of a model."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig, SpecialIds
from transformer.model.cache import AnyCache
from transformer.model.parameters import Variables

Inputs = Mapping[str, Array]
"""What a model's `encode` reads, by the names of its arguments: arrays with rows first."""


STEERING = "steer_"  # begins the names of inputs that only hooks read


def init_cache(model: nn.Module, variables: Variables, inputs: Inputs, beams: int, length: int) -> AnyCache:
    """Encodes the inputs, and returns a cache for so many beams and steps."""
    return init_search(model, variables, inputs, beams, length)[0]


def init_search(
    model: nn.Module, variables: Variables, inputs: Inputs, beams: int, length: int
) -> tuple[AnyCache, Inputs]:
    """Encodes the inputs, and returns a cache for so many beams and steps, and the inputs with what the model
    gives to hooks: its method `steering`, if it has one, makes arrays by name of what `encode` returned."""

    def run(model: Any) -> tuple[AnyCache, Inputs]:  # bound to its variables
        memory = model.encode(**{name: x for name, x in inputs.items() if not name.startswith(STEERING)})
        of_model = model.steering(memory) if hasattr(model, "steering") else {}
        return model.init_cache(memory, beams, length), {**inputs, **of_model}

    result: tuple[AnyCache, Inputs] = model.apply(variables, method=run)  # type: ignore[assignment]
    return result


def advance(
    model: nn.Module, variables: Variables, cache: AnyCache, tokens: Int[Array, "b n"]
) -> tuple[Float[Array, "b n v"], AnyCache]:
    """The logits after each beam's newest token, and the cache that includes it."""
    output: tuple[Array, AnyCache] = model.apply(variables, cache, tokens, method="decode_step")  # type: ignore[assignment]
    return output


def whole(model: nn.Module, variables: Variables, inputs: Inputs, target: Array, **options: Any) -> Any:
    """The output of the model for a whole target at once, whose decoder reads it as it is.

    Args:
      options: of `Module.apply`.
    """
    arguments: dict[str, Any] = {**inputs, "target": target, **options}
    return model.apply(variables, **arguments)


def as_variables(params: Variables) -> Variables:
    """Parameters alone, or a whole variables dict, as a variables dict."""
    return params if "params" in params else {"params": params}


def special_ids(model: nn.Module) -> SpecialIds:
    """The special ids of a model's vocabulary, as a search reads them."""
    config: ModelConfig = model.config  # type: ignore[attr-defined]
    return config.search_ids
