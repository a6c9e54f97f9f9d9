"""Speech synthesis: a Transformer that speaks (Li et al. 2019), text in, frames of sound out, and what models
that speak have in common; the loss of frames and of the stop token; and a search that writes frames one after
the other."""

import functools
import math
from typing import Any, NamedTuple

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
from transformer.model.layers import Affine, Dropout
from transformer.model.parameters import Axes, Module, Variables, param
from transformer.model.stack import Memory
from transformer.model.transformer import Transformer, cross_attention
from transformer.systems.synthesis.options import (
    SynthesisConfig,
    SynthesisDecodingConfig,
    VoiceConfig,
    VoiceDecodingConfig,
)
from transformer.systems.synthesis.task import TextToSpeech
from transformer.systems.system import System
from transformer.training.objective import Batch, Context, Loss, apply_training

# What models that speak have in common: frames of sound as their output, and the post-net.


class Convolution(Module):
    """A centred convolution over a sequence."""

    width: int
    kernel_width: int
    axes: Axes = (None, "hidden")
    """The names of the axes of its input and output."""

    @nn.compact
    def __call__(self, x: Float[Array, "b t c"]) -> Float[Array, "b t d"]:
        shape, side = (self.kernel_width, x.shape[-1], self.width), self.kernel_width // 2
        initial = nn.initializers.glorot_uniform((0, 1), 2)
        kernel = param(self, "kernel", initial, shape, (None, *self.axes))
        bias = param(self, "bias", nn.initializers.zeros_init(), (self.width,), self.axes[1:])
        y = jax.lax.conv_general_dilated(
            x, kernel.astype(x.dtype), (1,), [(side, side)], dimension_numbers=("NWC", "WIO", "NWC")
        )
        return y + bias.astype(y.dtype)


class Voice(Transformer):
    """A Transformer whose decoder writes frames of sound, `reduction` of them in a step."""

    config: VoiceConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.to_frames = Affine(c.reduction * c.bands, ("model", None))
        widths = [*[c.postnet_width] * (c.postnet_layers - 1), c.bands] if c.postnet_layers else []
        self.postnet = [Convolution(width, 5) for width in widths]  # frames (Shen et al. 2018, section 2.2)

    def frames(self, hidden: Float[Array, "b s m"]) -> Float[Array, "b t bands"]:
        """The frames that the decoder's states write."""
        frames = self.to_frames(hidden).astype(jnp.float32)
        return frames.reshape(hidden.shape[0], -1, self.config.bands)

    def refine(
        self, frames: Float[Array, "b t bands"], frame_mask: Bool[Array, "b t"]
    ) -> Float[Array, "b t bands"]:
        """The frames, with what the post-net adds."""
        x = jnp.where(frame_mask[..., None], frames, 0)
        for number, layer in enumerate(self.postnet, 1):
            y = layer(x) if number == len(self.postnet) else jnp.tanh(layer(x))
            x = jnp.where(frame_mask[..., None], y, 0)
        return frames + x if self.postnet else frames

    @nn.nowrap
    def target_mask(self, target: Float[Array, "b t bands"]) -> Bool[Array, "b s"]:  # type: ignore[override]
        """Which steps of the decoder are not padding."""
        return jnp.isfinite(target[..., 0])[:, :: self.config.reduction]


PRENET_MASKS = "kept"
"""The masks of the pre-net that a search gives it, in the collection "noise"."""


class Spoken(NamedTuple):
    """What the decoder predicts."""

    frames: Float[Array, "b t bands"]
    """The frames before the post-net."""
    refined: Float[Array, "b t bands"]
    """The frames after the post-net."""
    stop: Float[Array, "b s"]
    """Logit that a step is the last."""


class Prenet(Module):
    """Two layers with ReLU and dropout, which the last frame goes through: without them the decoder would
    only copy it (Li et al. 2019, section 3.3)."""

    config: SynthesisConfig

    @nn.compact
    def __call__(self, frames: Float[Array, "b s bands"], deterministic: bool) -> Float[Array, "b s m"]:
        c = self.config
        x = frames.astype(c.compute_dtype)
        masks = self.get_variable(NOISE, PRENET_MASKS) if self.has_variable(NOISE, PRENET_MASKS) else None
        for layer in range(2):
            x = jax.nn.relu(Affine(c.prenet_width, (None, "hidden"), name=f"layer_{layer}")(x))
            if masks is not None:
                x = x * masks[layer][:, None, :].astype(x.dtype)
            else:
                x = Dropout(c.prenet_dropout)(x, deterministic)
        return Affine(c.d_model, ("hidden", "model"), name="out")(x)


class Synthesiser(Voice):
    """An autoregressive synthesiser: a step of the decoder reads the last frame and predicts `reduction`
    frames."""

    config: SynthesisConfig

    def setup(self) -> None:
        super().setup()
        self.prenet = Prenet(self.config)
        self.to_stop = Affine(1, ("model", None))

    def __call__(  # type: ignore[override]
        self,
        source: Int[Array, "b s"],
        target: Float[Array, "b t bands"],
        *,
        deterministic: bool = True,
    ) -> Spoken:
        """Teacher forcing.

        Args:
          source: ids, each text closed by <eos>, then <pad>.
          target: the frames to speak, then infinities.
          deterministic: False draws dropout masks from the rng named "dropout".
        """
        memory = self.encode(source, deterministic=deterministic)
        frame_mask = jnp.isfinite(target[..., 0])
        hidden = self.decode(memory, target, deterministic=deterministic)
        frames = self.frames(hidden)[:, : target.shape[1]]
        return Spoken(frames, self.refine(frames, frame_mask), self.stops(hidden))

    def decode(  # type: ignore[override]
        self,
        memory: Memory,
        target: Float[Array, "b t bands"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b s m"] | None = None,
    ) -> Float[Array, "b s m"]:
        """The decoder's last states: a step reads the frame before its own, zeros at the beginning."""
        c = self.config
        step_mask = self.target_mask(target)
        x = jnp.where(jnp.isfinite(target), target, 0)
        last = x[:, c.reduction - 1 :: c.reduction]
        before = jnp.pad(last, ((0, 0), (1, 0), (0, 0)))[:, : step_mask.shape[1]]
        ids = jnp.where(step_mask, c.special.bos, c.special.pad)
        prenet_output = self.prenet(before, deterministic)
        return super().decode(memory, ids, deterministic=deterministic, embedded=prenet_output)

    def stops(self, hidden: Float[Array, "b s m"]) -> Float[Array, "b s"]:
        """The logit that a step is the last."""
        return self.to_stop(hidden)[..., 0].astype(jnp.float32)

    def embed_target(self, frames: Float[Array, "b s bands"]) -> Float[Array, "b s m"]:  # type: ignore[override]
        """What the decoder reads of the last frame, while it speaks."""
        return self.prenet(frames, True)

    def decode_step(self, cache: Cache, tokens: Any) -> tuple[Any, Cache]:
        """The next frames `[b, reduction, bands]` and the logit that they are the last `[b]`, given the last
        frame `[b, 1, bands]`."""
        hidden, cache = self.hidden_step(cache, tokens)
        return (self.frames(hidden), self.stops(hidden)[:, 0]), cache


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
    alignment=functools.partial(sown_attention, cross_attention),  # the model shifts the frames itself
    task=TextToSpeech,
)
