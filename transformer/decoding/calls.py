"""The calls that searches make of a model, and the checks of their arguments."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jaxtyping import Array, Float, Int

from transformer.config.model import ModelConfig, SpecialIds
from transformer.config.ranges import shown, typed
from transformer.model.cache import AnyCache
from transformer.model.parameters import Variables, check_ids
from transformer.runtime.errors import UserError, counted, first_line

Inputs = Mapping[str, Array]
"""What a model's `encode` reads, by the names of its arguments: arrays with rows first."""


F = TypeVar("F", bound=Callable[..., Any])

STEERING = "steer_"  # begins the names of inputs that only hooks read


def checked(search: F) -> F:
    """Gives a compiled search the checks of its arguments: as they are annotated, and of ids and arrays.

    Raises:
      UserError: by the search, if one of them is wrong.
    """

    @typed
    @functools.wraps(search)
    def call(model: nn.Module, params: Variables, source_ids: Any, **arguments: Any) -> Any:
        check_ids("source_ids", source_ids)
        _check_known("source_ids", source_ids, model)
        if "key" in arguments and not _is_key(arguments["key"]):
            raise UserError(
                f"key must be a random key, such as jax.random.key(0), not {shown(arguments['key'])}"
            )
        _check_arrays(arguments, len(source_ids))
        try:
            return search(model, params, jnp.asarray(source_ids), **arguments)
        except FlaxError as error:  # a parameter is missing, or has another shape
            raise UserError(f"params are not those of this model: {first_line(error)}") from error

    call.__wrapped__ = search.__wrapped__  # type: ignore[attr-defined]  # what is compiled
    return call  # type: ignore[return-value]  # of the same signature


def _check_known(name: str, ids: Any, model: nn.Module) -> None:
    """Raises UserError if an id is none of the source vocabulary: an embedding would read that of another.
    Ids that are not known here, as in a function that is compiled, are not checked."""
    config: ModelConfig = model.config  # type: ignore[attr-defined]
    if isinstance(ids, jax.core.Tracer) or not getattr(ids, "is_fully_addressable", True):
        return
    known, size = np.asarray(ids), config.vocab_size
    above = known >= (np.inf if getattr(model, "reads_unknown", False) else size)
    wrong = known[((known < 0) | above) & (known != config.special.pad)]
    if wrong.size:
        raise UserError(
            f"{name}: there is the id {wrong[0]}, and the vocabulary has those from 0 to {size - 1:,}"
        )


def _check_arrays(arguments: dict[str, Any], rows: int) -> None:
    """Raises UserError if the numbers of lines or a temperature that is an array have another shape or type
    than `sample` reads. A list of numbers of lines becomes an array."""
    lines: Any = arguments.get("lines")
    if lines is not None:
        if isinstance(lines, list | tuple):
            with contextlib.suppress(ValueError):  # lists in it of unequal lengths
                lines = arguments["lines"] = np.asarray(lines)
        dtype = getattr(lines, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or lines.shape != (rows,):
            raise UserError(f"lines must be a whole number for each of {counted(rows, 'row')}")
    temperature = arguments.get("temperature", 1.0)
    if shape := getattr(temperature, "shape", ()):
        raise UserError(f"temperature must be one number, not an array of the shape {shape}")
    if not jnp.issubdtype(getattr(temperature, "dtype", type(temperature)), jnp.number):
        raise UserError(f"temperature must be a number, not {shown(temperature)}")


def _is_key(key: Any) -> bool:
    """Whether a value is a random key of JAX, also one of the older kind."""
    dtype = getattr(key, "dtype", None)
    return dtype is not None and (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)


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


def as_variables(params: Variables) -> Variables:
    """Parameters alone, or a whole variables dict, as a variables dict."""
    return params if "params" in params else {"params": params}


def special_ids(model: nn.Module) -> SpecialIds:
    """The special ids of a model's vocabulary, as a search reads them."""
    config: ModelConfig = model.config  # type: ignore[attr-defined]
    return config.search_ids
