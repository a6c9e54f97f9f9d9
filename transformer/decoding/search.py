"""Selects the search method of autoregressive models by the options."""

from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Int

from transformer.config import DecodingConfig
from transformer.decoding.beam import LengthPenalty, SearchResult, beam_search, power_penalty, wu_penalty
from transformer.decoding.sampling import greedy_search, sample


def length_penalty(options: DecodingConfig) -> LengthPenalty:
    """The length penalty of the options, as a function of |Y|."""
    return {"wu": wu_penalty, "power": power_penalty}[options.penalty](options.length_penalty)


def autoregressive_search(
    model: nn.Module,
    variables: Any,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    options: DecodingConfig,
) -> SearchResult:
    """Beam search, greedy search or sampling.

    Args:
      source: ids, each sentence closed by <eos>, then <pad>.
      lines: the numbers of the input lines; sampling folds them into its key.
    """
    limits: dict[str, Any] = {
        "length_penalty": length_penalty(options),
        "max_length": options.max_length,
        "extra_length": options.extra_length,
    }
    match options.method:
        case "greedy":
            return greedy_search(model, variables, source, **limits)
        case "sample":
            return sample(
                model,
                variables,
                source,
                key=jax.random.key(options.seed),
                lines=lines,
                samples=options.beam_size,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                **limits,
            )
        case _:
            return beam_search(
                model,
                variables,
                source,
                beam_size=options.beam_size,
                stop=options.stop,
                **limits,
            )
