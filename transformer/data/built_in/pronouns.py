"""A built-in corpus of English-German passages whose pronouns need the sentences before them.

    Anna has found a key.              Anna hat einen Schlüssel gefunden.
    It is very small.                  Er ist sehr klein.
    Peter needs a new one.             Peter braucht einen neuen.

"It" is er, sie or es by the gender of an earlier noun: that of the first thing in the last
sentence that names one. Words that agree with it ("a new one", "which one") need it too. Sentences about
something else may stand between, so the noun may be several sentences away.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from transformer.data.built_in.generated import SENTENCES, Pair, draw_split, pairs_of
from transformer.data.built_in.inflection import Noun, determiner, nouns_of
from transformer.data.built_in.lexicon import NAMES

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
INTRODUCTIONS, DEPENDENT, INDEPENDENT = (
    pairs_of(SENTENCES[kind]) for kind in ("introductions", "dependent", "independent")
)
ROOMS = {"kitchen": "in der Küche", "garden": "im Garten", "office": "im Büro", "room": "im Zimmer"}
ADJECTIVES = {"new": "neu", "small": "klein", "red": "rot", "blue": "blau", "black": "schwarz"}
GENDERS = "mfn"
PRONOUNS = {
    "it_nom": dict(zip(GENDERS, ("er", "sie", "es"), strict=True)),
    "it_acc": dict(zip(GENDERS, ("ihn", "sie", "es"), strict=True)),
    "it_dat": dict(zip(GENDERS, ("ihm", "ihr", "ihm"), strict=True)),
}
BETWEEN = 0.3
"""How often a sentence about something else stands between."""


class Sentence(NamedTuple):
    """A sentence of a passage."""

    source: str
    target: str
    others: tuple[str, ...] = ()
    """What its German would be if the thing had another gender; empty if that does not matter."""


@cache
def things(gender: str) -> tuple[Noun, ...]:
    """The things of a gender."""
    nouns = nouns_of("thing,garment,furniture,vehicle,book,letter,newspaper")
    return tuple(noun for noun in nouns if noun.gender == gender and "public" not in noun.classes)


def records(split: str, seed: int = 0) -> Iterator[tuple[Sentence, ...]]:
    """Yields passages of two to six sentences, as `draw_split`. A hash of its English decides the split."""
    return draw_split(
        "pronouns", split, seed, _passage, lambda passage: " ".join(sentence.source for sentence in passage)
    )


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields the pairs of passages; one without text after each."""
    for passage in records(split, seed):
        yield from (sentence[:2] for sentence in passage)
        yield "", ""


def _passage(chance: random.Random) -> tuple[Sentence, ...]:
    sentences: list[Sentence] = []
    for _ in range(chance.choice((1, 1, 2))):
        gender = chance.choice(GENDERS)  # then each pronoun is as frequent
        sentences.append(_sentence(chance, INTRODUCTIONS, gender))
        for _ in range(chance.randint(1, 2)):
            if chance.random() < BETWEEN:
                sentences.append(_sentence(chance, INDEPENDENT, gender))
            sentences.append(_sentence(chance, DEPENDENT, gender))
    return tuple(sentences)


def _sentence(chance: random.Random, patterns: tuple[Pair, ...], gender: str) -> Sentence:
    """A sentence about a thing of a gender."""
    english, german = chance.choice(patterns)
    thing = chance.choice(things(gender))
    other = chance.choice(things(chance.choice([one for one in GENDERS if one != gender])))
    room = chance.choice(list(ROOMS))
    adjective = chance.choice(list(ADJECTIVES))
    words = {
        "name": chance.choice(NAMES),
        "thing": thing.english,
        "other": other.english,
        "room": room,
        "in_room": ROOMS[room],
        "adjective": adjective,
        "adjektiv": ADJECTIVES[adjective],
        "the_nom": _phrase("d", "nom", thing),
        "the_acc": _phrase("d", "acc", thing),
        "a_acc": _phrase("ein", "acc", thing),
        "the_other": _phrase("d", "dat", other),
        "beside_other": _phrase("d", "acc", other),
    }
    targets = {one: _capitalised(german.format(**words, **_agreeing(one, adjective))) for one in GENDERS}
    target = targets[gender]
    others = tuple(sorted({text for text in targets.values() if text != target}))
    return Sentence(english.format(**words), target, others)


def _agreeing(gender: str, adjective: str) -> dict[str, str]:
    """Pronouns, and what else agrees with a noun that is not said."""
    article, ending = determiner("ein", "acc", gender)
    return {
        **{name: forms[gender] for name, forms in PRONOUNS.items()},
        "one_acc": f"{article} {ADJECTIVES[adjective]}{ending}",
        "which_acc": determiner("welch", "acc", gender)[0],
        "this_nom": determiner("dies", "nom", gender)[0],
    }


def _phrase(stem: str, case: str, noun: Noun) -> str:
    return f"{determiner(stem, case, noun.gender)[0]} {noun.inflect(case, plural=False)[1]}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
