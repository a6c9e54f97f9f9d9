"""The shape of LibreTranslate's API, so that its clients work unchanged: `/translate` with q, source, target
and format, and `/languages`."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from pydantic import ConfigDict, Discriminator, Field, Tag

from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.serve.bodies import form_of, json_of
from transformer.serve.services.messages import Asked, Name, Sent, Texts
from transformer.serve.services.service import Service

LIBRETRANSLATE_PATH = "/translate"
ANY = "auto"
"""The source language of a client that leaves it open."""
EXAMPLE = {"q": "A dog runs.", "source": "en", "target": "de", "format": "text"}
OWN, OTHER = "own", "libretranslate"
"""The two shapes of a request."""


class LibreTranslation(Sent):
    """Texts to translate, as clients of LibreTranslate ask for it."""

    model_config = ConfigDict(extra="ignore")

    q: str | Texts = Field(description="A text, or a list of them.")
    source: Name = Field(ANY, description="Code of the language of the texts, or auto.")
    target: Name = Field(description="Code of the language to translate to.")
    format: Literal["text"] = Field("text", description="Only text is translated.")
    alternatives: int = Field(0, ge=0, description="Further translations of each text.")
    api_key: str = Field("", description="The token, if the server has one.")


def either(fields: Any) -> Any:
    """The type of requests that have either these fields or those of LibreTranslate, which have q."""

    def shape(body: Any) -> str:
        return OTHER if isinstance(body, dict) and "q" in body else OWN

    shapes = Annotated[fields, Tag(OWN)] | Annotated[LibreTranslation, Tag(OTHER)]
    return Annotated[shapes, Discriminator(shape)]


def service_and_fields(
    asked: LibreTranslation, services: Sequence[Service], fields: type[Asked]
) -> tuple[Service, Any]:
    """The run that translates between the languages of a request, and the request in this server's shape.

    Raises:
      UserError: no run does.
    """
    for service in services:
        n_best = min(1 + asked.alternatives, service.settings.num_hypotheses)
        source, target = service.languages
        if source and target and asked.target == target and asked.source in (source, ANY):
            return service, fields.model_validate({"text": asked.q, "n_best": n_best})
        if {asked.source, asked.target} <= set(service.codes):
            named = {"source_language": asked.source, "target_language": asked.target}
            return service, fields.model_validate({"text": asked.q, "n_best": n_best, **named})
    raise UserError(f"no run translates from {asked.source} to {asked.target}: see /languages")


@contextlib.contextmanager
def named_q() -> Iterator[None]:
    """Errors about `text` name the field `q`, as such a request has it."""
    try:
        yield
    except UserError as error:
        raise UserError(re.sub(r"^text(?=[ :])", "q", str(error))) from error


def languages(services: Sequence[Service]) -> list[Json]:
    """The source languages of all runs, with those they are translated to."""
    targets: dict[str, set[str]] = {}
    for service in services:
        source, target = service.languages
        if source and target:
            targets.setdefault(source, set()).add(target)
        for code in service.codes:
            targets.setdefault(code, set()).update(other for other in service.codes if other != code)
    return [
        {"code": code, "name": code, "targets": sorted(others)} for code, others in sorted(targets.items())
    ]


def translated(asked: LibreTranslation, outputs: Sequence[list[Any]]) -> Json:
    """The answer: a text for a text, a list for a list."""
    texts = [best.text for best, *_ in outputs]
    others = [[other.text for other in rest] for _, *rest in outputs]
    is_one = isinstance(asked.q, str)
    answer: Json = {"translatedText": texts[0] if is_one else texts}
    truncated = [best.truncated for best, *_ in outputs]
    if any(truncated):  # the model has not read the whole of it
        answer["truncated"] = truncated[0] if is_one else truncated
    return answer | ({"alternatives": others[0] if is_one else others} if asked.alternatives else {})


def key_of(path: str, body: bytes, content: str) -> str | None:
    """The token in the body of a request. None: such a request has none there."""
    if path != LIBRETRANSLATE_PATH:
        return None
    try:
        form = form_of(body, content) if body else None
        fields = form.fields if form else json_of(body or b"{}")
        return str(fields.get("api_key", ""))
    except (HTTPException, AttributeError):  # no JSON, or none with fields
        return ""
