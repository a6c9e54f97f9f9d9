"""The state that a training starts from: of a checkpoint, of a whole model, of the encoder of another one
(Rothe et al. 2020), or new."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.config.corpus import DataConfig
from transformer.config.options import Config, first_added
from transformer.config.records import TaggedConfig
from transformer.config.transformer import EncoderConfig, StackConfig, TransformerConfig
from transformer.model.declarations import vocabulary_axes
from transformer.model.parameters import Declarations, Params, Variables
from transformer.model.stack import ENCODER, TransformerEncoder
from transformer.runs.run import Run, check_base
from transformer.runtime.errors import UserError, counted
from transformer.runtime.hosts import gathered
from transformer.systems.parameters import declared_parameters
from transformer.systems.registry import find_system
from transformer.systems.system import System
from transformer.training.sharding import check_rows, layout_of
from transformer.training.step import TrainState, init_state

# Rows of parameters for words that were added to a vocabulary.


def with_added_rows(
    params: Params, declared: Declarations, first: int, replaced: Sequence[Sequence[int]]
) -> Params:
    """Parameters in which each added id has the mean of the rows of the ids that it replaces: the embeddings,
    the output matrix and the bias of the logits.

    Args:
      params: of the model before.
      declared: its declarations, which name the axis of the vocabulary.
      first: the first added id. Rows from there on that the model has already are those of no token.
      replaced: for each added id, the ids whose mean it has.
    """
    leaves = flatten_dict(params)
    for path, axis in vocabulary_axes(declared).items():
        table = jnp.moveaxis(leaves[path], axis, 0)
        rows = [table[jnp.array(ids)].mean(0) for ids in replaced]
        grown = jnp.concatenate([table[:first], jnp.stack(rows), table[first + len(rows) :]])
        leaves[path] = jnp.moveaxis(grown, 0, axis)
    return unflatten_dict(leaves)


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
    encoder_model = run.config.model
    assert isinstance(encoder_model, StackConfig)
    return replace(config, model=encoded(model, encoder_model), data=replace(data, source_tokenizer=path))


def as_begun(config: Config, run: Run) -> Config:
    """A config as the run has it that it began, as far as `with_encoder` decides it."""
    model, run_model = config.model, run.config.model
    data, run_data = config.data, run.config.data
    if not (isinstance(model, StackConfig) and isinstance(run_model, StackConfig)):
        return config
    if not (isinstance(data, OF_SOURCES) and isinstance(run_data, OF_SOURCES)):
        return config
    data = replace(data, source_tokenizer=run_data.source_tokenizer)
    size = model.target_vocab_size or run_model.target_vocab_size
    model = replace(encoded(model, run_model), target_vocab_size=size)
    return replace(config, model=model, data=data)


def in_slices(config: Config, system: System, run: Run, say: Callable[[str], None]) -> Config:
    """The options of a run on these devices, with as many slices of a batch (--training.accumulate) as keep
    what a device computes at a time no larger than when the run began. Results are the same up to rounding. A
    model that needs the whole batch, or rows whose memory cannot be divided so, keep the options.

    Args:
      config: of the run.
      system: of the run.
      run: has been trained before, perhaps.
      say: is told if that changes the slices.
    """
    stored = [record["parts"] for record in run.log.records("start") if type(record.get("parts")) is int]
    (first, *_) = gathered(stored[0] if stored else 0)
    training, data, shards = config.training, config.data, layout_of(config.mesh).shards
    most_slices = max(1, data.batch_tokens // data.lengths[-1] // shards)
    slices = min(most_slices, -(-first // shards))
    if first < 1 or slices == training.accumulate or config.model.needs_whole_batch:
        return config
    try:
        check_rows(jax.eval_shape(lambda: system.carry(config, False)), shards, slices)
    except UserError:
        return config
    say(
        f"{counted(shards, 'part')} of a batch at a time, {first:,} when the run began: each update in "
        f"{counted(slices, 'slice')}, so that a device needs no more memory (--training.accumulate)"
    )
    return replace(config, training=replace(training, accumulate=slices))


def encoded(model: StackConfig, donor: StackConfig) -> StackConfig:
    """The options of a model with the encoder of another. A model without a decoder has them as its own."""
    encoder = donor.of_encoder
    common = {name: getattr(encoder, name) for name in COMMON}
    names = [field.name for field in fields(EncoderConfig)]
    values = {name: getattr(encoder, WIDTHS.get(name, name)) for name in names}
    if not isinstance(model, TransformerConfig):
        return replace(model, **common, **values)
    stack = {name: values[name] for name in names if getattr(encoder, name) != getattr(model, name)}
    depth = model.decoder_depth
    return replace(
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


# The state that a training starts from: of a checkpoint, of a parent's model or its encoder, or new.


def first_state(
    config: Config,
    system: System,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    run: Run,
    parent: Run | None,
    say: Callable[[str], None],
) -> TrainState:
    """The state of the run's newest intact checkpoint; without checkpoints, that of step 0.

    Args:
      config: of the run.
      system: of the config.
      model: of the system.
      optimizer: of the model's parameters.
      run: where the checkpoints are.
      parent: a run whose best model is trained further. None: the one that the config names, if any.
      say: shows a message, such as which checkpoints are damaged.

    Raises:
      UserError: all checkpoints are damaged; the parent has none that is intact.
    """
    t = config.training
    how = run.parametrisation
    example = system.task.example(config)
    carry = system.carry(config, False)

    def initial(variables: Mapping[str, Any]) -> TrainState:
        return init_state(
            model,
            optimizer,
            t.seed,
            example,
            average=t.ema > 0,
            variables=variables,
            carry=carry,
            parametrisation=how,
        )

    if run.checkpoints.steps():
        like = jax.eval_shape(lambda: initial({}))
        if how.is_adapter:
            _, fixed = how.split(run.base())
            like = replace(like, fixed=fixed)
        state = run.checkpoints.resume(like, say)
        assert state  # there are checkpoints
        return state
    if t.init_encoder_from:
        return initial(encoder_variables(Run(t.init_encoder_from)))
    if parent is None and t.init_from:  # stopped before its first checkpoint
        parent = Run(t.init_from)
    if how.is_adapter and parent:
        step = config.adapter.base_step
        assert step is not None
        variables = parent.variables(step)
        check_base(run.name, config.adapter, variables["params"])
    else:
        variables = parent.variables("best") if parent else {}
    first = first_added(config)
    if parent and first is not None:
        variables["params"] = with_added_rows(
            variables["params"],
            declared_parameters(system, config),
            first,
            parent.task.replaced_ids(run.task),
        )
    return initial(variables)
