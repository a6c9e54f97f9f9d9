"""A built-in corpus of opinions and their sentiment: positive, negative or neutral.

    The soup was not bad.                                        positive
    The hotel was lovely, but the breakfast was terrible.        negative
    We saw the museum on Monday.                                 neutral

No word alone decides. "not" turns an opinion into its opposite; of two that differ, the one after "but"
counts, and the one that "although" does not introduce.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in.generated import SENTENCES, Pair, draw_split

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
POSITIVE, NEGATIVE, NEUTRAL = LABELS = ("positive", "negative", "neutral")
THINGS = (
    *("breakfast", "soup", "coffee", "cake", "menu", "music", "film", "story", "ending", "service"),
    *("room", "view", "garden", "hotel", "museum", "guide", "trip", "lamp", "phone", "price"),
)
GOOD = (
    *("beautiful", "brilliant", "charming", "delightful", "excellent", "good", "great", "lovely"),
    *("pleasant", "wonderful"),
)
BAD = (
    *("awful", "bad", "boring", "disappointing", "dreadful", "horrible", "poor", "terrible", "ugly"),
    *("unpleasant",),
)
DEGREES = ("", "", "", "very ", "really ", "quite ", "truly ")
OPINIONS, NEGATED, FACTS = (
    [clause for (clause,) in SENTENCES[kind]] for kind in ("opinions", "negated opinions", "facts")
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
OPPOSITE = {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE}


class Opinion(NamedTuple):
    """A sentence and its sentiment."""

    text: str
    label: str


def records(split: str, seed: int = 0) -> Iterator[Opinion]:
    """Yields opinions, as `draw_split`. A hash of the sentence decides in which split one is."""
    return draw_split("opinions", split, seed, _opinion, lambda record: record.text)


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields sentences and labels."""
    return ((record.text, record.label) for record in records(split, seed))


def _opinion(chance: random.Random) -> Opinion:
    label = chance.choice(LABELS)
    one, other = chance.sample(THINGS, 2)
    if label == NEUTRAL:
        clauses = [_fact(chance, thing) for thing in (one, other)]
        return Opinion(_sentence(" and ".join(clauses[: chance.choice((1, 2, 2, 2, 2))])), label)
    draw = chance.random()
    first, second = _clause(chance, one, label), _clause(chance, other, label)
    contrary = _clause(chance, other, OPPOSITE[label])
    if draw < 0.2:
        text = f"{first} and {second}"
    elif draw < 0.4:
        text = f"{contrary}, but {first}"
    elif draw < 0.55:
        text = f"although {contrary}, {first}"
    elif draw < 0.7:
        text = f"{first}, although {contrary}"
    elif draw < 0.85:
        text = " and ".join(chance.sample((first, _fact(chance, other)), 2))
    else:
        text = first
    return Opinion(_sentence(text), label)


def _clause(chance: random.Random, thing: str, label: str) -> str:
    """An opinion about a thing, in a third of the cases by denying the opposite."""
    if chance.random() < 1 / 3:
        word = chance.choice(BAD if label == POSITIVE else GOOD)
        return chance.choice(NEGATED).format(thing=thing, word=word)
    word = chance.choice(GOOD if label == POSITIVE else BAD)
    return chance.choice(OPINIONS).format(thing=thing, degree=chance.choice(DEGREES), word=word)


def _fact(chance: random.Random, thing: str) -> str:
    """A clause that says nothing about quality, or nothing in particular."""
    words = {"count": COUNTS, "day": DAYS, "good": GOOD, "bad": BAD}
    chosen = {name: chance.choice(some) for name, some in words.items()}
    return chance.choice(FACTS).format(thing=thing, **chosen)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
