"""The one list of what can be built. The name is in the config and in the run directory; the
training step, the loop and the searches never ask which system they hold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn

from transformer.config import Config, ModelConfig
from transformer.decoding.beam import SearchResult
from transformer.decoding.search import autoregressive_search
from transformer.errors import UserError
from transformer.model.transformer import Transformer, cross_attention
from transformer.training.objective import Objective, translation_objective


@dataclass(frozen=True)
class System:
    """What the rest of the program needs to know of a model to train it and decode with it."""

    model: Callable[[ModelConfig], nn.Module]
    objective: Callable[[Config], Objective]
    search: Callable[..., SearchResult]
    """(model, variables, source, lines, options) -> SearchResult, as `autoregressive_search`."""
    alignment: Callable[..., Any]
    """(model, variables, source, target) -> [batch, target, source]: what each target token
    looked at, by one forced pass."""


SYSTEMS = {
    "transformer": System(
        model=Transformer,
        objective=lambda config: translation_objective(config.training.label_smoothing),
        search=autoregressive_search,
        alignment=cross_attention,
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
