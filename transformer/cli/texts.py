"""Texts: what decode.py writes for any task whose outputs are texts. Systems with more to write extend it."""

from collections.abc import Sequence, Set
from dataclasses import fields
from typing import Any, ClassVar

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.writer import Writer
from transformer.runtime.files import Json
from transformer.translator.search_outputs import Extras, check_extras, identity


class Texts(Writer):
    """Outputs as text, with scores, or as JSON."""

    does = "writes text"
    can: ClassVar[Set[str]] = frozenset({"fusion", "alignments", "scores", "confidence"})
    formats: ClassVar[tuple[str, ...]] = ("text", "scores", "json")
    input_key, outputs_key = "input", "hypotheses"

    def __init__(self, arguments: DecodeArguments) -> None:
        self.extras = Extras(**{item.name: getattr(arguments, item.name) for item in fields(Extras)})
        super().__init__(arguments)
        check_extras(self.decoder, self.extras)

    @property
    def job(self) -> list[str]:
        return [*super().job, repr(self.extras), *identity(self.decoder, self.extras)]

    def scored(self, outputs: Sequence[Any]) -> str:
        return str(outputs[0].text)

    def read_object(self, about: Json) -> str:
        return str(about[self.outputs_key][0]["text"])


WRITER = Texts
