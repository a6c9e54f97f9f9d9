"""A run that is served: what clients may ask of it, and how it is asked."""

import importlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from transformer.config.decoding import RULES, DecodingConfig, names_of
from transformer.config.ranges import Option
from transformer.decoding.service.lanes import Job, Preparation
from transformer.decoding.service.service import has_room
from transformer.runs.run import Run
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.files import Json
from transformer.serve.services.limits import OF_RECORDS, Limits, size_of, texts_of
from transformer.serve.services.messages import Asked, AskedChoices, AskedScores, Endpoint, search_options
from transformer.tasks.outputs import Lines
from transformer.translator.decoder import Decoder
from transformer.translator.search_outputs import available


class Service(ABC):
    """A run that is served under a name. A subclass says what its task can do: a task names the module that
    has it (`Lines.service`), as `SERVICE`.

    Args:
      name: of the run, for clients.
      decoder: the trained model.
      allowed: names of the search options that requests may have.
      limits: of requests.
      languages: codes of source and target. None: as far as the run knows them.
      search: options of the search, instead of the run's.
    """

    search: ClassVar[Endpoint]
    """What it searches."""
    loads: ClassVar[type[Decoder[Any]]]
    """The type of its decoder."""
    of_records: ClassVar[Collection[str]] = ()
    """What may be asked of each text besides options of the search: names of `OF_RECORDS`."""

    def __init__(
        self,
        name: str,
        decoder: Decoder[Any],
        allowed: Sequence[str],
        limits: Limits,
        languages: tuple[str, str] | None = None,
        search: Mapping[str, Option] = MappingProxyType({}),
    ) -> None:
        self.name, self.decoder, self.limits, self.defaults = name, decoder, limits, dict(search)
        self.languages = languages or self.known_languages
        self.settings: DecodingConfig = decoder.settings(None, self.defaults)
        decoder.queue_limit = limits.queue
        known = {*names_of(type(self.settings)), *self.of_records}
        is_shared = decoder.system.stepwise  # by requests of any options
        self.options = tuple(option for option in allowed if option in known) if is_shared else ()

    # What a subclass has

    @abstractmethod
    def record(self, item: Any, asked: Any) -> tuple[Any, Json]:
        """What is submitted for a text or a recording, and further arguments of `submit`."""

    def items(self, asked: Any) -> Sequence[Any]:
        """The texts of a request.

        Raises:
          UserError: there are none, too many, or they are too long.
        """
        return texts_of(asked.text, self.limits)

    def numbers(self, items: Sequence[Any], asked: Any) -> Iterator[int]:
        """How many searches each item of a request takes."""
        return itertools.repeat(1, len(items))

    def answer(self, item: Any, outputs: list[Any], asked: Any) -> Json:
        """The outputs for an item, as JSON."""
        written = [output.to_json() for output in outputs]
        return {"hypotheses": written} if self.search.several else written[0]

    @property
    def has_alignments(self) -> bool:
        """Whether its outputs may have alignments, which the page shows."""
        return "alignments" in self.loads.extras and self.decoder.system.alignment is not None

    @property
    def known_languages(self) -> tuple[str | None, str | None]:
        """Codes of source and target; None where they are unknown, or there are many."""
        return None, None

    @property
    def codes(self) -> Sequence[str]:
        """Codes of the languages that requests may name, of a model of many."""
        return ()

    @property
    def scores(self) -> Callable[[AskedScores], Iterator[list[Json]]] | None:
        """The scores of given texts, as JSON, a part of them after the other. None: it has none."""
        return None

    @property
    def choices(self) -> Callable[[AskedChoices], Iterator[list[Json]]] | None:
        """The probabilities of given outputs, as JSON, as those of `scores`. None: it has none."""
        return None

    @property
    def listens(self) -> Callable[[Iterable[np.ndarray], Any], Iterator[Any]] | None:
        """What is heard while samples arrive, 16,000 a second, as a client asks for it
        (`transformer.serve.listening`). None: it does not hear."""
        return None

    @property
    def prepared(self) -> Json:
        """What may be asked of every output, as far as the run has it: arguments of the decoder's
        `preparation`."""
        extras = available(self.decoder)
        return {name: getattr(extras, name) for name in self.loads.extras}

    # What all have

    def submit(
        self,
        item: Any,
        asked: Asked,
        line: int,
        partial: Callable[[Any], None] | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Future[Any]:
        """Begins to search an item.

        Args:
          item: a text or a file.
          asked: the request's fields.
          line: its number.
          partial: as of `Decoder.submit`.
          is_wanted: whether the client still waits, for items that take seconds to read.

        Raises:
          QueueFull: there is no room for it.
          UserError: it cannot be searched, or an option is wrong.
        """
        record, arguments = self.record(item, asked)
        named = search_options(asked, self.options)
        for name, value in named.items():
            if isinstance(value, str | tuple) and (size := sum(map(size_of, value))) > self.limits.characters:
                most = f"{self.limits.characters:,}"
                raise UserError(f"{name}: {size:,} characters, and there may be {most}: name less")
        options = self.defaults | named
        self._check(asked, {name: options[name] for name in options if name not in OF_RECORDS})
        whole: Json = {name: getattr(asked, name) for name in ("n_best", *self.loads.extras)}
        whole |= {"line": line, "deadline": self.limits.seconds}
        return self.decoder.submit(record, partial=partial, **whole, **arguments, **options)

    def _check(self, asked: Asked, options: Json) -> None:
        """Raises UserError if options are wrong, or programs would have to be compiled for them."""
        named = asked.model_fields_set & {*names_of(type(self.settings)), *OF_RECORDS}
        if unknown := sorted(named - {*self.options}):
            raise UserError(f"{unknown[0]}: run {self.name} has no such option")
        settings = self.decoder.settings(asked.n_best, options)
        if not has_room(self.settings, settings):
            raise UserError(
                f"extra_length {settings.extra_length}, max_length {settings.max_length}: there is room for "
                f"{self.settings.extra_length} and {self.settings.max_length}; ask for less"
            )

    def preparation(self) -> Preparation:
        """What compiles the programs that requests can need. The first are those of requests without options
        and extras."""
        variants = (self.decoder.preparation(**self.defaults | options) for options in self._variants())
        first, *others = variants
        rest = (*first.rest, *itertools.chain(*(one.stages for one in others)))
        return Preparation(first.first, (*rest, list(self.score_programs()) if self.scores else []))

    def score_programs(self) -> Iterator[Job]:
        """What compiles the programs of `scores`, and of `choices`."""
        return iter(())

    def about(self) -> Json:
        """What it is and can do."""
        source, target = self.languages
        return {
            "name": self.name,
            "endpoints": [
                self.search.path,
                *(["/score"] if self.scores else []),
                *(["/choose"] if self.choices else []),
                *(["/listen"] if self.listens else []),
            ],
            "options": list(self.options),
            "outputs": self.settings.num_hypotheses,
            "alignments": self.has_alignments,
            "source_language": source,
            "target_language": target,
        }

    def _variants(self) -> Iterator[Json]:
        """Options for each set of programs that allowed options need, first those of requests without."""
        rules: list[Json] = [{}]
        if any(option in RULES and option != "repetition_penalty" for option in self.options):
            rules.append({"no_repeat_ngram": 3})
        if "repetition_penalty" in self.options:
            rules.append({"repetition_penalty": 1.1})
        shares: list[Json] = [{}]
        if "top_p" in self.options and getattr(self.settings, "top_p", None) == 1:
            shares.append({"top_p": 0.9})
        for one, other in itertools.product(rules, shares):
            yield one | other or self.prepared
        for name in set(OF_RECORDS) & set(self.options):
            yield {name: True}


def service_of(path: Path) -> type[Service]:
    """What serves a run.

    Raises:
      UserError: nothing does.
    """
    run = Run(path)
    task = run.system.task
    module = task.service if issubclass(task, Lines) else ""
    if not module:
        instead = "use decode.py" if issubclass(task, Lines) else "it has no outputs that can be served"
        raise UserError(f"{path}: runs of system {run.config.system} are not served; {instead}")
    service: type[Service] = importlib.import_module(module).SERVICE
    return service


def named(services: Sequence[Service], name: str | None) -> Service:
    """The run of a request. Raises UserError if there is none of this name."""
    if name is None:
        return services[0]
    by_name = {service.name: service for service in services}
    if name not in by_name:
        raise UserError(f"model {name!r}: no such run does this{nearest(name, by_name) or '; see /models'}")
    return by_name[name]
