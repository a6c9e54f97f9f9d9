"""Selects the search method of autoregressive models by the options."""

import flax.linen as nn
import jax
from jaxtyping import Array, Int

from transformer.config import DecodingConfig
from transformer.decoding.beam import (
    LengthPenalty,
    Limits,
    SearchResult,
    power_penalty,
    search_beams,
    source_limits,
    wu_penalty,
)
from transformer.decoding.calls import Inputs, special_ids
from transformer.decoding.hooks import NO_HOOK, SearchHook
from transformer.decoding.sampling import draw_samples, search_greedily
from transformer.model.parameters import Variables


def length_penalty(options: DecodingConfig) -> LengthPenalty:
    """The length penalty of the options, as a function of |Y|."""
    return {"wu": wu_penalty, "power": power_penalty}[options.penalty](options.length_penalty)


def autoregressive_search(
    model: nn.Module,
    variables: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: DecodingConfig,
    *,
    limits: Limits | None = None,
    hook: SearchHook = NO_HOOK,
) -> SearchResult:
    """Beam search, greedy search or sampling.

    Args:
      model: as in `search_beams`.
      variables: its variables.
      inputs: the arguments of `encode`.
      lines: the numbers of the input lines; sampling folds them into its key.
      options: of the search.
      limits: the maximum length of each output. None: relative to `inputs["source"]`, which are ids.
      hook: restricts the tokens.
    """
    if limits is None:
        pad = special_ids(model).pad
        limits = source_limits(inputs["source"], pad, options.extra_length, options.max_length)
    penalty = length_penalty(options)
    match options.method:
        case "greedy":
            return search_greedily(model, variables, inputs, limits, length_penalty=penalty, hook=hook)
        case "sample":
            return draw_samples(
                model,
                variables,
                inputs,
                limits,
                key=jax.random.key(options.seed),
                lines=lines,
                samples=options.beam_size,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                length_penalty=penalty,
                hook=hook,
            )
        case _:
            return search_beams(
                model,
                variables,
                inputs,
                limits,
                beam_size=options.beam_size,
                length_penalty=penalty,
                stop=options.stop,
                hook=hook,
            )
