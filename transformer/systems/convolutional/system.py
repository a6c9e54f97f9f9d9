"""Convolutional sequence to sequence (Gehring et al. 2017): gated convolutions, causal in the decoder, and
attention in every decoder layer."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.cache import Cache, States
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.layers import Dropout
from transformer.model.parameters import Module, Variables, declared, dense
from transformer.model.positions import sinusoids
from transformer.model.statistics import INTERMEDIATES, layers_sown
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.system import autoregressive

# Convolutional sequence to sequence (Gehring et al. 2017): gated convolutions, causal in the decoder, and
# attention in every decoder layer.


START = 0.1  # initial standard deviation of the embeddings, on which other scales build (section 3.5)
HALF = math.sqrt(0.5)  # keeps the variance of a sum of two (section 3.5)


@struct.dataclass
class Source:
    """The encoder's output z, and z + e, the output and the embedding it came from (section 3.3)."""

    keys: Float[Array, "b s m"]
    values: Float[Array, "b s m"]
    mask: Bool[Array, "b s"]


class GatedConvolution(Module):
    """Convolution to twice the width, half of which gates the other (section 3.2). The caller pads the
    input."""

    config: ConvolutionalConfig
    layer: int

    @nn.compact
    def __call__(self, x: Float[Array, "*b t m"], deterministic: bool) -> Float[Array, "*b u m"]:
        c = self.config
        spread = math.sqrt(4 * (1 - c.dropout) / (c.kernel_width * c.d_model))
        convolution = nn.Conv(
            2 * c.d_model,
            (c.kernel_width,),
            kernel_dilation=c.distance(self.layer),
            padding="VALID",
            kernel_init=declared(nn.initializers.normal(spread), (None, None, None)),
            bias_init=declared(nn.initializers.zeros_init(), (None,)),
            dtype=x.dtype,
        )
        return nn.glu(convolution(Dropout(c.dropout)(x, deterministic)))


def reach(config: ConvolutionalConfig, layer: int) -> int:
    """The distance between the first and the last position of a layer's kernel."""
    return (config.kernel_width - 1) * config.distance(layer)


class DecoderBlock(Module):
    """A causal gated convolution, attention, and a residual connection around both."""

    config: ConvolutionalConfig
    layer: int

    def setup(self) -> None:
        self.convolution = GatedConvolution(self.config, self.layer)
        c = self.config
        self.query, self.context = (dense(c.d_model, dtype=c.compute_dtype) for _ in range(2))

    def __call__(
        self,
        x: Float[Array, "b u m"],
        convolved: Float[Array, "b u m"],
        embedded: Float[Array, "b u m"],
        source: Source,
    ) -> Float[Array, "b u m"]:
        """The block's output, once its input has been convolved."""
        query = (self.query(convolved) + embedded) * HALF  # Eq. 1
        scores = jnp.einsum("bum,bsm->bus", query, source.keys, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(source.mask[:, None, :], scores, jnp.finfo(jnp.float32).min))
        self.sow(INTERMEDIATES, "weights", weights)
        # scaled up by the square root of the number of source tokens (section 3.5)
        length = source.mask.sum(axis=1)[:, None, None].astype(x.dtype)
        context = jnp.einsum("bus,bsm->bum", weights.astype(x.dtype), source.values) * jnp.sqrt(length)
        return ((convolved + self.context(context)) * HALF + x) * HALF


class Convolutional(EncoderDecoder):
    """The convolutional encoder-decoder."""

    config: ConvolutionalConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.encoder = [GatedConvolution(c, layer) for layer in range(c.num_layers)]
        self.decoder = [DecoderBlock(c, layer) for layer in range(c.num_layers)]
        self.dropout, self.readout = Dropout(c.dropout), dense(c.d_model, dtype=c.compute_dtype)

    def encode(self, source: Int[Array, "b s"], *, deterministic: bool = True) -> Source:
        """The encoder stack, with symmetric kernels."""
        source_mask = self.source_mask(source)
        embedded = self._positioned(self.source_embedding(source), jnp.arange(source.shape[1]), deterministic)
        x = embedded
        for layer, convolution in enumerate(self.encoder):
            x = jnp.where(source_mask[..., None], x, 0)  # zeros beyond the ends of the sentence
            side = reach(self.config, layer) // 2
            convolved = convolution(jnp.pad(x, ((0, 0), (side, side), (0, 0))), deterministic)
            x = (convolved + x) * HALF
        return Source(x, (x + embedded) * HALF, source_mask)

    def _positioned(self, embedded: Array, positions: Array, deterministic: bool) -> Array:
        encoded = sinusoids(positions, self.config.d_model).astype(embedded.dtype)
        return self.dropout(START * (embedded + encoded), deterministic)

    def decode(
        self,
        memory: Source,
        decoder_input: Int[Array, "b t"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        embedded = self.embed_target(decoder_input) if embedded is None else embedded
        embedded = self._positioned(embedded, jnp.arange(decoder_input.shape[1]), deterministic)
        x = embedded
        for layer, block in enumerate(self.decoder):
            past = jnp.pad(x, ((0, 0), (reach(self.config, layer), 0), (0, 0)))
            x = block(x, block.convolution(past, deterministic), embedded, memory)
        return self.dropout(self.readout(x), deterministic)

    def init_cache(self, memory: Source, beam_size: int, length: int) -> Cache:
        """A cache of the last inputs of every layer, as many as its kernel reaches back."""
        rows, c = memory.keys.shape[0], self.config
        windows = (
            States(jnp.zeros((rows, beam_size, reach(c, layer), c.d_model), memory.keys.dtype))
            for layer in range(c.num_layers)
        )
        return Cache.empty(tuple(windows), memory, rows)

    def decode_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Cache]:
        embedded = self._positioned(self.embed_target(tokens), cache.positions[:, None], True)
        x, layers = embedded, []
        for block, before in zip(self.decoder, cache.layers, strict=True):
            window = jnp.concatenate([before.value, x[:, :, None, :]], axis=2)
            layers.append(before.append(window[:, :, 1:], cache.column, cache.positions))
            x = block(x, block.convolution(window, True)[:, :, 0], embedded, cache.source)
        return self.output(self.readout(x)), cache.end_step(layers)


def attention(intermediates: Variables) -> Float[Array, "l b 1 t s"]:
    """The attention of each decoder layer."""
    layers = layers_sown(intermediates, "decoder")
    return jnp.stack([layer["weights"][0][:, None] for layer in layers])


SYSTEM = autoregressive(Convolutional, attention)
