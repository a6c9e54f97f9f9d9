"""Speech synthesis: the loss of frames and of the stop token, a search that writes frames one after the
other, and the system."""

import functools
import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.decoding import DecodingConfig
from transformer.decoding.calls import Inputs, as_variables
from transformer.decoding.forced import sown_attention
from transformer.model.cache import Cache
from transformer.model.encoder_decoder import NOISE
from transformer.model.parameters import Variables
from transformer.model.transformer import cross_attention
from transformer.systems.synthesis.model import PRENET_MASKS, Spoken, Synthesiser, Voice
from transformer.systems.synthesis.options import SynthesisDecodingConfig, VoiceDecodingConfig
from transformer.systems.synthesis.task import TextToSpeech
from transformer.systems.system import System
from transformer.training.objective import Batch, Context, Loss, apply_training

# The loss of frames and of the stop token.


STOP_WEIGHT = 5.0
"""The weight of an utterance's last step in the loss of the stop token (Li et al. 2019, section 3.7)."""


def synthesis_objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
    """The mean absolute error of the frames before and after the post-net, and the cross-entropy of the stop
    token, in which the last step weighs more (Li et al. 2019, section 3.7).

    The metrics are `mel`, the error after the post-net, and `stop`, the cross-entropy of a step. The weight
    is the number of frames.
    """
    assert isinstance(model, Synthesiser)
    c = model.config
    target = inputs = batch["target"]

    if c.own_frames and (rngs := context.rngs("before", "where")):
        # not by `apply_training`: this pass does not count in running statistics
        dropout = {"dropout": rngs["before"]}
        before: Any = model.apply(variables, batch["source"], target, deterministic=False, rngs=dropout)
        replaced = jax.random.uniform(rngs["where"], model.target_mask(target).shape) < c.own_frames
        replaced = jnp.repeat(replaced, c.reduction, axis=1)[:, : target.shape[1], None]
        inputs = jnp.where(replaced & jnp.isfinite(target), jax.lax.stop_gradient(before.frames), target)
    outputs, sown = apply_training(
        model,
        variables,
        context,
        batch["source"],
        inputs,
        deterministic=context.deterministic,
        rngs=context.rngs("dropout"),
    )
    spoken = Spoken(*outputs)
    steps = model.target_mask(target)
    last = steps & ~jnp.pad(steps, ((0, 0), (0, 1)))[:, 1:]
    stop_errors = optax.sigmoid_binary_cross_entropy(spoken.stop, last.astype(jnp.float32))
    weights = steps * jnp.where(last, STOP_WEIGHT, 1.0)
    stop = (stop_errors * weights).sum()
    refined = frames_error(spoken.refined, target)
    total = frames_error(spoken.frames, target) + refined + c.reduction * stop
    frames = jnp.isfinite(target[..., 0]).sum().astype(jnp.float32)
    metrics = {"mel": (refined, frames), "stop": (stop, steps.sum().astype(jnp.float32))}
    return Loss(total, frames, metrics, **sown)


def frames_error(frames: Float[Array, "b t bands"], target: Float[Array, "b t bands"]) -> Float[Array, ""]:
    """The sum over frames of the mean absolute error; infinities of the target are padding."""
    is_finite = jnp.isfinite(target)
    return jnp.where(is_finite, jnp.abs(frames - jnp.where(is_finite, target, 0)), 0).sum() / target.shape[-1]


# Speaking: frames one after the other, until the model predicts the end.


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


SYSTEM = System(
    model=Synthesiser,
    objective=lambda config, _: synthesis_objective,
    search=synthesis_search,
    attentions=cross_attention,
    alignment=partial(sown_attention, cross_attention),  # the model shifts the frames itself
    task=TextToSpeech,
)
