"""Random phrases in both languages: noun phrases, prepositional phrases, times.

A phrase is fully inflected, in the German case that the caller asks for. It has the features that the
clause needs: its agreement, whether it is a pronoun or indefinite (German word order depends on it), and
whom it names.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from transformer.data.built_in import lexicon
from transformer.data.built_in.inflection import Noun, Pair, Slot, determiner, nouns_of, number, ordinal, year

Choice = TypeVar("Choice")


def pick(rng: random.Random, options: Sequence[Choice]) -> Choice:
    """Samples one of the options. Uses random() alone, which is reproducible across Python versions."""
    return options[int(rng.random() * len(options))]


def join(*parts: str) -> str:
    """The non-empty parts, separated by spaces."""
    return " ".join(filter(None, parts))


# --- Noun phrases


class Phrase(NamedTuple):
    """A phrase in both languages, with the features that its clause needs.

    `agreement` is as in `conjugate`. Two phrases of a clause must not share any of `heads`.
    """

    english: str
    german: str
    agreement: int = 2
    kind: Literal["pronoun", "definite", "indefinite"] = "definite"
    heads: tuple[str, ...] = ()


class Determiner(NamedTuple):
    """The English singular and plural forms, and the German stem."""

    singular: str
    plural: str
    german: str
    is_definite: bool = True


THE = Determiner("the", "the", "d")
THIS = Determiner("this", "these", "dies")
A = Determiner("a", "", "ein", False)
BARE = Determiner("", "", "", False)
MANY = Determiner("", "many", "viel", False)
POSSESSIVES = tuple(Determiner(word, word, stem) for word, stem in lexicon.POSSESSIVES.items())
NAMES = tuple(Phrase(name, name, heads=(name,)) for name in lexicon.NAMES)
UNOWNED = {"person", "public", "mass"}  # in the genitive: "my friend" is fine, "Anna's man" is not


@cache
def _determiners(noun: Noun) -> tuple[Determiner, ...]:
    """The determiners that a noun can have; more likely ones are repeated."""
    if "kin" in noun.classes:
        return (THE, THE, *POSSESSIVES, *POSSESSIVES, *([A] if noun.english_plural else []))
    return (
        *8 * [THE],
        *2 * [THIS],
        *4 * [BARE if "mass" in noun.classes else A],
        *(() if "public" in noun.classes else POSSESSIVES),
        *([MANY] if noun.english_plural else []),
    )


@cache
def inflected(noun: Noun, stem: str, case: str, plural: bool) -> tuple[str, str, str, str]:
    """German determiner, German adjective ending, English noun, German noun."""
    gender = "p" if plural else noun.gender
    return *determiner(stem, case, gender), *noun.inflect(case, plural)


def _owners() -> list[tuple[str, str, str]]:
    """Possessors: the English determiner, the German one, and the German genitive after the noun."""
    owners = [(f"{name}'s", f"{name}s", "") for name in lexicon.NAMES]
    for noun in nouns_of("person"):
        for article in _determiners(noun):
            if article.is_definite:
                german, _, english, owner = inflected(noun, article.german, "gen", False)
                owners.append((f"{article.singular} {english}'s", "d", f"{german} {owner}"))
    return owners


OWNERS = _owners()


def noun_phrase(
    rng: random.Random,
    noun: Noun,
    case: str,
    *,
    definite: bool = False,
    negated: bool = False,
    narrowed: bool = False,
) -> Phrase:
    """A noun with a determiner and possibly an adjective.

    `definite` makes the phrase definite (and a place singular). `negated` puts it in the scope of "not",
    where an indefinite phrase gets "kein". `narrowed` makes a phrase that a relative clause can modify.
    """
    article = pick(rng, _determiners(noun))
    if narrowed:
        article = A if noun.english_plural and rng.random() < 0.3 else THE
    elif not article.is_definite and (definite or (negated and article is MANY)):
        article = THE
    plural = article is MANY
    if noun.english_plural and not (definite and "place" in noun.classes):
        plural = plural or rng.random() < 0.25
    word, stem, is_definite = article.singular, article.german, article.is_definite
    if plural:
        word = article.plural
    if negated and not is_definite:
        stem = "kein"
    elif article is A and plural:
        stem = ""
    genitive = ""
    choice = 0.5 if narrowed else rng.random()
    if choice < 0.2 and plural and not (definite or negated):
        many = choice > 0.1 and "person" not in noun.classes
        word, stem = number(pick(rng, range(2, 100 if many else 13)))
        is_definite = False
    elif choice > 0.93 and noun.classes.isdisjoint(UNOWNED):
        word, stem, genitive = pick(rng, OWNERS)
        is_definite = True
    german_word, ending, english, german = inflected(noun, stem, case, plural)
    if rng.random() < 0.3 and noun.adjectives:
        adjective = pick(rng, noun.adjectives)
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{ending} {german}"
    if word == "a" and english[0] in "aeiou":
        word = "an"
    return Phrase(
        join(word, english),
        join(german_word, german, genitive),
        3 if plural else 2,
        "definite" if is_definite else "indefinite",
        (noun.english,),
    )


@cache
def _pronouns(case: str) -> tuple[Phrase, ...]:
    return tuple(
        Phrase(subject if case == "nom" else other, forms[case], agreement, "pronoun", tuple(heads))
        for subject, other, forms, agreement, *heads in lexicon.PRONOUNS
    )


def participant(
    rng: random.Random,
    nouns: Sequence[Noun],
    case: str,
    others: tuple[str, ...] = (),
    *,
    definite: bool = False,
    negated: bool = False,
) -> Phrase:
    """A phrase with one of the nouns. For a person also a pronoun, a name, or two joined by "and".

    `others` are the heads of phrases from which it must differ.
    """
    while True:
        noun = pick(rng, nouns)
        choice = rng.random() if "person" in noun.classes else 1.0
        if choice < 0.28:
            phrase = pick(rng, _pronouns(case))
        elif choice < 0.42:
            phrase = pick(rng, NAMES)
        else:
            joined = choice < 0.46
            phrase = noun_phrase(rng, noun, case, definite=definite or joined, negated=negated)
            if joined:
                name = pick(rng, NAMES)
                phrase = Phrase(
                    f"{phrase.english} and {name.english}",
                    f"{phrase.german} und {name.german}",
                    3,
                    heads=phrase.heads + name.heads,
                )
        if set(others).isdisjoint(phrase.heads):
            return phrase


# --- Phrases with a preposition


def _preposition(rng: random.Random, slot: Slot, noun: Noun) -> Pair:
    if slot.german != "*":
        return slot.english, slot.german
    preposition = pick(rng, noun.prepositions)
    return lexicon.PLACE_PREPOSITIONS[preposition], preposition


def led(rng: random.Random, slot: Slot, noun: Noun, word: str, wort: str) -> Pair:
    """A relative pronoun or question word, after the preposition of the slot that it fills."""
    english, german = _preposition(rng, slot, noun)
    return join(english, word), join(german, wort)


def prepositional(rng: random.Random, slot: Slot, others: tuple[str, ...] = ()) -> Pair:
    """A prepositional phrase. The German preposition is contracted with the article where possible."""
    noun = slot.nouns[0]
    if slot.german == "*":
        noun = pick(rng, slot.nouns)
        while noun.english in others:
            noun = pick(rng, slot.nouns)
        phrase = noun_phrase(rng, noun, slot.case, definite=True)
    else:
        definite = "person" not in noun.classes
        phrase = participant(rng, slot.nouns, slot.case, others, definite=definite)
    english, preposition = _preposition(rng, slot, noun)
    article, _, rest = phrase.german.partition(" ")
    contracted = lexicon.CONTRACTIONS.get(f"{preposition} {article}")
    german = f"{contracted} {rest}" if contracted else f"{preposition} {phrase.german}"
    return f"{english} {phrase.english}", german


# --- Times


TIMES = {
    when: [(english, german) for english, german, whens in lexicon.TIMES if when in whens.split()]
    for when in ("now", "later", "past")
}


def _clock(rng: random.Random) -> Pair:
    english, german, ahead = pick(rng, lexicon.CLOCK)
    hour = pick(rng, range(1, 13))
    stunde = number((hour + ahead - 1) % 12 + 1)[1]
    if german == "{} Uhr":
        stunde = stunde.replace("eins", "ein")
    return f"at {english.format(number(hour)[0])}", f"um {german.format(stunde)}"


def _date(rng: random.Random, when: str) -> Pair:
    month, monat, days = pick(rng, lexicon.MONTHS)
    day, tag = ordinal(pick(rng, range(1, days + 1)))
    english, german = f"on the {day} of {month}", f"am {tag}en {monat}"
    if when == "past" and rng.random() < 0.2:
        in_year, im_jahr = _year(rng)
        return f"{english} {in_year}", f"{german} {im_jahr}"
    return english, german


def _year(rng: random.Random) -> Pair:
    return year(pick(rng, range(2000, 2026) if rng.random() < 0.3 else range(1910, 2000)))


def time_of(rng: random.Random, when: str) -> Pair:
    """Samples a time that fits "now", "later" or "past": a day, an hour, a date, a year, a time ago."""
    choice = rng.random()
    if choice < 0.15:
        return _clock(rng)
    if choice < 0.3:
        day, tag = pick(rng, lexicon.WEEKDAYS)
        return f"on {day}", f"am {tag}"
    if when != "now" and choice < 0.45:
        return _date(rng, when)
    if when == "past" and choice < 0.55:
        english, german = _year(rng)
        return f"in {english}", f"im Jahr {german}"
    if when == "past" and choice < 0.7:
        english, german = number(pick(rng, range(2, 21)))
        unit, einheit = pick(rng, lexicon.UNITS)
        return f"{english} {unit} ago", f"vor {german} {einheit}"
    return pick(rng, TIMES[when])
