"""Multi-view cross-attention (Liu et al. 2020): which layer of the encoder each decoder layer reads besides
the last.

The two views of a layer have the same projections, and their outputs are averaged.
"""

from abc import abstractmethod
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config.transformer import TransformerConfig
from transformer.model.parameters import Module, param

State = Float[Array, "b s m"]


class SecondView(Module):
    """Maps the output of each encoder layer to what each decoder layer reads besides the last."""

    config: TransformerConfig

    @abstractmethod
    def __call__(self, layers: Sequence[State]) -> list[State]:
        """One view for each decoder layer.

        Args:
          layers: the output of each encoder layer.
        """


class LayerWise(SecondView):
    """Decoder layer i of M reads encoder layer i N / M of N, rounded up."""

    def __call__(self, layers: Sequence[State]) -> list[State]:
        depth = self.config.decoder_depth
        return [layers[-(-i * len(layers) // depth) - 1] for i in range(1, depth + 1)]


class CoarseToFine(LayerWise):
    """The same in reverse: the first decoder layer reads the last encoder layer, the last one the first."""

    def __call__(self, layers: Sequence[State]) -> list[State]:
        return super().__call__(layers[::-1])


class SoftSum(SecondView):
    """Each decoder layer reads a mean of all encoder layers, whose weights are learned; equal at first."""

    @nn.compact
    def __call__(self, layers: Sequence[State]) -> list[State]:
        shape = (self.config.decoder_depth, len(layers))
        weights = jax.nn.softmax(param(self, "weights", nn.initializers.zeros_init(), shape, (None, None)))
        stacked = jnp.stack(layers)
        return list(jnp.einsum("dl,lbsm->dbsm", weights.astype(stacked.dtype), stacked))


VIEWS: dict[str, type[SecondView]] = {
    "soft-sum": SoftSum,
    "layer-wise": LayerWise,
    "coarse-to-fine": CoarseToFine,
}
"""Classes by the name in `TransformerConfig.cross_view`."""
