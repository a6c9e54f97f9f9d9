"""The search of models that generate one token after another, by the options."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, UInt

from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.model import ModelConfig, SpecialIds
from transformer.config.ranges import LONGEST
from transformer.config.searches import MbrConfig, SampleConfig
from transformer.decoding.beam import BeamSearch, Candidates
from transformer.decoding.calls import Inputs, special_ids
from transformer.decoding.hooks import NO_HOOKS, Hooks
from transformer.decoding.sampling import Greedy, Randomness, Sampled
from transformer.decoding.scores import (
    LengthPenalty,
    Limits,
    SearchResult,
    power_penalty,
    source_limits,
    wu_penalty,
)
from transformer.decoding.slots import Finished, Slots
from transformer.decoding.steering.prefix import opening_of
from transformer.decoding.steering.terms import ConstrainedBeam, Terms
from transformer.decoding.steps import Predicted, Reach, Selection, Strategy, search_all
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError

# Diverse beam search (Vijayakumar et al. 2018): groups of beams that avoid what earlier groups choose.


@dataclass(frozen=True)
class Diverse:
    """The strategy of diverse beam search. At each step the groups choose one after another, each as a beam
    search of its own; a token loses `diversity` for every beam of earlier groups that has just chosen it
    (Hamming diversity, section 4). Only the strategy is affected: scores stay those of the model."""

    beam_size: int
    groups: int
    diversity: float
    stop: str = "exact"

    @property
    def _group(self) -> BeamSearch:
        return BeamSearch(self.beam_size // self.groups, self.stop)

    def first(self) -> Float[Array, " n"]:
        return jnp.tile(self._group.first(), self.groups)

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        best = self._group
        size = self.beam_size // self.groups
        logits = predicted.logits
        log_normaliser = predicted.log_normaliser
        rows = jnp.arange(len(slots.live))[:, None]
        taken = jnp.zeros((len(slots.live), logits.shape[-1]), logits.dtype)
        parts: list[Selection] = []
        for start in range(0, self.beam_size, size):
            beams = slice(start, start + size)
            finished = jax.tree.map(lambda x, beams=beams: x[:, beams], slots.finished)
            finished = replace(finished, beam=finished.beam - start)
            group = replace(slots, live=slots.live[:, beams], finished=finished, row_inputs=())
            penalised = logits[:, beams] - self.diversity * taken[:, None]
            of_group = replace(
                predicted, logits=penalised, log_normaliser=log_normaliser[:, beams], unrestricted=None
            )
            candidates = best.candidates(group, of_group)
            lost = self.diversity * jnp.take_along_axis(taken, candidates.token, axis=1)
            candidates = Candidates(candidates.log_p + lost, candidates.parent, candidates.token)
            chosen = best.chosen(
                group, candidates, eos, predicted.reach and _of_group(predicted.reach, start)
            )
            taken = taken.at[rows, chosen.tokens].add((chosen.live > -jnp.inf).astype(taken.dtype))
            ended = replace(chosen.finished, beam=chosen.finished.beam + start)
            parts.append(replace(chosen, parents=chosen.parents + start, finished=ended))

        def joined(name: str) -> Array:
            return jnp.concatenate([getattr(part, name) for part in parts], axis=1)

        all_finished: Finished = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves, axis=1), *(part.finished for part in parts)
        )
        enough = jnp.stack([part.enough for part in parts]).all(axis=0)
        return Selection(joined("tokens"), joined("parents"), joined("live"), all_finished, enough)


def _of_group(reach: Reach, start: int) -> Reach:
    """`Predicted.reach` of the beams from a number on."""
    return lambda tokens, parents: reach(tokens, parents + start)


def distinct(result: SearchResult) -> SearchResult:
    """The different hypotheses of one input, in their order: groups may find the same."""
    _, first = np.unique(np.asarray(result.tokens), axis=0, return_index=True)
    order = np.sort(first)
    unique: SearchResult = jax.tree.map(lambda x: x[order], result)
    return unique


def length_penalty(options: DecodingConfig, hooks: Hooks = NO_HOOKS) -> LengthPenalty:
    """The length penalty of the options, without the tokens of an opening that does not count."""
    penalty = {"wu": wu_penalty, "power": power_penalty}[options.penalty](options.length_penalty)
    opening = opening_of(hooks)
    return penalty if opening.is_counted else replace(penalty, opening=opening.size)


def strategy_of(options: DecodingConfig, hooks: Hooks = NO_HOOKS) -> Strategy:
    """The strategy of the options: beam search, greedy search or sampling. With terms among the hooks, beams
    are allotted by them."""
    terms = [(index, hook) for index, hook in enumerate(hooks.each) if isinstance(hook, Terms)]
    match options:
        case BeamConfig() if terms:
            ((index, hook),) = terms
            return ConstrainedBeam(options.beam_size, options.stop, hook, index)
        case MbrConfig(candidates="beam"):
            return BeamSearch(options.samples)
        case SampleConfig():
            return Sampled(options.samples, options.top_k, options.top_p < 1)
        case BeamConfig() if options.groups > 1:
            return Diverse(options.beam_size, options.groups, options.diversity, options.stop)
        case BeamConfig():
            return BeamSearch(options.beam_size, options.stop)
        case _:
            return Greedy()


@struct.dataclass
class RowOptions:
    """What searches depend on, besides the program and the inputs: arrays of the host, with rows first."""

    lines: Any
    """The numbers of the input lines."""
    seeds: Any
    temperatures: Any
    top_ps: Any
    alphas: Any
    """The exponents of length penalties."""
    extra_lengths: Any
    max_lengths: Any
    certain: Any
    """How many of the best outputs must be certain."""

    @classmethod
    def of(
        cls,
        options: Sequence[DecodingConfig],
        lines: Sequence[int],
        rows: int,
        certain: Sequence[int | None] = (None,),
    ) -> "RowOptions":
        """Options of the first rows; the others repeat them. If `certain` is None, all outputs must be."""
        n_best = options[0].num_hypotheses
        num_certain = np.array([min(number or n_best, n_best) for number in certain], np.int32)
        seeds = np.array([getattr(row, "seed", 0) for row in options], np.int64).astype(np.int32)
        numbers = (
            np.array([getattr(row, name, 1.0) for row in options], np.float32)
            for name in ("temperature", "top_p", "length_penalty")
        )
        extra_lengths = np.array([row.extra_length for row in options], np.int32)
        max_lengths = np.array([row.max_length or LONGEST for row in options], np.int32)
        arrays = np.array(lines, np.int32), seeds, *numbers, extra_lengths, max_lengths, num_certain
        return cls(*(np.resize(x, rows) for x in arrays))


def strategy_inputs(options: DecodingConfig, row_options: RowOptions) -> Any:
    """What the strategy reads for each row, such as random keys."""
    match strategy_of(options):
        case Sampled():
            return Randomness.of(
                jax.vmap(jax.random.key)(row_options.seeds),
                row_options.lines,
                row_options.temperatures,
                row_options.top_ps,
            )
        case BeamSearch():
            return row_options.certain
        case _:
            return ()


# Noise on the inputs of a decoder while it generates: outputs vary without sampling of tokens.


@struct.dataclass
class Noise:
    """What is done to the embedded newest tokens."""

    keys: UInt[Array, "b words"]
    """The data of a random key for each row."""
    deviation: float = struct.field(pytree_node=False)
    """Deviation of Gaussian noise, as a share of the root mean square of each input."""
    dropout: float = struct.field(pytree_node=False)
    """Share of the features that are zero; the others are scaled up."""
    generator: str = struct.field(pytree_node=False)
    """The kind of the keys."""

    def at(self, steps: Int[Array, " b"]) -> "Noise":
        """The noise of the given steps."""

        def fold(key: Array, step: Array) -> Array:
            wrapped = jax.random.wrap_key_data(key, impl=self.generator)
            return jax.random.key_data(jax.random.fold_in(wrapped, step))

        return self.replace(keys=jax.vmap(fold)(self.keys, steps))  # type: ignore[attr-defined, no-any-return]

    def __call__(self, embedded: Float[Array, "b n m"]) -> Float[Array, "b n m"]:
        """The inputs with noise, another for each beam."""

        def one(key: Array, x: Array) -> Array:
            drop, add = jax.random.split(jax.random.wrap_key_data(key, impl=self.generator))
            keep = jax.random.bernoulli(drop, 1 - self.dropout, x.shape)
            size = jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
            noise = self.deviation * size * jax.random.normal(add, x.shape)
            return jnp.where(keep, (x + noise) / (1 - self.dropout), 0).astype(x.dtype)

        return jax.vmap(one)(self.keys, embedded)


def noise_of(options: DecodingConfig, row_options: RowOptions) -> Noise | None:
    """The noise on the decoder's inputs. None: there is none."""
    if not options.noisy:
        return None
    drawn = Randomness.of(jax.vmap(jax.random.key)(row_options.seeds), row_options.lines, 1.0)
    return Noise(drawn.keys, options.noise, options.input_dropout, drawn.generator)


def penalty_of(options: DecodingConfig, hooks: Hooks, row_options: RowOptions) -> LengthPenalty:
    """The length penalty of each row."""
    return replace(length_penalty(options, hooks), alpha=row_options.alphas)


def row_limits(
    search: "AutoregressiveSearch",
    inputs: Inputs,
    special: SpecialIds,
    options: DecodingConfig,
    row_options: RowOptions,
) -> Limits:
    """The limits of each row by its own `extra_length` and `max_length`, which are at most those of the
    program's options."""
    free = search.limits(inputs, special, replace(options, max_length=None))
    longest = min(free.longest, options.max_length or free.longest)
    max_lengths = jnp.minimum(row_options.max_lengths, longest)
    limits = jnp.clip(free.each + row_options.extra_lengths - options.extra_length, 1, max_lengths)
    return Limits(jnp.where(free.each > 0, limits, 0), longest)


def limits_of_source(inputs: Inputs, special: SpecialIds, options: DecodingConfig) -> Limits:
    """The limits of outputs relative to `inputs["source"]`, which are ids.

    Raises:
      UserError: there are none.
    """
    source = inputs.get("source")
    if source is None or source.ndim != 2:
        raise UserError(
            "the limits of this search count the ids of the input named source, and there are none: use "
            "AutoregressiveSearch(limits_of_options), or limits of your own"
        )
    return source_limits(source, special.pad, options.extra_length, options.max_length)


def limits_of_options(inputs: Inputs, special: SpecialIds, options: DecodingConfig) -> Limits:
    """The same limit for the outputs of all rows, whatever they read: `extra_length` tokens and <eos>, or
    `max_length`, which counts it. A row is present if anything of `inputs["source"]` is: ids that are not
    <pad>, or numbers that are finite."""
    longest = options.extra_length + 1
    longest = longest if options.max_length is None else min(longest, options.max_length)
    source = inputs["source"]
    is_present = source != special.pad if jnp.issubdtype(source.dtype, jnp.integer) else jnp.isfinite(source)
    return Limits(jnp.where(is_present.any(axis=range(1, source.ndim)), longest, 0), longest)


def unchanged(model: nn.Module, result: SearchResult, inputs: Inputs) -> SearchResult:
    """Returns the result as it is."""
    return result


@dataclass(frozen=True)
class AutoregressiveSearch:
    """Beam search, greedy search or sampling. Callable as the `search` of a `System`; a `SearchService` runs
    it in slots, which are refilled."""

    limits: Callable[[Inputs, SpecialIds, DecodingConfig], Limits] = limits_of_source
    """(inputs, special ids, options) -> the maximum length of each output, a token longer for each of
    `extra_length`."""
    hooks: Hooks = NO_HOOKS
    """Hooks that restrict or score the tokens."""
    named: Callable[[Any, SearchResult, Inputs], SearchResult] = unchanged
    """(model, result, inputs) -> the result with the ids that the task reads."""
    by_options: Callable[["AutoregressiveSearch", ModelConfig, DecodingConfig], Any] | None = None
    """(search, options of the model, options) -> the search with these options, if it is not the same for
    all."""

    def __call__(
        self,
        model: nn.Module,
        variables: Variables,
        inputs: Inputs,
        lines: Int[Array, " b"],
        options: DecodingConfig,
    ) -> SearchResult:
        """Searches a batch, all rows at once.

        Args:
          model: as in `beam_search`.
          variables: its variables.
          inputs: the arguments of `encode`.
          lines: the numbers of the input lines; sampling folds them into its key.
          options: of the search.
        """
        rows = len(lines)
        row_options = RowOptions.of([options] * rows, np.asarray(lines).tolist(), rows)
        return _searched(self, model, options.shared(), variables, inputs, row_options)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _searched(
    search: AutoregressiveSearch,
    model: nn.Module,
    options: DecodingConfig,
    variables: Variables,
    inputs: Inputs,
    row_options: RowOptions,
) -> SearchResult:
    limits = row_limits(search, inputs, special_ids(model), options, row_options)
    noise = noise_of(options, row_options)
    strategy, penalty = strategy_of(options, search.hooks), penalty_of(options, search.hooks, row_options)
    result = search_all(
        model,
        variables,
        inputs,
        limits,
        strategy,
        penalty,
        search.hooks,
        strategy_inputs(options, row_options),
        noise,
    )
    return search.named(model, result, inputs)


autoregressive_search = AutoregressiveSearch()
