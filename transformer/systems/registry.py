"""The registry of systems. A config names its system; the training step, the loop and the searches do not
depend on it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn

import transformer.systems.convolutional.model as convolutional
import transformer.systems.recurrent.model as recurrent
from transformer.config import Config
from transformer.config.registry import types_of
from transformer.decoding.beam import SearchResult
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.errors import UserError
from transformer.model.transformer import Transformer, cross_attention
from transformer.systems.copying.model import CopyingTransformer
from transformer.systems.copying.objective import copying_objective
from transformer.systems.copying.search import copying_scores, copying_search, pointers
from transformer.systems.nonautoregressive.forced import nonautoregressive_attention, nonautoregressive_scores
from transformer.systems.nonautoregressive.model import NonAutoregressiveTransformer
from transformer.systems.nonautoregressive.objective import nonautoregressive_objective
from transformer.systems.nonautoregressive.search import nonautoregressive_search
from transformer.systems.recurrent.hard_attention import recurrent_objective
from transformer.training.objective import Objective, translation_objective


@dataclass(frozen=True)
class System:
    """What training and decoding need to know about a model."""

    model: type[nn.Module]
    """Built from the model's options. A subclass of another system's model can be initialised from it."""
    objective: Callable[[Config, Callable[[Path], Any]], Objective]
    """(config, load_teacher) -> Objective; load_teacher opens a run as a `Translator`."""
    search: Callable[..., SearchResult]
    """(model, variables, source, lines, options) -> SearchResult, as `autoregressive_search`."""
    alignment: Callable[..., Any]
    """(model, variables, source, target) -> [batch, target, source]: the attention of each target token."""
    scores: Callable[..., Any]
    """(model, variables, source, target) -> [batch]: log P(target | source) in nats."""
    packs: bool = False
    """Whether it supports several sentences per row (packed batches)."""
    copies: bool = False
    """Whether it can output out-of-vocabulary words."""


SYSTEMS = {
    "transformer": System(
        model=Transformer,
        objective=lambda config, _: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        alignment=forced_alignment(cross_attention),
        scores=forced_scores,
        packs=True,
    ),
    "recurrent": System(
        model=recurrent.Recurrent,
        objective=lambda config, _: recurrent_objective(config),
        search=autoregressive_search,
        alignment=forced_alignment(recurrent.attention),
        scores=forced_scores,
    ),
    "convolutional": System(
        model=convolutional.Convolutional,
        objective=lambda config, _: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        alignment=forced_alignment(convolutional.attention),
        scores=forced_scores,
    ),
    "nonautoregressive": System(
        model=NonAutoregressiveTransformer,
        objective=nonautoregressive_objective,
        search=nonautoregressive_search,
        alignment=nonautoregressive_attention,
        scores=nonautoregressive_scores,
    ),
    "copying": System(
        model=CopyingTransformer,
        objective=lambda config, _: copying_objective(config),
        search=copying_search,
        alignment=pointers,
        scores=copying_scores,
        copies=True,
    ),
}


def find_system(name: str) -> System:
    """The system of that name.

    Raises:
      UserError: there is no such system.
    """
    types_of(name)
    return SYSTEMS[name]


def check_system(config: Config) -> None:
    """Raises UserError if parts of a config belong to another system."""
    system = find_system(config.system)
    if (type(config.model), type(config.decoding)) != types_of(config.system):
        raise UserError(
            f"--system {config.system}: start from one of its presets; these options belong to another system"
        )
    if config.data.tokenizer == "open-word" and not system.copies:
        raise UserError(
            f"--data.tokenizer open-word: {config.system} cannot output out-of-vocabulary words; use word"
        )
    if config.data.batching == "packed" and not system.packs:
        raise UserError(f"--data.batching packed: {config.system} reads one sentence per row; use buckets")
