"""A built-in corpus of short documents and their topics: one to four labels of eight.

    Peter played chess in Bonn. It was a record, said Julia. The clouds over Bonn broke.
    sport weather

Every topic of a document has a sentence or two, between sentences without a topic. Words may occur with
several topics ("played", "season", "record"), so what follows them decides. Labels are in alphabetical order.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in import generated
from transformer.data.built_in.generated import Pair, draw_split
from transformer.data.built_in.lexicon import NAMES

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
TOWNS = ("Berlin", "Bonn", "Bremen", "Dresden", "Hamburg", "Kassel", "Leipzig", "Munich")
SENTENCES = generated.grouped(generated.SENTENCES["documents"])
LABELS = tuple(SENTENCES)
OTHERS = [sentence for (sentence,) in generated.SENTENCES["documents without a topic"]]
SEASONS = ("spring", "summer", "autumn", "winter")


class Document(NamedTuple):
    """A text and its labels."""

    text: str
    labels: tuple[str, ...]
    """The topics of the document, in alphabetical order."""


def records(split: str, seed: int = 0) -> Iterator[Document]:
    """Yields documents, as `draw_split`. A hash of the text decides in which split one is."""
    return draw_split("topics", split, seed, _document, lambda record: record.text)


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields texts, and labels with spaces between them."""
    return ((record.text, " ".join(record.labels)) for record in records(split, seed))


def _document(chance: random.Random) -> Document:
    labels = sorted(chance.sample(LABELS, chance.choice((1, 1, 2, 2, 3, 4))))
    sentences = []
    for label in labels:
        sentences += chance.sample(SENTENCES[label], chance.choice((1, 1, 2)))
    sentences += chance.sample(OTHERS, chance.choice((0, 1, 1, 2)))
    chance.shuffle(sentences)
    return Document(" ".join(_filled(chance, sentence) for sentence in sentences), tuple(labels))


def _filled(chance: random.Random, sentence: str) -> str:
    """A sentence with a word for each choice in braces."""
    words = {"name": NAMES, "town": TOWNS, "season": SEASONS}
    text, *parts = sentence.split("{")
    for part in parts:
        choice, rest = part.split("}")
        text += chance.choice(words.get(choice) or choice.split("|")) + rest
    return text
