"""The registry of systems. A config names its system; the training step, the loop and the searches do not
depend on it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax

import transformer.systems.convolutional.model as convolutional
import transformer.systems.recurrent.model as recurrent
from transformer.config import (
    BeamConfig,
    Config,
    CorpusConfig,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TransformerConfig,
)
from transformer.config.decoding import methods_of
from transformer.config.presets import GROUPS, PRESETS
from transformer.config.registry import TYPES, Types, types_of
from transformer.decoding.forced import Attentions, forced_alignment, forced_scores, sown_attention
from transformer.decoding.search import AutoregressiveSearch, autoregressive_search, limits_of_prompt
from transformer.errors import UserError
from transformer.model.parameters import Declarations, Variables, declarations
from transformer.model.transformer import Transformer, cross_attention
from transformer.systems.copying.model import CopyingTransformer, pointer
from transformer.systems.copying.objective import copying_objective
from transformer.systems.copying.search import copying_scores, copying_search, pointers
from transformer.systems.fast_autoregressive.model import FastAutoregressive
from transformer.systems.language_model.model import LanguageModel
from transformer.systems.language_model.objective import initial_memory, language_model_objective
from transformer.systems.nonautoregressive.forced import nonautoregressive_attention, nonautoregressive_scores
from transformer.systems.nonautoregressive.model import NonAutoregressiveTransformer
from transformer.systems.nonautoregressive.objective import nonautoregressive_objective
from transformer.systems.nonautoregressive.search import nonautoregressive_search
from transformer.systems.nonautoregressive_synthesis.model import NonAutoregressiveSynthesiser
from transformer.systems.nonautoregressive_synthesis.objective import nonautoregressive_synthesis_objective
from transformer.systems.nonautoregressive_synthesis.search import nonautoregressive_synthesis_search
from transformer.systems.recurrent.hard_attention import recurrent_objective
from transformer.systems.speech.model import SpeechTransformer, limits_of_frames
from transformer.systems.synthesis.model import Synthesiser
from transformer.systems.synthesis.objective import synthesis_objective
from transformer.systems.synthesis.search import synthesis_search
from transformer.tasks.language_modelling import LanguageModelling
from transformer.tasks.speech_to_text import SpeechToText
from transformer.tasks.task import Task
from transformer.tasks.text_to_speech import TextToSpeech
from transformer.tasks.translation import Translation
from transformer.training.objective import Carry, Objective, translation_objective


def absent(what: str) -> Callable[..., Any]:
    """A function that refuses, for what a system does not have."""

    def refuse(*_: Any) -> Any:
        raise UserError(f"this system {what}")

    return refuse


NO_SEARCH, NO_ALIGNMENT = absent("does not decode"), absent("has no alignments")
NO_ATTENTION = absent("sows no attention to the source")
NO_SCORES = absent("does not score given outputs")


@dataclass(frozen=True)
class System:
    """What training and decoding need to know about a model."""

    model: type[nn.Module]
    """Built from the model's options. A subclass of another system's model can be initialised from it."""
    objective: Callable[[Config, Callable[[Path], Any]], Objective]
    """(config, load_teacher) -> Objective; load_teacher opens a run as a `Decoder`."""
    search: Callable[..., Any] = NO_SEARCH
    """(model, variables, inputs, lines, options) -> a pytree of arrays with rows first, which the task makes
    into outputs; for text a `SearchResult`, as from `autoregressive_search`."""
    attentions: Attentions = NO_ATTENTION
    """(what the model has sown in "intermediates") -> [layer, batch, head, target, source]: its attention to
    the source, which training can guide."""
    alignment: Callable[..., Any] = NO_ALIGNMENT
    """(model, variables, source, target) -> [batch, target, source]: the attention of each target step."""
    scores: Callable[..., Any] = NO_SCORES
    """(model, variables, source, target) -> `TokenScores`: log P of each target token."""
    task: type[Task] = Translation
    """What goes in and out of it."""
    carry: Callable[[Config, bool], Carry] = lambda config, evaluating: ()
    """(config, evaluating) -> the initial memory of the rows of a batch, in training or in evaluation: arrays
    `[rows, ...]`; empty for most models."""
    packs: bool = False
    """Whether it supports several sentences per row (packed batches)."""
    copies: bool = False
    """Whether it can output out-of-vocabulary words."""


SYSTEMS = {
    "transformer": System(
        model=Transformer,
        objective=lambda config, _: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        attentions=cross_attention,
        alignment=forced_alignment(cross_attention),
        scores=forced_scores,
        packs=True,
    ),
    "recurrent": System(
        model=recurrent.Recurrent,
        objective=lambda config, _: recurrent_objective(config),
        search=autoregressive_search,
        attentions=recurrent.attention,
        alignment=forced_alignment(recurrent.attention),
        scores=forced_scores,
    ),
    "convolutional": System(
        model=convolutional.Convolutional,
        objective=lambda config, _: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        attentions=convolutional.attention,
        alignment=forced_alignment(convolutional.attention),
        scores=forced_scores,
    ),
    "nonautoregressive": System(
        model=NonAutoregressiveTransformer,
        objective=nonautoregressive_objective,
        search=nonautoregressive_search,
        attentions=cross_attention,
        alignment=nonautoregressive_attention,
        scores=nonautoregressive_scores,
    ),
    "copying": System(
        model=CopyingTransformer,
        objective=lambda config, _: copying_objective(config),
        search=copying_search,
        attentions=pointer,
        alignment=pointers,
        scores=copying_scores,
        copies=True,
    ),
    "fast-autoregressive": System(
        model=FastAutoregressive,
        objective=lambda config, _: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        attentions=recurrent.attention,
        alignment=forced_alignment(recurrent.attention),
        scores=forced_scores,
    ),
    "language-model": System(
        model=LanguageModel,
        objective=lambda config, _: language_model_objective(config),
        search=AutoregressiveSearch(limits=limits_of_prompt),
        scores=forced_scores,
        task=LanguageModelling,
        carry=initial_memory,
    ),
    "speech": System(
        model=SpeechTransformer,
        objective=lambda config, _: translation_objective(config.training.label_smoothing),
        search=AutoregressiveSearch(limits=limits_of_frames),
        attentions=cross_attention,
        alignment=forced_alignment(cross_attention),
        scores=forced_scores,
        task=SpeechToText,
    ),
    "synthesis": System(
        model=Synthesiser,
        objective=lambda config, _: synthesis_objective,
        search=synthesis_search,
        attentions=cross_attention,
        alignment=partial(sown_attention, cross_attention),  # the model shifts the frames itself
        task=TextToSpeech,
    ),
    "nonautoregressive-synthesis": System(
        model=NonAutoregressiveSynthesiser,
        objective=nonautoregressive_synthesis_objective,
        search=nonautoregressive_synthesis_search,
        attentions=cross_attention,
        alignment=partial(sown_attention, cross_attention),
        task=TextToSpeech,
    ),
}


def register(
    name: str,
    system: System,
    model_config: type[ModelConfig] = TransformerConfig,
    decoding_config: type[DecodingConfig] = BeamConfig,
    data_config: type[CorpusConfig] = DataConfig,
    presets: Mapping[str, tuple[Config, str]] = MappingProxyType({}),
) -> None:
    """Adds a system, so that training, decoding, resuming and reports work with it.

    Args:
      name: for `--system` and config.json.
      system: what training and decoding need.
      model_config: type of its model options.
      decoding_config: type of its search options. A type of its own is for all its methods.
      data_config: type of its corpus options.
      presets: configurations by name, each with its description.

    Raises:
      UserError: a name is taken or unusable, or an argument is of the wrong kind.
    """
    if not re.fullmatch("[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"system {name!r}: its name must consist of small letters, digits, - and _")
    if not isinstance(system, System):
        raise UserError(f"system {name}: must be a transformer.System, not {type(system).__name__}")
    types = Types(model_config, decoding_config, data_config)
    if wrong := [kind for kind in types if not isinstance(kind, type)]:
        raise UserError(f"system {name}: {wrong[0]!r} must be a type of options, not options")
    for preset, given in presets.items():
        if not isinstance(given, tuple) or len(given) != 2 or given[0].system != name:
            raise UserError(f"preset {preset}: must be a config with system={name!r}, and a description")
    if name in SYSTEMS:
        raise UserError(f"system {name} is registered already: choose another name")
    if taken := sorted(PRESETS.keys() & presets.keys()):
        raise UserError(f"preset {taken[0]} is registered already: choose another name")
    SYSTEMS[name], TYPES[name] = system, types
    PRESETS.update({preset: config for preset, (config, _) in presets.items()})
    if presets:
        GROUPS[f"system {name}"] = {preset: described for preset, (_, described) in presets.items()}


def find_system(name: str) -> System:
    """The system of that name.

    Raises:
      UserError: there is no such system.
    """
    types_of(name)
    return SYSTEMS[name]


def model_shapes(config: Config) -> Variables:
    """The shapes of the model's variables, without allocating them."""
    system = find_system(config.system)
    return jax.eval_shape(system.model(config.model).init, jax.random.key(0), *system.task.example(config))


def declared_parameters(config: Config) -> Declarations:
    """The declaration of each of the model's parameters."""
    system = find_system(config.system)
    return declarations(system.model(config.model), system.task.example(config))


def packs(config: Config) -> bool:
    """Whether a row may have several sentences."""
    return find_system(config.system).packs and not config.model.unpacked and not config.reward.share


def decided_for(config: Config, platform: str) -> Config:
    """The config with what depends on the kind of device, "cpu", "gpu" or "tpu", as far as it is left open:
    on accelerators the fastest precision and batches that the system supports."""
    accelerated = platform != "cpu"
    dtype: Any = config.model.DTYPES[-1] if accelerated else "float32"
    if config.model.dtype == "auto":
        config = replace(config, model=replace(config.model, dtype=dtype))
    if config.data.batching == "auto":
        batching: Any = "packed" if accelerated and packs(config) else "buckets"
        config = replace(config, data=replace(config.data, batching=batching))
    return config


def check_system(config: Config) -> None:
    """Raises UserError if parts of a config belong to another system."""
    system = find_system(config.system)
    types, decodings = types_of(config.system), methods_of(types_of(config.system).decoding)
    as_declared = (type(config.model), type(config.data)) == (types.model, types.data)
    if not as_declared or type(config.decoding) not in decodings.values():
        raise UserError(
            f"--system {config.system}: start from one of its presets; these options belong to another system"
        )
    if isinstance(config.data, DataConfig) and config.data.tokenizer == "open-word" and not system.copies:
        raise UserError(
            f"--data.tokenizer open-word: {config.system} cannot output out-of-vocabulary words; use word"
        )
    if config.data.batching == "packed" and (config.model.unpacked or not system.packs):
        what = config.model.unpacked or config.system
        raise UserError(f"--data.batching packed: {what} reads one sentence per row; use buckets")
    if config.training.accumulate > 1 and config.model.undivided:
        raise UserError(
            f"--training.accumulate {config.training.accumulate}: {config.model.undivided} needs the "
            "statistics of the whole batch; leave one of them out"
        )
