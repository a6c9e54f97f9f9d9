"""A built-in corpus of short documents and their topics: one to four labels of eight.

    Peter played chess in Bonn. It was a record, said Julia. The clouds over Bonn broke.
    sport weather

Every topic of a document has a sentence or two, between sentences without a topic. Words may occur with
several topics ("played", "season", "record"), so what follows them decides. Labels are in alphabetical order.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in.generated import Pair, draw_split
from transformer.data.built_in.lexicon import NAMES

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
TOWNS = ("Berlin", "Bonn", "Bremen", "Dresden", "Hamburg", "Kassel", "Leipzig", "Munich")
SENTENCES = {
    "animals": (
        "{name} saw a {fox|deer|hawk|badger} near {town}.",
        "The {cows|sheep|goats|horses} of {town} are on the meadow again.",
        "{name} feeds the {birds|ducks|rabbits} every {season}.",
        "A record number of {swans|storks|bats} came to {town}.",
    ),
    "food": (
        "{name} cooked {soup|rice|noodles|beans} for {name}.",
        "In {town} the {season} begins with {cake|cheese|asparagus|pears}.",
        "The new {restaurant|bakery|café} in {town} is full.",
        "{name} broke the record for eating {pancakes|plums|dumplings}.",
    ),
    "health": (
        "{name} has had a {cold|cough|fever} since the {season}.",
        "The {hospital|doctors|nurses} of {town} advise more sleep.",
        "{name} broke {an arm|a leg|a finger} in {town}.",
        "A new {vaccine|medicine|therapy} was tested in {town}.",
    ),
    "money": (
        "{Prices|Wages|Rents} in {town} rose this {season}.",
        "The {bank|budget|tax office} of {town} reports a record.",
        "{name} sold {shares|bonds|gold} to {name}.",
        "{name} played with {dollars|euros} and lost.",
    ),
    "music": (
        "{name} played the {piano|violin|flute|drums} in {town}.",
        "The {choir|orchestra|opera} of {town} opens its season.",
        "{name} made a record of {songs|sonatas} with {name}.",
        "{name} cannot sing this {tune|aria} in the {season}.",
    ),
    "sport": (
        "{name} played {tennis|football|chess|hockey} in {town}.",
        "The {team|club|coach} of {town} opens its season.",
        "{name} set a record in the {marathon|sprint|high jump}.",
        "{name} broke a {racket|ski|paddle} in {town}.",
    ),
    "travel": (
        "The {train|ferry|flight|bus} to {town} takes longer this {season}.",
        "{name} booked a {cabin|hotel|tour} in {town}.",
        "{name} and {name} went to {town} by {tram|coach|boat}.",
        "A record number of {tourists|passengers} came to {town}.",
    ),
    "weather": (
        "The {storm|fog|snow|frost} will reach {town} tonight.",
        "{town} had its {wettest|driest|coldest|warmest} {season}.",
        "A record amount of {rain|sunshine|hail} came to {town}.",
        "The {clouds|winds|showers} over {town} broke.",
    ),
}
"""Of a choice in braces any word can be taken; `name`, `town` and `season` stand for one of theirs."""
LABELS = tuple(SENTENCES)
OTHERS = (
    "{name} told {name} about it in {town}.",
    "Nobody in {town} had expected this.",
    "{name} opens the {season} in {town}.",
    "It was a record, said {name}.",
    "{name} came to {town} with {name}.",
)
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
