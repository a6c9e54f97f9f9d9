"""The one list of what can be built. The name is in the config and in the run directory; the
training step, the loop and the searches never ask which system they hold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn

from transformer.baselines import convolutional, recurrent
from transformer.baselines.config import ConvolutionalConfig, RecurrentConfig
from transformer.baselines.hard_attention import recurrent_objective
from transformer.config import Config, DecodingConfig, ModelConfig, TransformerConfig
from transformer.copying.config import CopyingConfig
from transformer.copying.model import CopyingTransformer
from transformer.copying.objective import copying_objective
from transformer.copying.search import copying_scores, copying_search, pointers
from transformer.decoding.beam import SearchResult
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.errors import UserError
from transformer.model.transformer import Transformer, cross_attention
from transformer.nonautoregressive.config import ParallelConfig, ParallelDecodingConfig
from transformer.nonautoregressive.forced import parallel_attention, parallel_scores
from transformer.nonautoregressive.model import ParallelTransformer
from transformer.nonautoregressive.objective import parallel_objective
from transformer.nonautoregressive.search import parallel_search
from transformer.training.objective import Objective, translation_objective


@dataclass(frozen=True)
class System:
    """What the rest of the program needs to know of a model to train it and decode with it."""

    model: type[nn.Module]
    """Made from its model_config. One that extends another's can begin with that one's parameters."""
    objective: Callable[[Config], Objective]
    search: Callable[..., SearchResult]
    """(model, variables, source, lines, options) -> SearchResult, as `autoregressive_search`."""
    alignment: Callable[..., Any]
    """(model, variables, source, target) -> [batch, target, source]: what each token of a
    translation looked at."""
    scores: Callable[..., Any]
    """(model, variables, source, target) -> [batch]: its log-probability in nats."""
    model_config: type[ModelConfig] = TransformerConfig
    decoding_config: type[DecodingConfig] = DecodingConfig
    packs: bool = False
    """Whether it can keep several sentences in a row apart."""
    copies: bool = False
    """Whether it can say words outside its vocabulary."""


SYSTEMS = {
    "transformer": System(
        model=Transformer,
        objective=lambda config: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        alignment=forced_alignment(cross_attention),
        scores=forced_scores,
        packs=True,
    ),
    "recurrent": System(
        model=recurrent.Recurrent,
        objective=recurrent_objective,
        search=autoregressive_search,
        alignment=forced_alignment(recurrent.attention),
        scores=forced_scores,
        model_config=RecurrentConfig,
    ),
    "convolutional": System(
        model=convolutional.Convolutional,
        objective=lambda config: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        alignment=forced_alignment(convolutional.attention),
        scores=forced_scores,
        model_config=ConvolutionalConfig,
    ),
    "parallel": System(
        model=ParallelTransformer,
        objective=parallel_objective,
        search=parallel_search,
        alignment=parallel_attention,
        scores=parallel_scores,
        model_config=ParallelConfig,
        decoding_config=ParallelDecodingConfig,
    ),
    "copying": System(
        model=CopyingTransformer,
        objective=copying_objective,
        search=copying_search,
        alignment=pointers,
        scores=copying_scores,
        model_config=CopyingConfig,
        copies=True,
    ),
}


def find_system(name: str) -> System:
    """The system of that name.

    Raises:
      UserError: there is none.
    """
    if name not in SYSTEMS:
        raise UserError(f"--system {name}: unknown; there are {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def check_system(config: Config) -> None:
    """Raises UserError where the parts of a config are not all of its system."""
    system = find_system(config.system)
    if type(config.model) is not system.model_config or type(config.decoding) is not system.decoding_config:
        raise UserError(
            f"--system {config.system}: begin with one of its presets; the other options are not its own"
        )
    if config.data.tokenizer == "open-word" and not system.copies:
        raise UserError(
            f"--data.tokenizer open-word: {config.system} cannot say words outside its vocabulary; use word"
        )
    if config.data.batching == "packed" and not system.packs:
        raise UserError(f"--data.batching packed: {config.system} reads one sentence a row, use buckets")
