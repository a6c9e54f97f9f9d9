"""What taggers do for clients: labels of the words of sentences."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from transformer.runtime.files import Json
from transformer.serve.services.messages import Asked, Endpoint, Texts
from transformer.serve.services.service import Service
from transformer.systems.tagging.api import Tagger


class AskedTags(Asked):
    """Sentences whose words are labelled."""

    text: str | Annotated[list[str | Texts], Field(fail_fast=True)] = Field(
        description="A sentence, its words separated by spaces, or a list of sentences, each such a text or "
        "a list of words."
    )


class Tags(Service):
    """Labels of words."""

    search = Endpoint(
        "/tag",
        "The labels of the words of sentences.",
        AskedTags,
        {"text": ["The old dog sleeps .", ["A", "cat", "runs", "."]]},
        several=False,
    )
    loads: ClassVar = Tagger
    decoder: Tagger

    def record(self, item: str | list[str], asked: Any) -> tuple[Any, Json]:
        """The words of a sentence."""
        return self.decoder.record(item), {}


SERVICE = Tags
