"""A Transformer whose encoder reads pictures in patches (Dosovitskiy et al. 2021, section 3.1)."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.records import PatchConfig
from transformer.model.layers import Affine
from transformer.model.masks import Mask
from transformer.model.stack import Memory
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError

NO_PICTURE = float("-inf")
"""What pads pictures: the rows of a batch that have none."""


def patches_along(side: int, size: int) -> int:
    """The number of patches along a side of a picture. Raises UserError if it is no whole number."""
    if side % size:
        raise UserError(f"--data.picture-size {side} must be a multiple of --model.patch-size {size}")
    return side // size


class PatchTransformer(Transformer):
    """The encoder's positions are the patches of a picture, row by row."""

    config: PatchConfig

    def setup(self) -> None:
        super().setup()
        self.patches = Affine(self.config.of_encoder.d_model, (None, "model"))

    @nn.nowrap
    def in_patches(self, source: Float[Array, "b h w c"]) -> Float[Array, "b s values"]:
        """The values of each patch."""
        size = self.config.patch_size
        rows, *sides, channels = source.shape
        down, across = (patches_along(side, size) for side in sides)
        grid = source.reshape(rows, down, size, across, size, channels).swapaxes(2, 3)
        return grid.reshape(rows, -1, size * size * channels)

    @nn.nowrap
    def source_mask(self, source: Float[Array, "b h w c"]) -> Bool[Array, "b s"]:  # type: ignore[override]
        """True at the patches of rows that have a picture."""
        return jnp.isfinite(self.in_patches(source)).all(axis=-1)

    def encode(  # type: ignore[override]
        self,
        source: Float[Array, "b h w c"],
        *,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> Memory:
        """The encoder stack on the projected patches of pictures: [rows, height, width, channels], values
        around 0; heights and widths are multiples of the patch size."""
        mask = self.source_mask(source)
        values = jnp.where(mask[..., None], self.in_patches(source), 0)
        embedded = self.patches(values.astype(self.config.compute_dtype))
        positions = jnp.arange(mask.shape[1])
        attended = Mask(keys=mask, window=self.config.window)
        return self.encode_embedded(embedded, mask, attended, positions, deterministic, every_layer)
