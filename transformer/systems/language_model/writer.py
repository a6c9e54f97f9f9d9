"""What a language model writes after each prompt."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from transformer.cli.decode_arguments import DecodeArguments, Way
from transformer.cli.input import input_lines
from transformer.cli.writer import Numbered, Texts, Written, explored
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json
from transformer.systems.language_model.api import Generator, before
from transformer.systems.language_model.task import Generated

if TYPE_CHECKING:
    from transformer.explorer.explorer import Explorer


class Generations(Texts):
    """Continuations of prompts as text, with scores, or as JSON; or piece by piece."""

    does = "continues text and does not translate"
    can = frozenset({"until", "stream", "page"})
    outputs_key = "outputs"
    loads: ClassVar = Generator
    instead: ClassVar = {"token_scores": "scores of tokens are in Generator.score"}
    generator: Generator

    @classmethod
    def way(cls, arguments: DecodeArguments) -> Way:
        """Lines, whose continuations --stream shows piece by piece."""
        return Way.PIECES if arguments.stream else Way.LINES

    @classmethod
    def page(cls, arguments: DecodeArguments) -> "tuple[Explorer, str]":
        from transformer.systems.language_model.page import explore_texts

        generator = Generator.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
        lines = enumerate(map(generator.task.record, input_lines(arguments)), start=1)
        prompts, description = explored(arguments, lines, lambda prompt: True)
        page = explore_texts(
            generator,
            list(prompts.values()),
            n_best=arguments.n_best,
            lines=tuple(prompts),
            **vars(arguments.decoding),
        )
        return page, f"{counted(page.hypotheses, 'text')} after {description}"

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Generator:
        arguments = self.arguments
        if not all(arguments.until):
            raise UserError("--until '': every text contains it; name what the output should end before")
        if arguments.stream:
            length = self.options.pop("extra_length")  # no search is that long
            assert isinstance(length, int)
            self.length = length
        self.generator = cast(Generator, super().load(run_dir, checkpoint, int8))
        self.until = [self.generator.task.record(text) for text in arguments.until]
        return self.generator

    @property
    def job(self) -> list[str]:
        return [*super().job, repr(self.until)]

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        if not self.arguments.stream:
            return super().of(lines)
        return itertools.chain.from_iterable(self._streamed(*numbered) for numbered in lines if numbered)

    def _streamed(self, number: int, line: str) -> Iterator[Written]:
        prompt, length = self.generator.task.record(line), self.length
        pieces = self.generator.pieces(prompt, length=length, until=self.until, line=number, **self.options)
        yield from ((piece, "") for piece in pieces)
        yield "\n", ""

    def text(self, number: int, item: str, outputs: Sequence[Generated]) -> str:
        stopped = [dataclasses.replace(output, text=before(output.text, self.until)) for output in outputs]
        return super().text(number, item, stopped)

    def input_fields(self, item: str) -> Json:
        return {"prompt": self.generator.task.record(item)}


WRITER = Generations
