"""The labels of the words in each line."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import ClassVar

from transformer.cli.writer import Numbered, Writer, Written
from transformer.data.store import Record
from transformer.systems.tagging.system import Tagged


class Tags(Writer):
    """Words with their labels, such as old/JJ; or JSON objects with words, labels and probabilities."""

    does = "labels words and does not translate"
    instead: ClassVar = dict.fromkeys(("jsonl", "tsv"), "a line is a sentence, its words separated by spaces")
    formats: ClassVar = ("text", "json")

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        settings, numbers = self.decoder.settings(1, self.options), deque[int]()

        def records() -> Iterator[tuple[int, Record] | None]:
            for numbered in lines:
                if numbered:
                    numbers.append(numbered[0])
                yield numbered and (numbered[0], self.record(*numbered))

        for outputs in self.decoder.outputs(records(), settings, 1):
            yield outputs and (self._written(numbers.popleft(), outputs[0]), "")

    def _written(self, number: int, tagged: Tagged) -> str:
        if self.arguments.format != "json":
            return f"{tagged}\n"
        probabilities = [round(probability, 4) for probability in tagged.probabilities]
        fields = {"line": number, **tagged.to_dict(), "probabilities": probabilities}
        return json.dumps(fields, ensure_ascii=False) + "\n"


WRITER = Tags
