"""The base class of encoder-decoders, with embeddings and logits (section 3.4)."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import ModelConfig, SpecialIds
from transformer.config.ranges import instance, typed
from transformer.model.cache import Cache
from transformer.model.layers import Embedding
from transformer.model.parameters import Module, QuantizedMatrix, check_array, check_ids, logits, param
from transformer.runtime.errors import UserError

Memory = Any
"""What a decoder reads of the source: a pytree of arrays with rows first, of the model's own type."""
Source = Int[Array, "b s"] | Float[Array, "b *shape"]
"""Ids, or numbers, such as frames of sound or pictures."""
SOURCE = "source"
"""The argument of a model's methods that the encoder reads."""
DECODER_INPUT = "decoder_input"
"""The argument of a model's methods that the decoder reads."""
EARLIER = "target"
"""The earlier name of this argument, which callers may use, and models of other packages may have."""
NOISE, OF_INPUTS = "noise", "of_inputs"
"""The collection, and the variable in it, of what a search does to the embedded tokens that it reads."""
Segments = tuple[Int[Array, "b s"], Int[Array, "b t"]]
"""The index of the sentence in its row of each source and target token, from 1; 0 is padding."""


def packed(segments: Any) -> dict[str, Any]:
    """The argument of methods that only models of packed rows take."""
    return {} if segments is None else {"segments": segments}


def decoder_argument(method: Callable[..., Any]) -> str:
    """The name of the argument of a model's method that the decoder reads."""
    return EARLIER if EARLIER in inspect.signature(method).parameters else DECODER_INPUT


class ChecksInputs(Module):
    """A module whose methods refuse a `source` or `decoder_input` that is no array or empty, and take
    `decoder_input` by its earlier name, too."""

    def __init_subclass__(cls, **options: Any) -> None:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not (name.startswith("_") and name != "__call__"):
                setattr(cls, name, _checked(method))
        super().__init_subclass__(**options)


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with checks of what the encoder and the decoder read, if it takes any of it."""
    names = list(inspect.signature(method).parameters)
    checks = {SOURCE: check_array, DECODER_INPUT: check_ids}
    indices = {name: names.index(name) for name in checks if name in names}
    if not indices:
        return method

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if EARLIER in options and DECODER_INPUT in indices and DECODER_INPUT not in options:
            options[DECODER_INPUT] = options.pop(EARLIER)
        for name, index in indices.items():
            if name in options or index < len(arguments):
                checks[name](name, options[name] if name in options else arguments[index])
        return method(*arguments, **options)

    return call


class EncoderDecoder(ChecksInputs):
    """The base class of models, applied as `model.apply(variables, source, decoder_input)`.

    A model adds `encode` and `decode`, and for searches `init_cache` and `decode_step`.
    """

    config: ModelConfig
    reads_unknown: ClassVar[bool] = False
    """Whether source ids above those of the vocabulary are words that it lacks."""

    def __post_init__(self) -> None:
        instance("config", self.config, self.__dataclass_fields__["config"].type)
        super().__post_init__()

    def setup(self) -> None:
        c = self.config
        if c.vocab_size < 1:
            raise ValueError("the config's vocab_size is not set")
        self.source_embedding = Embedding(c.of_encoder, c.vocab_size)
        if not c.shares_inputs:
            self.target_embedding = Embedding(c, c.output_size)
        if c.share_embeddings in ("inputs", "none"):
            self.output_embedding = Embedding(c, c.output_size)
        if c.output_bias:
            zeros = nn.initializers.zeros_init()
            self.output_bias = param(self, "output_bias", zeros, (c.output_size,), ("vocabulary",))

    def __call__(
        self,
        source: Source,
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t v"]:
        """Teacher forcing: logits of every next token.

        Args:
          source: ids, each sentence closed by <eos>, then <pad>.
          decoder_input: the target shifted right (`transformer.decoder_input`): <bos>, then all tokens but
            the last one. logits[:, i] predict target[:, i], the token after decoder_input[:, :i+1].
          segments: for packed rows, the sentence of each token.
          deterministic: False draws dropout masks from the rng named "dropout".
        """
        return self.output(self.hidden(source, decoder_input, segments=segments, deterministic=deterministic))

    def hidden(
        self,
        source: Source,
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        """The decoder's last hidden states, the input of `output`. The loss computes logits in slices."""
        memory = self.encode(source, **packed(segments and segments[0]), deterministic=deterministic)
        return self.decode(memory, decoder_input, **packed(segments), deterministic=deterministic)

    def encode(self, source: Source, *, deterministic: bool = True) -> Memory:
        """What the decoder reads of the source: a pytree of arrays with rows first. If the system packs
        sentences into rows, it and `decode` also take `segments`, the sentence of each token."""
        raise NotImplementedError

    @nn.nowrap
    def source_mask(self, source: Array) -> Bool[Array, "b s"]:
        """True at positions of the memory that are not padding.

        Raises:
          UserError: the source is not ids, and the model has no `source_mask` of its own.
        """
        if source.ndim > 2:
            raise UserError(
                f"{type(self).__name__} reads a source of the shape {source.shape}: define its source_mask, "
                "which says which positions of the memory are no padding, [rows, positions]"
            )
        check_ids(SOURCE, source)
        return source != self.config.special.pad

    @nn.nowrap
    def target_mask(self, target: Array) -> Bool[Array, "b t"]:
        """True at steps of the decoder that are not padding."""
        return target != self.config.special.pad

    def decode(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        """The decoder's last hidden states, with teacher forcing.

        Args:
          memory: what `encode` returned.
          decoder_input: the target shifted right, <pad> where nothing is to be predicted.
          deterministic: False draws dropout masks.
          embedded: replaces the embedded `decoder_input`.
        """
        raise NotImplementedError

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """An empty cache for `beam_size` hypotheses of each row, of up to `length` tokens."""
        raise NotImplementedError

    def decode_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Cache]:
        """Logits of the token after each beam's newest one, and the cache that includes the newest one."""
        raise NotImplementedError

    def output(self, hidden: Float[Array, "b t m"]) -> Float[Array, "b t v"]:
        """Logits, in float32."""
        product = logits(self.scaled(hidden), self.unembedding())
        return product + self.output_bias if self.config.output_bias else product

    def output_factors(
        self, hidden: Float[Array, "b t m"]
    ) -> tuple[Float[Array, "b t f"], Float[Array, "v f"]]:
        """The two factors of the logits, which the loss multiplies slice by slice. A bias is one more column
        of the matrix, where every state is 1."""
        table = self.unembedding()
        assert not isinstance(table, QuantizedMatrix), "quantised matrices are not trained"
        hidden = self.scaled(hidden)
        if not self.config.output_bias:
            return hidden, table
        ones = jnp.ones((*hidden.shape[:2], 1), hidden.dtype)
        return jnp.concatenate([hidden, ones], -1), jnp.concatenate([table, self.output_bias[:, None]], -1)

    def scaled(self, hidden: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
        """The factor of the pre-softmax matrix."""
        return hidden * self.config.d_model**-0.5 if self.config.scale_output else hidden

    def unembedding(self) -> Float[Array, "v m"] | QuantizedMatrix:
        """The pre-softmax matrix."""
        match self.config.share_embeddings:
            case "all":
                return self.source_embedding.table
            case "target":
                return self.target_embedding.table
            case _:
                return self.output_embedding.table

    def embed_target(self, ids: Int[Array, "b t"]) -> Float[Array, "b t m"]:
        """Embeds target tokens; with the noise of a search, if it has some."""
        shared = self.config.shares_inputs
        embedded: Array = self.source_embedding(ids) if shared else self.target_embedding(ids)
        if self.config.zero_start:
            embedded = jnp.where((ids == self.config.special.bos)[..., None], 0, embedded)
        if self.has_variable(NOISE, OF_INPUTS):
            embedded = self.get_variable(NOISE, OF_INPUTS)(embedded)
        return embedded


@typed
def decoder_input(
    target: Int[Array, "b t"], special: SpecialIds, segments: Int[Array, "b t"] | None = None
) -> Int[Array, "b t"]:
    """The decoder input of a target: shifted right, and <pad> where the target is padding. So a model knows
    from its input which positions are there.

    Args:
      target: ids, each sentence closed by <eos>, then <pad>.
      special: the model's special ids, `model.config.special`.
      segments: for packed rows, the sentence of each token.
    """
    check_ids("target", target)
    if segments is not None:
        check_ids("segments", segments)
        if segments.shape != target.shape:
            raise UserError(f"segments {segments.shape} must have the shape of the target, {target.shape}")
    return jnp.where(target == special.pad, special.pad, shift_right(target, special.bos, segments))


def shift_right(
    target: Int[Array, "b t"], bos: int, segments: Int[Array, "b t"] | None = None
) -> Int[Array, "b t"]:
    """The target shifted right by one, with <bos> before every sentence."""
    shifted = jnp.pad(target, ((0, 0), (1, 0)), constant_values=bos)[:, :-1]
    if segments is None:
        return shifted
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return jnp.where(first, bos, shifted)
