"""Texts: what decode.py writes for any task whose outputs are texts. Systems with more to write extend it."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import fields
from typing import Any, ClassVar

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.writer import Numbered, Writer, Written
from transformer.data.store import Record
from transformer.runtime.files import Json
from transformer.translator.search_outputs import Extras, check_extras, identity


class Texts(Writer):
    """Outputs as text, with scores, or as JSON."""

    does = "writes text"
    can: ClassVar[Set[str]] = frozenset({"fusion", "alignments", "scores", "confidence"})
    formats: ClassVar[tuple[str, ...]] = ("text", "scores", "json")
    outputs_key = "hypotheses"
    """Of the outputs in a JSON object."""

    def __init__(self, arguments: DecodeArguments) -> None:
        super().__init__(arguments)
        check_extras(self.decoder, self.extras)

    @property
    def extras(self) -> Extras:
        """What is asked of each output besides text and score."""
        return Extras(**{item.name: getattr(self.arguments, item.name) for item in fields(Extras)})

    @property
    def job(self) -> list[str]:
        return [*super().job, repr(self.extras), *identity(self.decoder, self.extras)]

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        waiting = deque[tuple[int, str]]()

        def records() -> Iterator[tuple[int, Record] | None]:
            for numbered in lines:
                if numbered:
                    waiting.append(numbered)
                yield numbered and (numbered[0], self.record(*numbered))

        settings = self.decoder.settings(self.n_best, self.options)
        for outputs in self.decoder.outputs(records(), settings, self.n_best, self.extras):
            yield outputs and (self.text(*waiting.popleft(), outputs), outputs[0].text)

    def text(self, number: int, line: str, outputs: Sequence[Any]) -> str:
        """What is written for a line."""
        if self.arguments.format != "json":
            return self.lines(outputs)
        about = {"line": number, **self.input_fields(line)}
        about[self.outputs_key] = [self.output_fields(output) for output in outputs]
        return json.dumps(about, ensure_ascii=False) + "\n"

    def input_fields(self, line: str) -> Json:
        """The input, in a JSON object."""
        return {"input": line}

    def output_fields(self, output: Any) -> Json:
        """An output, in a JSON object."""
        fields: Json = output.to_json()
        return fields

    def read_object(self, about: Json) -> str:
        return str(about[self.outputs_key][0]["text"])


WRITER = Texts
