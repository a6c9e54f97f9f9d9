"""The configuration types of each system, by name. Reading a configuration imports no model.

Other packages bring systems: their entry points in the group `transformer.systems` name modules that call
`transformer.register`. They are imported when a name is not known here.
"""

import functools
from importlib import metadata
from typing import NamedTuple

from transformer.config.baselines import ConvolutionalConfig, RecurrentConfig
from transformer.config.copying import CopyingConfig
from transformer.config.corpus import CorpusConfig, DataConfig
from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.fast_autoregressive import FastAutoregressiveConfig
from transformer.config.language_model import LanguageModelConfig, StreamConfig
from transformer.config.model import ModelConfig, TransformerConfig
from transformer.config.nonautoregressive import NonAutoregressiveConfig, NonAutoregressiveDecodingConfig
from transformer.config.speech import RecordingsConfig, SpeechConfig
from transformer.config.synthesis import (
    NonAutoregressiveSynthesisConfig,
    NonAutoregressiveSynthesisDecodingConfig,
    SynthesisConfig,
    SynthesisDecodingConfig,
)
from transformer.errors import UserError


class Types(NamedTuple):
    """The types of `Config.model`, `Config.decoding` and `Config.data`."""

    model: type[ModelConfig]
    decoding: type[DecodingConfig] = BeamConfig
    data: type[CorpusConfig] = DataConfig


TYPES: dict[str, Types] = {
    "transformer": Types(TransformerConfig),
    "recurrent": Types(RecurrentConfig),
    "convolutional": Types(ConvolutionalConfig),
    "nonautoregressive": Types(NonAutoregressiveConfig, NonAutoregressiveDecodingConfig),
    "copying": Types(CopyingConfig),
    "fast-autoregressive": Types(FastAutoregressiveConfig),
    "language-model": Types(LanguageModelConfig, data=StreamConfig),
    "speech": Types(SpeechConfig, data=RecordingsConfig),
    "synthesis": Types(SynthesisConfig, SynthesisDecodingConfig, RecordingsConfig),
    "nonautoregressive-synthesis": Types(
        NonAutoregressiveSynthesisConfig, NonAutoregressiveSynthesisDecodingConfig, RecordingsConfig
    ),
}


GROUP = "transformer.systems"


@functools.cache
def load_entry_points() -> tuple[str, ...]:
    """Imports the modules of other packages that register systems. Returns a sentence about each that cannot
    be imported."""
    failed = []
    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist else point.value
            failed.append(f"the systems of package {package} cannot be imported: {error}")
    return tuple(failed)


def unknown(message: str) -> UserError:
    """The error for a name that no package has brought: the message, and which packages have failed."""
    return UserError("; ".join((message, *load_entry_points())))


def types_of(system: str) -> Types:
    """The types of a system's options.

    Raises:
      UserError: there is no such system.
    """
    if system not in TYPES:
        load_entry_points()
    if system not in TYPES:
        known = ", ".join(TYPES)
        raise unknown(
            f"--system {system}: unknown; there are {known}. Is the package that brings it installed?"
        )
    return TYPES[system]
