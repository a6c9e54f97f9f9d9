"""Language models: Transformer-XL (Dai et al. 2019), a decoder-only Transformer, which reads the states of
earlier segments; the loss of running text, and the system."""

import math
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.options import Config
from transformer.config.records import StreamConfig
from transformer.decoding.forced import forced_scores
from transformer.decoding.searches.search import AutoregressiveSearch, limits_of_options
from transformer.model.cache import Cache, KeysValues
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.masks import Mask
from transformer.model.normalization import normalization
from transformer.model.parameters import Variables
from transformer.model.positions import PositionEncoding, Positions
from transformer.model.stack import EncoderLayer
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.language_model.task import LanguageModelling
from transformer.systems.system import System
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Carry, Context, Loss, Objective, apply_training

States = tuple[Float[Array, "b _ m"], ...]
"""What the attention of each layer reads."""


@struct.dataclass
class Past:
    """The memory of rows that read a text: the last states of each layer, `[rows, memory, d_model]`."""

    layers: States
    documents: Int[Array, "b p"]
    """The number of the document that each belongs to, from 1; 0: nothing was read yet."""
    last: Int[Array, " b"]
    """The number of the last document."""

    @classmethod
    def empty(cls, config: LanguageModelConfig, rows: int, memory: int) -> "Past":
        """The memory before the first segment, which has no states of a text."""
        states = jnp.zeros((rows, memory, config.d_model), config.compute_dtype)
        return cls(
            (states,) * config.num_layers, jnp.zeros((rows, memory), jnp.int32), jnp.ones(rows, jnp.int32)
        )

    def after(self, states: States, documents: Int[Array, "b t"]) -> "Past":
        """The memory of the same size after a segment. It has no gradient."""
        size = self.documents.shape[1]

        def newest(old: Array, new: Array) -> Array:
            joined = jnp.concatenate([old, new.astype(old.dtype)], axis=1)
            return jax.lax.stop_gradient(joined[:, joined.shape[1] - size :])

        layers = tuple(map(newest, self.layers, states))
        return Past(layers, newest(self.documents, documents), jnp.maximum(self.last, documents.max(axis=1)))


@struct.dataclass
class Prompt:
    """What generation reads of a prompt. Its last token is the first input of the search."""

    layers: States
    mask: Bool[Array, "b p"]
    """False for padding and for the last token."""
    last: Int[Array, " b"]
    """The last token."""
    length: Int[Array, " b"]
    """The tokens before it."""


class Layer(EncoderLayer):
    """Self-attention to earlier states and to its own input, then feed-forward."""

    config: LanguageModelConfig

    def __call__(  # type: ignore[override]
        self,
        x: Float[Array, "b t m"],
        past: Float[Array, "b p m"],
        is_token: Bool[Array, "b t"],
        mask: Mask,
        positions: tuple[Positions, Positions],
        deterministic: bool,
    ) -> tuple[Float[Array, "b t m"], Float[Array, "b t m"]]:
        """All positions at once. Also returns what the attention has read, besides the past."""
        inputs = x

        def attend(x: Array) -> Array:
            nonlocal inputs
            inputs = x
            attended = jnp.concatenate([past.astype(x.dtype), x], axis=1) if past.shape[1] else x
            keys_values = self.self_attention.keys_values(attended, positions[1])
            return self.self_attention(x, keys_values, mask, positions, deterministic)[0]

        def transform(x: Array) -> Array:
            return self.feed_forward(x, deterministic)

        x = self.self_residual(x, attend, deterministic, is_token)
        return self.feed_forward_residual(x, transform, deterministic, is_token), inputs

    def decode_step(
        self,
        x: Float[Array, "b n m"],
        beam_cache: KeysValues,
        cache: Cache,
        prompt: KeysValues,
        mask: Mask,
        key_positions: Positions,
    ) -> tuple[Float[Array, "b n m"], KeysValues]:
        """One new token in each of n beams, which attends to the prompt and to the beam's own past.

        Args:
          beam_cache: the layer's keys and values of each beam.
          cache: that of the decoder, without its layers.
          prompt: keys and values of the prompt, shared by all beams.
          mask: of the prompt and of the beams' past.
          key_positions: of both.
        """
        positions = cache.positions[:, None]

        def attend(x: Array) -> Array:
            nonlocal beam_cache
            keys_values = self.self_attention.keys_values(x, positions)
            beam_cache = beam_cache.append(keys_values, cache.column, cache.positions)
            joined = jax.tree.map(
                lambda p, q: jnp.concatenate([p.astype(q.dtype), q], axis=2), prompt, beam_cache
            )
            return self.self_attention(x, joined, mask, (positions, key_positions))[0]

        x = self.self_residual(x, attend)
        return self.feed_forward_residual(x, self.feed_forward), beam_cache


class LanguageModel(EncoderDecoder):
    """A decoder-only Transformer. `advance` reads a segment of running text. For searches, the prompt takes
    the place of a source: `encode` reads it, and decoding continues it."""

    config: LanguageModelConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        layer = nn.remat(Layer, static_argnums=(6,)) if c.remat else Layer
        self.layers = [layer(c) for _ in range(c.num_layers)]
        self.encoding = PositionEncoding(c)
        if c.normalizes_output:
            self.norm = normalization(c)

    def advance(
        self, ids: Int[Array, "b t"], past: Past, deterministic: bool = True
    ) -> tuple[Float[Array, "b t m"], Past]:
        """The last hidden states of a segment, and the memory after it.

        Args:
          ids: the inputs, <bos> before each document; <pad> after the end.
          past: the memory before the segment.
          deterministic: whether to leave out dropout.
        """
        special = self.config.special
        memory = past.documents.shape[1]
        is_token = ids != special.pad
        documents = jnp.where(is_token, past.last[:, None] + jnp.cumsum(ids == special.bos, axis=1), 0)
        mask = Mask(
            segments=(documents, jnp.concatenate([past.documents, documents], axis=1)),
            causal=True,
            window=self.config.window,
        )
        time = jnp.arange(ids.shape[1] + memory)
        positions = (time[memory:], time)
        hidden, states = self._stack(ids, past.layers, is_token, mask, positions, deterministic)
        return hidden, past.after(states, documents)

    def _stack(
        self,
        ids: Int[Array, "b t"],
        past: States,
        is_token: Bool[Array, "b t"],
        mask: Mask,
        positions: tuple[Positions, Positions],
        deterministic: bool,
    ) -> tuple[Float[Array, "b t m"], States]:
        x = self.encoding(self.embed_target(ids), positions[0], deterministic)
        by_layer = []
        for layer, states in zip(self.layers, past, strict=True):
            x, inputs = layer(x, states, is_token, mask, positions, deterministic)
            by_layer.append(inputs)
        return self.norm(x, is_token, deterministic) if self.config.normalizes_output else x, tuple(by_layer)

    # Generation: every token attends to as many earlier ones as the memory of evaluation has

    @property
    def reach(self) -> int | None:
        """How far back a generated token attends. None: to the beginning."""
        limits = [x for x in (self.config.attended or None, self.config.window) if x is not None]
        return min(limits, default=None)

    def encode(self, source: Int[Array, "b s"], *, deterministic: bool = True) -> Prompt:
        """Reads prompts, each with <bos> before it and <pad> after it."""
        source_mask = source != self.config.special.pad
        time = jnp.arange(source.shape[1])
        no_past = (
            jnp.zeros((len(source), 0, self.config.d_model), self.config.compute_dtype),
        ) * self.config.num_layers
        mask = Mask(keys=source_mask, causal=True, window=self.reach)
        _, states = self._stack(source, no_past, source_mask, mask, (time, time), deterministic)
        length = jnp.maximum(source_mask.sum(axis=1) - 1, 0)
        last = jnp.take_along_axis(source, length[:, None], axis=1)[:, 0]
        return Prompt(states, time < length[:, None], last, length)

    def decode(
        self,
        memory: Prompt,
        decoder_input: Int[Array, "b t"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        is_token = decoder_input != self.config.special.pad
        time = jnp.arange(decoder_input.shape[1])
        ids = decoder_input.at[:, 0].set(memory.last)
        before = jnp.broadcast_to(jnp.arange(memory.mask.shape[1]), memory.mask.shape)
        positions = memory.length[:, None] + time
        key_positions = jnp.concatenate([before, positions], axis=1)
        distance = positions[:, :, None] - key_positions[:, None, :]
        seen = jnp.concatenate([memory.mask, jnp.ones_like(is_token)], axis=1)[:, None, :]
        mask = Mask(pairs=seen & (distance >= 0) & self._near(distance))
        return self._stack(ids, memory.layers, is_token, mask, (positions, key_positions), deterministic)[0]

    def _near(self, distance: Array) -> Array:
        return distance <= (jnp.iinfo(jnp.int32).max if self.reach is None else self.reach)

    def init_cache(self, memory: Prompt, beam_size: int, length: int) -> Cache:
        c = self.config
        rows = memory.mask.shape[0]
        columns = length * beam_size
        time = jnp.arange(memory.mask.shape[1])
        prompts = tuple(
            layer.self_attention.keys_values(states, time)
            for layer, states in zip(self.layers, memory.layers, strict=True)
        )
        keys = jnp.zeros((rows, c.num_heads, columns, c.key_width), c.compute_dtype)
        values = jnp.zeros((rows, c.num_heads, columns, c.value_width), c.compute_dtype)
        source = (prompts, replace(memory, layers=()))
        empty = Cache.empty((KeysValues(keys, values),) * c.num_layers, source, rows, (beam_size, columns))
        return replace(empty, positions=memory.length)

    def decode_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Cache]:
        cache = cache.begin_step()
        prompts, prompt = cache.source
        begins = (cache.positions == prompt.length)[:, None]
        tokens = jnp.where(begins, prompt.last[:, None], tokens)
        x = self.encoding(self.embed_target(tokens), cache.positions[:, None])
        mask, key_positions = self._of_beams(cache, prompt, tokens.shape[1])
        layers: list[Any] = []
        for layer, beam_cache, keys_values in zip(self.layers, cache.layers, prompts, strict=True):
            x, beam_cache = layer.decode_step(x, beam_cache, cache, keys_values, mask, key_positions)
            layers.append(beam_cache)
        hidden = self.norm(x) if self.config.normalizes_output else x
        return self.output(hidden), cache.end_step(layers)

    def _of_beams(self, cache: Cache, prompt: Prompt, beams: int) -> tuple[Mask, Positions]:
        """The mask and the positions of the prompt and of the beams' past."""
        before = jnp.broadcast_to(jnp.arange(prompt.mask.shape[1]), prompt.mask.shape)
        is_near = self._near(cache.positions[:, None] - before)
        of_prompt = jnp.broadcast_to((prompt.mask & is_near)[:, None], (len(before), beams, before.shape[1]))
        of_past = cache.mask(self.reach).pairs
        assert of_past is not None
        pairs = jnp.concatenate([of_prompt, of_past], axis=2)
        return Mask(pairs=pairs), jnp.concatenate([before, cache.key_positions()], axis=1)


# The loss of running text.


def initial_memory(config: Config, evaluating: bool) -> Carry:
    """The memory before the first segment, of training or of evaluation; empty if there is none."""
    model, data = config.model, config.data
    assert isinstance(model, LanguageModelConfig)
    assert isinstance(data, StreamConfig)
    memory = model.attended if evaluating else model.memory
    return Past.empty(model, data.rows, memory) if memory else ()


def language_model_objective(config: Config) -> Objective:
    """Label-smoothed cross-entropy of each token, given those before it in the segment and in the memory.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, both of each token;
    `bits`, the same in bits of each character, and `word_nll`, in nats of each word.
    """
    smoothing = config.training.label_smoothing

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, LanguageModel)
        past = context.carry or Past.empty(model.config, len(batch["source"]), 0)

        def run(model: LanguageModel) -> tuple[tuple[Array, Array], Past]:
            hidden, after = model.advance(batch["source"], past, context.deterministic)
            return model.output_factors(hidden), after

        ((hidden, table), after), sown = apply_training(
            model, variables, context, rngs=context.rngs("dropout"), method=run
        )
        is_token = (batch["target"] != model.config.special.pad).astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(hidden, table, batch["target"], is_token, smoothing)
        weight = is_token.sum()
        metrics = {
            "nll": (nll, weight),
            "correct": (correct, weight),
            "bits": (nll / math.log(2), batch["characters"].sum()),
            "word_nll": (nll, batch["words"].sum()),
        }
        return Loss(loss, weight, metrics, carry=after if context.carry else (), **sown)

    return objective


SYSTEM = System(
    model=LanguageModel,
    objective=lambda config, _: language_model_objective(config),
    search=AutoregressiveSearch(limits=limits_of_options),
    scores=forced_scores,
    task=LanguageModelling,
    carry=initial_memory,
)
