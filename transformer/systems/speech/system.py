"""Speech recognition: a Transformer that hears (Dong et al. 2018), in which convolutions shorten the frames
of sound before the encoder; the objective of training with CTC (Watanabe et al. 2017), or of CTC alone."""

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.decoding import DecodingConfig
from transformer.config.model import ModelConfig, SpecialIds
from transformer.config.options import Config
from transformer.data.signals.audio import masked
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import Hooks
from transformer.decoding.scores import Limits
from transformer.decoding.searches.ctc import LOG_PROBS, POSITIONS, CtcScores, CtcSearch
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.cache import Cache, KeysValues, join_heads, put_rows
from transformer.model.encoder_decoder import Segments
from transformer.model.layers import ACTIVATIONS, Affine
from transformer.model.masks import Mask
from transformer.model.parameters import Module, Variables, param
from transformer.model.stack import LayerPast, Memory
from transformer.model.transformer import Transformer, cross_attention
from transformer.model.variants.ctc import labels_of, log_likelihoods, log_probs_of, positions_needed
from transformer.systems.speech.options import PROMPT, SpeechConfig, ctc_weight_of
from transformer.systems.speech.task import SpeechToText
from transformer.systems.system import System, autoregressive
from transformer.training.objective import (
    Batch,
    Context,
    Loss,
    Metrics,
    Objective,
    TranslationObjective,
    apply_training,
    translation_objective,
)

# Decoding after a prompt: the text before a recording, which its output continues (Whisper, Radford et al.
# 2022, section 2.3). The decoder reads the prompt in one pass, and the keys and values of its tokens are
# those before the output.


@struct.dataclass
class PromptedMemory(Memory):
    """What the decoder reads: of the recording, and before its output."""

    prompt: Int[Array, "b p"]
    """Ids, then <pad>."""


@struct.dataclass
class PromptedKeysValues(KeysValues):
    """A ring as in `KeysValues`, after the entries of the prompt."""

    prompt: int = struct.field(pytree_node=False, default=0)
    """How many entries the prompt has."""

    def append(
        self, new: KeysValues, column: Int[Array, ""], positions: Int[Array, " b"]
    ) -> "PromptedKeysValues":

        def written(old: Array, x: Array) -> Array:
            x = join_heads(x) if x.shape[1] != old.shape[1] else x
            start = self.prompt + column * x.shape[2]
            return jax.lax.dynamic_update_slice_in_dim(old, x.astype(old.dtype), start, axis=2)

        return replace(self, keys=written(self.keys, new.keys), values=written(self.values, new.values))

    def put_rows(self, rows: Int[Array, " r"], new: KeysValues) -> "PromptedKeysValues":
        """The ring with the prompts of these rows. A row that is reset has no other past."""

        def begun(old: Array, other: Array) -> Array:
            return old.at[rows, :, : self.prompt].set(other[:, :, : self.prompt], mode="drop")

        return replace(self, keys=begun(self.keys, new.keys), values=begun(self.values, new.values))


@struct.dataclass
class PromptedCache(Cache):
    """A cache whose rows begin with a prompt."""

    prompt_mask: Bool[Array, "b p"] | None = None
    """False for padding."""

    def mask(self, window: int | None = None) -> Mask:
        """The prompt, and each beam's past."""
        assert self.prompt_mask is not None
        past = super().mask(window).pairs
        assert past is not None
        shape = (*past.shape[:2], self.prompt_mask.shape[1])
        return Mask(pairs=jnp.concatenate([jnp.broadcast_to(self.prompt_mask[:, None], shape), past], axis=2))

    def key_positions(self) -> Int[Array, "b entries"]:
        assert self.prompt_mask is not None
        before = jnp.broadcast_to(jnp.arange(self.prompt_mask.shape[1]), self.prompt_mask.shape)
        return jnp.concatenate([before, super().key_positions()], axis=1)

    def put_rows(self, rows: Int[Array, " r"], new: Cache) -> "PromptedCache":
        assert isinstance(new, PromptedCache)
        mask = put_rows(self.prompt_mask, rows, new.prompt_mask)
        cache = super().put_rows(rows, new)
        assert isinstance(cache, PromptedCache)
        return replace(cache, prompt_mask=mask)


def after_prompt(cache: Cache, prompts: tuple[KeysValues, ...], mask: Bool[Array, "b p"]) -> PromptedCache:
    """An empty cache whose rows begin with prompts.

    Args:
      cache: before its first step.
      prompts: the keys and values of the prompts in each layer.
      mask: False for their padding.
    """

    def with_prompt(ring: KeysValues, prompt: KeysValues) -> PromptedKeysValues:
        arrays = ((prompt.keys, ring.keys), (prompt.values, ring.values))
        keys, values = (jnp.concatenate([x.astype(y.dtype), y], axis=2) for x, y in arrays)
        return PromptedKeysValues(keys, values, prompt=mask.shape[1])

    layers = tuple(
        replace(layer, past=with_prompt(layer.past, prompt))
        for layer, prompt in zip(cache.layers, prompts, strict=True)
    )
    return PromptedCache(
        layers=layers,
        column=cache.column,
        positions=mask.sum(axis=1),
        source=cache.source,
        ancestors=cache.ancestors,
        prompt_mask=mask,
    )


SILENCE = float("-inf")
"""What pads frames."""
FRAMES = 4
"""No speech has more than a token in so many frames (40 ms)."""


class Convolution(Module):
    """f(W x + b) of a few frames around each one, or around every second one."""

    config: SpeechConfig
    stride: int

    @nn.compact
    def __call__(self, x: Float[Array, "b t c"], frame_mask: Bool[Array, "b t"]) -> Float[Array, "b u d"]:
        """The convolved frames: as many as before, or half as many. Padding counts as zeros, wherever a batch
        has it."""
        c = self.config
        shape, side = (c.kernel_width, x.shape[-1], c.channels), c.kernel_width // 2
        initial = nn.initializers.he_uniform((0, 1), 2)
        kernel = param(self, "kernel", initial, shape, (None, None, "hidden"))
        bias = param(self, "bias", nn.initializers.zeros_init(), (c.channels,), ("hidden",))
        x = jnp.where(frame_mask[..., None], x, 0)
        y = jax.lax.conv_general_dilated(
            x, kernel.astype(x.dtype), (self.stride,), [(side, side)], dimension_numbers=("NWC", "WIO", "NWC")
        )
        return ACTIVATIONS[c.convolution_activation](y + bias.astype(y.dtype))


class SpeechTransformer(Transformer):
    """A Transformer whose source is frames of sound, with `SILENCE` after each recording."""

    config: SpeechConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.convolutions = [Convolution(c, 1) for _ in range(c.first_convolutions)]
        self.halvings = [Convolution(c, 2) for _ in range(c.convolutions)]
        if c.front_projection:
            self.front = Affine(c.of_encoder.d_model, ("hidden", "model"))
        if c.ctc_weight:
            self.ctc_head = Affine(c.output_size, ("model", "vocabulary"))

    def __call__(
        self,
        source: Float[Array, "b t bands"],  # type: ignore[override]
        decoder_input: Int[Array, "b u"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b u v"]:
        """Teacher forcing: logits of every next token. With CTC alone, which reads no tokens, log P of each
        token at each position of the encoder."""
        if self.config.ctc_weight == 1:
            return self.ctc_log_probs(self.encode(source, deterministic=deterministic))
        return super().__call__(source, decoder_input, segments=segments, deterministic=deterministic)

    def hidden(
        self,
        source: Float[Array, "b t bands"],  # type: ignore[override]
        decoder_input: Int[Array, "b u"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b u m"]:
        memory = self.encode(source, deterministic=deterministic)
        if self.is_initializing() and self.config.ctc_weight:
            self.ctc_log_probs(memory)
        return self.decode(memory, decoder_input, segments=segments, deterministic=deterministic)

    def ctc_log_probs(self, memory: Memory) -> Float[Array, "b s v"]:
        """log P of each token, and of the blank, at each position (`transformer.model.variants.ctc`)."""
        return log_probs_of(self.ctc_head(memory.states), self.config.special)

    def steering(self, memory: Memory) -> dict[str, Array]:
        """What the hook `CtcScores` reads of the encoder, if there is CTC."""
        if not self.config.ctc_weight:
            return {}
        return {LOG_PROBS: self.ctc_log_probs(memory), POSITIONS: memory.mask.sum(axis=1)}

    @nn.nowrap
    def source_mask(self, source: Float[Array, "b t bands"]) -> Bool[Array, "b s"]:  # type: ignore[override]
        """Which of the shortened frames are not padding."""
        return self.frame_mask(source)[:, :: 2**self.config.convolutions]

    @nn.nowrap
    def frame_mask(self, source: Float[Array, "b t bands"]) -> Bool[Array, "b t"]:
        """Which frames are not padding."""
        return jnp.isfinite(source[..., 0])

    def encode(  # type: ignore[override]
        self,
        source: Float[Array, "b t bands"],
        *,
        deterministic: bool = True,
        every_layer: bool = False,
        prompt: Int[Array, "b p"] | None = None,
    ) -> Memory:
        """The encoder stack on shortened frames; in training, with masks over parts of the input. In a search
        outputs may continue a prompt: ids, then <pad>."""
        frame_mask = self.frame_mask(source)
        source_mask = self.source_mask(source)
        x = jnp.where(frame_mask[..., None], source, 0)
        if self.config.masks and not deterministic:
            x = self.spec_augment(x, frame_mask.sum(axis=1))
        x = x.astype(self.config.compute_dtype)
        for convolution in self.convolutions:
            x = convolution(x, frame_mask)
        for halving in self.halvings:
            x = halving(x, frame_mask)
            frame_mask = frame_mask[:, ::2]
        mask = Mask(keys=source_mask, window=self.config.window)
        positions = jnp.arange(x.shape[1])
        embedded = self.front(x) if self.config.front_projection else x
        memory = self.encode_embedded(embedded, source_mask, mask, positions, deterministic, every_layer)
        if prompt is None:
            return memory
        return PromptedMemory(memory.states, memory.mask, memory.layers, prompt)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        cache = super().init_cache(memory, beam_size, length)
        if not isinstance(memory, PromptedMemory):
            return cache
        prompt_mask = memory.prompt != self.config.special.pad
        return after_prompt(cache, self.prompt_keys_values(cache, memory.prompt, prompt_mask), prompt_mask)

    def prompt_keys_values(
        self, cache: Cache, prompt: Int[Array, "b p"], mask: Bool[Array, "b p"]
    ) -> tuple[KeysValues, ...]:
        """The keys and values of prompts in each layer: those of a step whose beams are the tokens of the
        prompt, each with those before it as its past."""
        rows, size = prompt.shape
        past = jnp.tril(jnp.ones((size, size), bool)) & mask[:, None]
        one_step = replace(Cache.empty((), (), rows, (size, size)), ancestors=past)
        x = self.target_positions(self.embed_target(prompt), jnp.arange(size))
        sources, source_mask = cache.source
        prompts = []
        for layer, beams, source in zip(self.decoder, cache.layers, sources, strict=True):
            ring = jax.tree.map(lambda y: jnp.zeros((*y.shape[:2], size, y.shape[3]), y.dtype), beams.past)
            begun = LayerPast(ring, layer.init_states(rows, size, source))
            x, after = layer.decode_step(x, begun, one_step, source, Mask(keys=source_mask))
            prompts.append(after.past)
        return tuple(prompts)

    def spec_augment(
        self, x: Float[Array, "b t bands"], lengths: Int[Array, " b"]
    ) -> Float[Array, "b t bands"]:
        """The masks of SpecAugment (Park et al. 2019), drawn from the rng named "dropout"."""
        c = self.config
        keys = jax.random.split(self.make_rng("dropout"), len(x))

        def of_row(x: Array, length: Array, key: Array) -> Array:
            return masked(
                x, length, key, bands=c.mask_bands, frames=c.mask_frames, times=c.masks, most=c.mask_share
            )

        return jax.vmap(of_row)(x, lengths, keys)


def limits_of_frames(inputs: Inputs, special: SpecialIds, options: DecodingConfig) -> Limits:
    """The limits of what is said in recordings, `inputs["source"]`: a token in every 40 ms, and
    `extra_length`. With a prompt, both share the positions of the decoder."""
    frames = inputs["source"][..., 0]
    longest = -(-frames.shape[1] // FRAMES) + options.extra_length
    longest = max(1, longest if options.max_length is None else min(longest, options.max_length))
    lengths = jnp.isfinite(frames).sum(axis=1)
    limits = jnp.clip(-(-lengths // FRAMES) + options.extra_length, 1, longest)
    if (prompt := inputs.get(PROMPT)) is not None:  # which may have half of the positions
        limits = jnp.minimum(limits, 2 * prompt.shape[1] - (prompt != special.pad).sum(axis=1))
    return Limits(jnp.where(lengths > 0, limits, 0), longest)


# The objective of recognition with CTC: joint training with attention (Watanabe et al. 2017), or alone.


def speech_objective(config: Config, _: Any = None) -> Objective:
    """Cross-entropy of the texts; with `--model.ctc-weight` also CTC, or CTC alone."""
    attention = translation_objective(config.training.label_smoothing)
    weight: float = config.model.ctc_weight
    return JointObjective(weight, attention) if weight else attention


@dataclass(frozen=True)
class JointObjective:
    """(1 - w) times the loss of attention and w times that of CTC, both sums over a batch.

    The weight of the batch is its number of target tokens, <eos> included. A recording that is too short for
    any path that spells its text has an infinite loss of CTC: it has no part in that sum. With CTC alone its
    tokens do not count in the weight either.

    The metrics are those of attention; `ctc`, the negative log-likelihood of CTC in nats for each token that
    counts in it; and `too_short`, whether a recording is. With CTC alone `ctc` is `nll` too.
    """

    ctc_weight: float
    attention: TranslationObjective

    def __call__(self, model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, SpeechTransformer)
        is_alone = self.ctc_weight == 1
        target_input, _ = self.attention.decoder_input(model, batch)
        (factors, log_probs, mask), sown = apply_training(
            model,
            variables,
            context,
            batch["source"],
            None if is_alone else target_input,
            deterministic=context.deterministic,
            rngs=context.rngs("dropout"),
            method=_outputs,
        )
        nll, counts, is_short = ctc_sums(log_probs, mask, batch["target"], model.config.special)
        is_token = batch["target"] != model.config.special.pad
        rows = is_token.any(axis=1).sum().astype(jnp.float32)
        metrics: Metrics = {"ctc": (nll, counts), "too_short": (is_short.sum().astype(jnp.float32), rows)}
        if is_alone:
            return Loss(nll, counts, {"nll": (nll, counts), **metrics}, **sown)
        loss = self.attention.of_factors(model, batch, factors, sown)
        total = (1 - self.ctc_weight) * loss.total + self.ctc_weight * nll
        return replace(loss, total=total, metrics={**loss.metrics, **metrics})


def ctc_sums(
    log_probs: Float[Array, "b s v"], mask: Bool[Array, "b s"], target: Array, special: SpecialIds
) -> tuple[Float[Array, ""], Float[Array, ""], Bool[Array, " b"]]:
    """The negative log-likelihood of CTC of the targets that have a path, the number of their tokens with
    <eos>, and which targets have none."""
    labels = labels_of(target, special)
    is_short = positions_needed(labels, special.pad) > mask.sum(axis=1)
    is_row = (target != special.pad).any(axis=1)
    is_counted = is_row & ~is_short
    nll = -log_likelihoods(log_probs, mask, labels, special.pad)
    counts = jnp.where(is_counted, (target != special.pad).sum(axis=1), 0).sum().astype(jnp.float32)
    return jnp.where(is_counted, nll, 0).sum(), counts, is_short & is_row


def _outputs(
    model: SpeechTransformer, source: Array, target: Array | None, *, deterministic: bool
) -> tuple[tuple[Array, Array] | None, Float[Array, "b s v"], Bool[Array, "b s"]]:
    """The two factors of the logits of attention (None: CTC alone), log P of CTC, and the encoder's mask."""
    memory = model.encode(source, deterministic=deterministic)
    log_probs = model.ctc_log_probs(memory)
    if target is None:
        return None, log_probs, memory.mask
    hidden = model.decode(memory, target, deterministic=deterministic)
    return model.output_factors(hidden), log_probs, memory.mask


def search_by_options(search: AutoregressiveSearch, model: ModelConfig, options: DecodingConfig) -> Any:
    """Attention, CTC, or both, as the options ask for it."""
    weight = ctc_weight_of(model, options)
    if weight == 1:
        return CtcSearch(search.limits)
    return replace(search, hooks=Hooks((CtcScores(weight, model.special),))) if weight else search


def by_model(system: System, model: ModelConfig) -> System:
    """What can be done with CTC alone, which has no decoder; with other models all."""
    if model.ctc_weight != 1:
        return system
    return replace(system, search=CtcSearch(limits_of_frames), attentions=None, alignment=None, scores=None)


SYSTEM = autoregressive(
    SpeechTransformer,
    cross_attention,
    objective=speech_objective,
    search=AutoregressiveSearch(limits=limits_of_frames, by_options=search_by_options),
    task=SpeechToText,
    by_model=by_model,
)
