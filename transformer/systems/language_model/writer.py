"""What a language model writes after each prompt."""

import dataclasses
import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.writer import Numbered, Writer, Written, lines_given, refuse
from transformer.errors import UserError
from transformer.files import Json
from transformer.systems.language_model.api import Generator, before
from transformer.systems.language_model.task import Generated

if TYPE_CHECKING:
    from transformer.inspection.explorer import Explorer


class Generations(Writer):
    """Continuations of prompts as text, with scores, or as JSON; or piece by piece."""

    does = "continues text and does not translate"
    uses = ("until", "stream")
    instead: ClassVar = {"token_scores": "scores of tokens are in Generator.score"}
    generator: Generator

    @classmethod
    def page(cls, given: DecodeArguments) -> "tuple[Explorer, str]":
        from transformer.inspection.explorer import SENTENCES
        from transformer.systems.language_model.page import explore_texts

        generator = Generator.load(given.run_dir, given.checkpoint, int8=given.int8)
        prompts = list(itertools.islice(map(generator.task.record, lines_given(given)), SENTENCES))
        if not prompts:
            raise UserError("nothing to explore: the input has no line")
        options = vars(given.decoding)
        page = explore_texts(generator, prompts, n_best=given.n_best, **options)
        return page, f"{page.hypotheses} texts after {page.sentences} prompts (at most {SENTENCES})"

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Generator:
        """The trained model."""
        given = self.given
        if not all(given.until):
            raise UserError("--until '': every text contains it; name what the output should end before")
        if given.stream:
            length = self.options.pop("extra_length")  # no search is that long
            assert isinstance(length, int)
            self.length = length
            refuse(given, ("output", "n_best"), "--stream shows one output of each prompt while it grows")
            if given.format != "text":
                refuse(given, ("format",), "--stream shows text")
        self.n_best = given.n_best or 1
        self.each = 1 if given.format == "json" else self.n_best
        self.generator = Generator.load(run_dir, checkpoint, int8=int8)
        self.until = [self.generator.task.record(text) for text in given.until]
        return self.generator

    @property
    def job(self) -> list[str]:
        return [*super().job, repr(self.until)]

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        if self.given.stream:
            yield from itertools.chain.from_iterable(self._streamed(each) for each in lines if each)
            return
        task, waiting = self.generator.task, deque[tuple[int, str]]()

        def records() -> Iterator[tuple[int, str] | None]:
            for given in lines:
                if given:
                    waiting.append((given[0], task.record(given[1])))
                yield given and waiting[-1]

        settings = self.generator.settings(self.n_best, self.options)
        for found in self.generator.outputs(records(), settings, self.n_best):
            yield found and (self._text(*waiting.popleft(), self._stopped(found)), "")

    def _streamed(self, given: tuple[int, str]) -> Iterator[Written]:
        number, line = given
        prompt, length = self.generator.task.record(line), self.length
        pieces = self.generator.pieces(prompt, length=length, until=self.until, line=number, **self.options)
        yield from ((piece, "") for piece in pieces)
        yield "\n", ""

    def _stopped(self, found: Sequence[Generated]) -> list[Generated]:
        return [dataclasses.replace(each, text=before(each.text, self.until)) for each in found]

    def _text(self, number: int, prompt: str, found: list[Generated]) -> str:
        if self.given.format == "json":
            outputs = [
                {"text": x.text, "tokens": x.tokens, "score": x.score, "log_probability": x.log_probability}
                for x in found
            ]
            about = {"line": number, "prompt": prompt, "outputs": outputs}
            return json.dumps(about, ensure_ascii=False) + "\n"
        return self.lines(found)

    def read_object(self, about: Json) -> str:
        return str(about["outputs"][0]["text"])


WRITER = Generations
