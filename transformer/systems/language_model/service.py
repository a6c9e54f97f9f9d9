"""What language models do for clients: continuations of prompts, and the scores of texts."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pydantic import Field

from transformer.decoding.service.lanes import Job
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.serve.services.limits import texts_of
from transformer.serve.services.messages import AskedScores, AskedTexts, Endpoint
from transformer.serve.services.service import Service
from transformer.systems.language_model.api import Generator, before
from transformer.systems.language_model.task import Generated


class AskedContinuations(AskedTexts):
    """Prompts to continue."""

    until: list[str] = Field([], description="Outputs end before the first of these strings.", max_length=16)


class Continuations(Service):
    """What follows prompts."""

    search = Endpoint(
        "/generate",
        "What follows prompts.",
        AskedContinuations,
        {"text": "Once upon a time", "until": ["\n"]},
    )
    loads: ClassVar = Generator
    decoder: Generator

    def record(self, item: str, asked: Any) -> tuple[str, Json]:
        """A prompt."""
        if not all(asked.until):
            raise UserError("until: a string is empty, which every text contains; leave it out")
        return item, {}

    def answer(self, item: str, outputs: list[Generated], asked: Any) -> Json:
        """What follows, up to one of the strings that end it."""
        ended = [dataclasses.replace(output, text=before(output.text, asked.until)) for output in outputs]
        return super().answer(item, ended, asked)

    @property
    def scores(self) -> Callable[[AskedScores], Iterator[list[Json]]] | None:
        """log P(text) of each text as a whole document."""
        return self._scores

    def score_programs(self) -> Iterator[Job]:
        """The programs that score the first segment of a text and a further one."""
        text = " ".join("a" * self.decoder.config.data.max_length)  # type: ignore[attr-defined]
        yield functools.partial(self.decoder.score, [text])  # type: ignore[misc]

    def _scores(self, asked: AskedScores) -> Iterator[list[Json]]:
        if asked.target is not None:
            raise UserError(f"target: run {self.name} scores texts alone; leave it out")
        for text in texts_of(asked.text, self.limits):
            yield [scored.to_json() for scored in self.decoder.score([text])]


SERVICE = Continuations
