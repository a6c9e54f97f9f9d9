"""The configuration types of each system, by name. Reading a configuration imports no model."""

from transformer.config.baselines import ConvolutionalConfig, RecurrentConfig
from transformer.config.copying import CopyingConfig
from transformer.config.nonautoregressive import NonAutoregressiveConfig, NonAutoregressiveDecodingConfig
from transformer.config.options import DecodingConfig, ModelConfig, TransformerConfig
from transformer.errors import UserError

TYPES: dict[str, tuple[type[ModelConfig], type[DecodingConfig]]] = {
    "transformer": (TransformerConfig, DecodingConfig),
    "recurrent": (RecurrentConfig, DecodingConfig),
    "convolutional": (ConvolutionalConfig, DecodingConfig),
    "nonautoregressive": (NonAutoregressiveConfig, NonAutoregressiveDecodingConfig),
    "copying": (CopyingConfig, DecodingConfig),
}
"""The types of `Config.model` and `Config.decoding`."""


def types_of(system: str) -> tuple[type[ModelConfig], type[DecodingConfig]]:
    """The types of model and decoding options of a system.

    Raises:
      UserError: there is no such system.
    """
    if system not in TYPES:
        raise UserError(f"--system {system}: unknown; there are {', '.join(TYPES)}")
    return TYPES[system]
