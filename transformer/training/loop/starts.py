"""What a new model starts from: a whole model, or the encoder of another one (Rothe et al. 2020)."""

import dataclasses

from transformer.config import (
    Config,
    DataConfig,
    EncoderConfig,
    StackConfig,
    TransformerConfig,
)
from transformer.config.tagged import TaggedConfig
from transformer.model.encoder import ENCODER, TransformerEncoder
from transformer.model.parameters import Variables
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.systems.registry import find_system

VOCABULARY = "source.model"
"""The file of the vocabulary of sources in a run directory."""
COMMON = ("num_layers", "vocab_size", "scale_embedding", "window", "special")
"""Options of the encoder that are also those of the decoder, or that the decoder does not have."""
OF_SOURCES = DataConfig | TaggedConfig
"""Options of corpora with text that an encoder reads."""
WIDTHS = {"d_k": "key_width", "d_v": "value_width"}
"""Options that may be None, and what they resolve to."""


def with_encoder(config: Config, run: Run) -> Config:
    """A config with the encoder of a run: its network, its special ids, and its vocabulary for sources.
    The decoder keeps its own sizes; a linear layer leads to its width if that is another one.

    Raises:
      UserError: either model has no encoder of this kind; the run reads no text; the config names another
        vocabulary, or its options do not go together with that encoder.
    """
    option, model, data = f"--init-encoder-from {run.name}", config.model, config.data
    has_encoder = issubclass(find_system(config.system).model, TransformerEncoder)
    if not (has_encoder and isinstance(model, StackConfig) and isinstance(data, OF_SOURCES)):
        raise UserError(
            f"{option}: system {config.system} has no encoder of a Transformer that reads text; leave it out"
        )
    path = run.path / VOCABULARY
    if not (issubclass(run.system.model, TransformerEncoder) and path.exists()):
        raise UserError(
            f"{option} holds a {run.config.system} model, which has no encoder of a Transformer that reads "
            "text: name a masked language model or a translation model"
        )
    run.checkpoints.best()  # refuses a run without checkpoints
    if data.source_tokenizer not in (None, path):
        raise UserError(
            f"--data.source-tokenizer {data.source_tokenizer}: --init-encoder-from brings the vocabulary of "
            "the source; leave it out"
        )
    other = run.config.model
    assert isinstance(other, StackConfig)
    return dataclasses.replace(
        config, model=encoded(model, other), data=dataclasses.replace(data, source_tokenizer=path)
    )


def as_begun(config: Config, run: Run) -> Config:
    """A config as the run has it that it began, as far as `with_encoder` decides it."""
    model, other = config.model, run.config.model
    data, begun = config.data, run.config.data
    if not (isinstance(model, StackConfig) and isinstance(other, StackConfig)):
        return config
    if not (isinstance(data, OF_SOURCES) and isinstance(begun, OF_SOURCES)):
        return config
    data = dataclasses.replace(data, source_tokenizer=begun.source_tokenizer)
    size = model.target_vocab_size or other.target_vocab_size
    model = dataclasses.replace(encoded(model, other), target_vocab_size=size)
    return dataclasses.replace(config, model=model, data=data)


def encoded(model: StackConfig, other: StackConfig) -> StackConfig:
    """The options of a model with the encoder of another. A model without a decoder has them as its own."""
    encoder = other.of_encoder
    common = {name: getattr(encoder, name) for name in COMMON}
    names = [field.name for field in dataclasses.fields(EncoderConfig)]
    values = {name: getattr(encoder, WIDTHS.get(name, name)) for name in names}
    if not isinstance(model, TransformerConfig):
        return dataclasses.replace(model, **common, **values)
    stack = {name: values[name] for name in names if getattr(encoder, name) != getattr(model, name)}
    depth = model.decoder_depth
    return dataclasses.replace(
        model,
        **common,
        decoder_layers=None if depth == encoder.num_layers else depth,
        encoder_stack=EncoderConfig(**stack),
    )


def encoder_variables(run: Run) -> Variables:
    """The variables of the encoder of a run's best model."""
    return {
        collection: {name: x for name, x in modules.items() if name.startswith(ENCODER)}
        for collection, modules in run.variables("best").items()
    }
