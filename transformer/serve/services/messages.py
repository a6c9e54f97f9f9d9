"""What clients send: fields, their types and what they mean. Options of a search are those of its config."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, field_validator

from transformer.cli.parser import texts as docstrings
from transformer.config.decoding import DecodingConfig
from transformer.config.ranges import TEMPERATURE
from transformer.config.searches import METHODS
from transformer.runtime.files import Json
from transformer.tasks.texts.requests import TranslationRequest

Name = Annotated[str, Field(max_length=255)]
"""The name of a run, a language or a task: as long as that of a file."""
Texts = Annotated[list[str], Field(fail_fast=True)]
"""Texts of a request. Only the first mistake in a list counts: to note thousands takes seconds."""
Source = str | dict[str, Any]
"""A text, or its inputs by their names, which the task checks as of any row."""
Strings = Annotated[tuple[str, ...], Field(fail_fast=True)]


class Sent(BaseModel):
    """What a client sends: no other fields."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true and false where numbers are meant, as which Python counts them."""
        kind = cls.model_fields[info.field_name or ""].annotation
        kinds = {kind, *get_args(kind), *itertools.chain(*map(get_args, get_args(kind)))}
        truths = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, bool)]
        if truths and kinds & {int, float}:
            raise ValueError(f"must be a number, not {str(truths[0]).lower()}")
        return value


class Asked(Sent):
    """What every search is asked."""

    model: Name | None = Field(None, description="Name of a run. Default: the first that can do it.")
    n_best: int = Field(1, ge=1, description="Outputs of each text, best first.")
    stream: bool = Field(False, description="Answer with server-sent events, with outputs as they grow.")


class AskedTexts(Asked):
    """Texts to search outputs of."""

    text: str | Texts = Field(description="A text, or a list of them.")


class AskedTranslations(Asked):
    """Texts to translate."""

    text: Source | Annotated[list[Source], Field(fail_fast=True)] = Field(
        description="A text, or a list of them. A text may be an object with the inputs of the model by "
        "their names, as decode.py --jsonl reads it; an input may be a list, such as turns of a conversation."
    )
    context: Texts | Annotated[list[Texts], Field(fail_fast=True)] | None = Field(
        None, description="Sentences before the text, oldest first; for a list of texts, a list for each."
    )
    divide: bool | None = Field(
        None,
        description="Whether a text is translated sentence by sentence, with its line breaks. False: the "
        "model reads it as one. Texts of other tasks than translation, and those with a prefix or terms, "
        "always are. Default: true, but for models such as T5, whose texts may begin with an instruction.",
    )
    source_language: Name | None = Field(None, description="Its code, for a model of many languages.")
    target_language: Name | None = Field(None, description="The code of the language to translate to.")


class AskedScores(Sent):
    """Texts to score."""

    model: Name | None = Field(None, description="Name of a run. Default: the first that can do it.")
    text: str | Texts = Field(description="A text, or a list of them: sources, or what is scored itself.")
    target: str | Texts | None = Field(None, description="The translation of each, for translators.")
    source_language: Name | None = Field(None, description="Its code, for a model of many languages.")
    target_language: Name | None = Field(None, description="The code of the translations' language.")


class AskedChoices(Sent):
    """Texts for which one of some labels is right."""

    model: Name | None = Field(None, description="Name of a run. Default: the first that can do it.")
    text: Source | Annotated[list[Source], Field(fail_fast=True)] = Field(
        description="A text, or a list of them, as of /translate."
    )
    choices: Texts = Field([], description="The labels. Default: those of the training text.")
    temperature: float = Field(
        1.0,
        ge=TEMPERATURE.least,
        le=TEMPERATURE.most,
        description="Above 1: less certain; below: more certain.",
    )
    source_language: Name | None = Field(None, description="Its code, for a model of many languages.")
    target_language: Name | None = Field(None, description="The code of the labels' language.")


@dataclass(frozen=True)
class Endpoint:
    """What can be asked of some runs."""

    path: str
    about: str
    asked: type[Asked]
    """The fields of a request, without the options of its search."""
    example: Json
    hears: bool = False
    """Whether the body is a file, such as a recording, and fields are in the query of the address."""
    media: str = "audio/*"
    """The type of that file."""
    several: bool = True
    """Whether there may be several outputs, best first. False: the answer is the only one."""


def with_options(endpoint: Endpoint, extras: Iterable[str], options: Iterable[str]) -> type[Asked]:
    """The fields of a request with what may be asked of outputs, and the options of the search.

    Args:
      endpoint: what is asked.
      extras: what may be asked of outputs (`Decoder.extras`).
      options: those that are allowed.
    """
    fields: dict[str, Any] = {}
    for name in extras:
        about = f"Whether to return the {name.replace('_', ' ')} of each output."
        fields[name] = (bool, Field(False, description=about))
    for name in options:
        kind, about = _option(name)
        fields[name] = (kind | None, Field(None, description=about))
    return create_model(endpoint.asked.__name__, __base__=endpoint.asked, **fields)


def _option(name: str) -> tuple[Any, str]:
    """The type of what may be asked of a text or of its search, and what it means."""
    declared_in = TranslationRequest, DecodingConfig, *METHODS.values()
    declaration = next(cls for cls in declared_in if name in get_type_hints(cls))
    hint = get_type_hints(declaration)[name]
    return Strings if hint == tuple[str, ...] else hint, docstrings(declaration)[name]


def search_options(asked: Asked, names: Iterable[str]) -> Json:
    """The options of the search that a request gives."""
    return {name: value for name in names if (value := getattr(asked, name, None)) is not None}
