"""The attention of a model to the source of an example, given its target."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.data.sequences import Example, sides, stacked
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.translator.decoder import Decoder
from transformer.translator.scoring import aligned

MULTIPLE = 32
"""Of which lengths are, so that few programs are compiled."""


def forced_attention(decoder: Decoder[Any], example: Example) -> Float[np.ndarray, "t s"] | None:
    """The cross-attention with teacher forcing, as its mean over layers and heads, without padding. None if
    the system has no alignments.

    Args:
      decoder: the model.
      example: its source and target.
    """
    system = decoder.system
    model = decoder.model
    fields = decoder.task.fields
    if system.alignment is None or not isinstance(model, EncoderDecoder):
        return None
    lengths = [len(example[name]) + -len(example[name]) % MULTIPLE for name in sides(fields)]
    batch = stacked([example], fields, lengths, 1)
    inputs = {name: jnp.asarray(batch[name]) for name in decoder.task.inputs}
    target = jnp.asarray(batch["target"])
    weights = np.asarray(aligned(system, model, decoder.variables, inputs, target))[0]
    rows, columns = model.target_mask(target), model.source_mask(inputs["source"])
    return weights[np.asarray(rows)[0]][:, np.asarray(columns)[0]]
