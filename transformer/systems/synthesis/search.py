"""Speaking: frames one after the other, until the model predicts the end."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import DecodingConfig
from transformer.decoding.calls import Inputs, as_variables
from transformer.model.cache import Cache
from transformer.model.noise import NOISE
from transformer.model.parameters import Variables
from transformer.systems.synthesis.model import PRENET_MASKS, Synthesiser
from transformer.systems.synthesis.options import SynthesisDecodingConfig, VoiceDecodingConfig
from transformer.systems.synthesis.voice import Voice

FRAMES = 60  # of each token, at most, unless the options say otherwise


@struct.dataclass
class Utterances:
    """What was spoken for each row."""

    frames: Float[Array, "b t bands"]
    lengths: Int[Array, " b"]
    """Frames of each; the others are meaningless."""
    stopped: Bool[Array, " b"]
    """Whether it ended by itself, and not at the limit."""


def synthesis_search(
    model: nn.Module, variables: Variables, inputs: Inputs, lines: Int[Array, " b"], options: DecodingConfig
) -> Utterances:
    """Speaks a batch of texts.

    Args:
      model: a `Synthesiser`.
      variables: its variables.
      inputs: `source`, ids `[rows, length]`.
      lines: the numbers of the input lines, folded into the seed of the pre-net's dropout.
      options: a `SynthesisDecodingConfig`.
    """
    assert isinstance(model, Synthesiser)
    assert isinstance(options, SynthesisDecodingConfig)
    seeds = jnp.full(len(lines), options.seed, jnp.int32)
    return _spoken(model, options.static(), variables, inputs["source"], jnp.asarray(lines), seeds)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _spoken(
    model: Synthesiser,
    options: SynthesisDecodingConfig,
    variables: Variables,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    seeds: Int[Array, " b"],
) -> Utterances:
    c = model.config
    params = as_variables(variables)
    steps = most_steps(model, options, source.shape[1])
    rows = source.shape[0]
    keys = jax.vmap(lambda seed, line: jax.random.fold_in(jax.random.key(seed), line))(seeds, lines)

    def init_cache(model: Synthesiser) -> Cache:
        return model.init_cache(model.encode(source), 1, steps)

    cache: Cache = model.apply(params, method=init_cache)  # type: ignore[assignment]
    frames = jnp.zeros((rows, steps, c.reduction, c.bands))
    empty = (source == c.special.pad).all(axis=1)
    state = jnp.int32(0), cache, jnp.zeros((rows, 1, c.bands)), frames, jnp.where(empty, 0, steps), empty

    def is_speaking(state: tuple) -> Array:
        return (state[0] < steps) & ~state[5].all()

    def step(state: tuple) -> tuple:
        index, cache, last, frames, lengths, done = state
        masks = _prenet_masks(keys, index, c.prenet_width, options.prenet_dropout)
        noisy = {**params, NOISE: {"prenet": {PRENET_MASKS: masks}}} if options.prenet_dropout else params
        outputs, cache = model.apply(noisy, cache, last, method="decode_step")  # type: ignore[misc]
        new, stop = outputs
        frames = frames.at[:, index].set(new)
        ends = ~done & (jax.nn.sigmoid(stop) > options.stop)
        return index + 1, cache, new[:, -1:], frames, jnp.where(ends, index + 1, lengths), done | ends

    _, _, _, frames, lengths, done = jax.lax.while_loop(is_speaking, step, state)
    frames = frames.reshape(rows, -1, c.bands)
    lengths = lengths * c.reduction
    frame_mask = jnp.arange(frames.shape[1]) < lengths[:, None]
    refined: Array = model.apply(params, frames, frame_mask, method="refine")  # type: ignore[assignment]
    return at_rate(Utterances(refined, lengths, done), options.length_scale)


def most_steps(model: Voice, options: VoiceDecodingConfig, tokens: int) -> int:
    """The most steps of the decoder for texts of so many tokens, before `at_rate`."""
    limit = options.max_length or FRAMES * tokens
    return math.ceil(limit / options.length_scale / model.config.reduction)


def at_rate(utterances: Utterances, scale: float) -> Utterances:
    """Utterances that take longer by a factor: their frames are interpolated, so that nothing is lost,
    however short it is, and the pitch stays."""
    if scale == 1:
        return utterances
    frames = utterances.frames
    lengths = jnp.round(utterances.lengths * scale).astype(jnp.int32)
    positions = (jnp.arange(round(frames.shape[1] * scale)) + 0.5) / scale - 0.5
    positions = jnp.clip(positions, 0, jnp.maximum(utterances.lengths[:, None] - 1, 0))
    before = jnp.floor(positions).astype(jnp.int32)
    after = jnp.minimum(before + 1, jnp.maximum(utterances.lengths[:, None] - 1, 0))
    share = (positions - before)[..., None]
    low, high = (jnp.take_along_axis(frames, index[..., None], axis=1) for index in (before, after))
    return Utterances((1 - share) * low + share * high, lengths, utterances.stopped)


def _prenet_masks(keys: Array, step: Array, width: int, rate: float) -> Float[Array, "2 b w"]:
    """The masks of the pre-net's two layers at a step, by the key of each row."""

    def of_row(key: Array) -> Array:
        drawn = jax.random.bernoulli(jax.random.fold_in(key, step), 1 - rate, (2, width))
        return drawn / (1 - rate)

    return jax.vmap(of_row)(keys).swapaxes(0, 1)
