"""The compiled searches of a model: one for each steering and each set of options that shapes programs."""

import threading
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn

from transformer.config import DecodingConfig
from transformer.decoding.hooks import SearchHook
from transformer.decoding.lengths import within_positions
from transformer.decoding.service import SearchService, has_room, programs_for, with_room
from transformer.decoding.shortlist import shortlisted
from transformer.model.parameters import Variables
from transformer.systems.system import System
from transformer.translator.search_inputs import SearchInputs, steered_search

SERVICES = 8
"""How many are kept."""


@runtime_checkable
class SearchedModel(Protocol):
    """What is searched."""

    model: nn.Module
    variables: Variables
    system: System
    task: Any
    longest: int | None
    longest_source: int | None


class SearchServices(dict[tuple[DecodingConfig, tuple[SearchHook, ...], bytes], SearchService]):
    """Searches by what their programs depend on, the one that was used last at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def service(
        self, searched: SearchedModel, settings: DecodingConfig, inputs: SearchInputs
    ) -> SearchService:
        """The search of such inputs with these options. One is made if there is none, or if its programs have
        no room for so long outputs; those that were not used for long are dropped.

        Args:
          searched: the model.
          settings: options of the search.
          inputs: what the search reads.
        """
        beside = inputs.language_model.identity if inputs.language_model else b""
        key = programs_for(searched.system.search, settings), inputs.hooks, beside
        with self._lock:
            service = self.pop(key, None)
            if service is None or not has_room(service.options, settings):
                program = settings if service is None else with_room(service.options, settings)
                program = within_positions(program, searched.longest, searched.longest_source)
                service = _new_service(searched, program, inputs)
            self[key] = service
            while len(self) > SERVICES:
                del self[next(iter(self))]
            return service


def _new_service(searched: SearchedModel, settings: DecodingConfig, inputs: SearchInputs) -> SearchService:
    search = steered_search(searched.system, searched.task, settings, inputs.hooks)
    model, variables = searched.model, searched.variables
    if inputs.language_model:
        model, variables = inputs.language_model.beside(model, variables)
    if settings.shortlist:
        search, model = shortlisted(search, model)
    return SearchService(search, model, variables, settings, inputs.fields)
