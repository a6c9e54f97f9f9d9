"""Configuration: the options that systems share. Imports nothing above."""

from transformer.config.corpus import CorpusConfig, DataConfig
from transformer.config.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    MbrConfig,
    SampleConfig,
    changed_search,
    check_beam,
)
from transformer.config.model import ModelConfig, SpecialIds
from transformer.config.options import (
    Config,
    as_decided,
    as_word,
    changed,
    differences,
    first_added,
    flatten,
    position_limits,
    text_data,
)
from transformer.config.ranges import COUNTS, LONGEST, Option, Range
from transformer.config.training import (
    BleuTokenizer,
    ErrorRate,
    HostsConfig,
    MeshConfig,
    OptimizerConfig,
    TextNormalisation,
    TrainingConfig,
    dropout_for,
)
from transformer.config.transformer import EncoderConfig, StackConfig, TransformerConfig

__all__ = [
    "COUNTS",
    "LONGEST",
    "BeamConfig",
    "BleuTokenizer",
    "Config",
    "CorpusConfig",
    "DataConfig",
    "DecodingConfig",
    "EncoderConfig",
    "ErrorRate",
    "GreedyConfig",
    "HostsConfig",
    "MbrConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Option",
    "Range",
    "SampleConfig",
    "SpecialIds",
    "StackConfig",
    "TextNormalisation",
    "TrainingConfig",
    "TransformerConfig",
    "as_decided",
    "as_word",
    "changed",
    "changed_search",
    "check_beam",
    "differences",
    "dropout_for",
    "first_added",
    "flatten",
    "position_limits",
    "text_data",
]
