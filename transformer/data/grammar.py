"""The built-in corpus: a synchronous grammar of English and German.

One derivation yields a sentence in both languages, so pairs need no download and no alignment.
The grammar holds what makes translating hard: gender, case and agreement, verb-second and
verb-final order, separable verbs, the two negations, relative clauses, numbers. The German is a
function of the English: every word and construction has one translation.

The code runs from words through phrases and clauses to sentences. The facts of German are those of
any reference grammar (such as Durrell, *Hammer's German Grammar and Usage*).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeVar

from transformer.data import lexicon
from transformer.errors import UserError

MIN_ENGLISH_WORDS = 3
MAX_ENGLISH_WORDS = 18
MAX_GERMAN_WORDS = 20

Choice = TypeVar("Choice")
Pair = tuple[str, str]
NOTHING = ("", "")


def _pick(rng: random.Random, options: Sequence[Choice]) -> Choice:
    # Only random() is promised to give the same numbers in every Python version.
    return options[int(rng.random() * len(options))]


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _table(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return [row + [""] * (columns - len(row)) for row in rows]


# --- Words: nouns and what agrees with them


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun with its plural ("" if it has none), its gender "m", "f" or "n", and its classes.

    `kind` is the class that says what it is, and which adjectives suit it.
    """

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    classes: frozenset[str]
    kind: str
    prepositions: tuple[str, ...]

    def inflect(self, case: str, plural: bool) -> Pair:
        """The English and the German form in case "nom", "acc", "dat" or "gen"."""
        if plural:
            needs_n = case == "dat" and self.german_plural[-1] not in "ns"
            return self.english_plural, self.german_plural + "n" * needs_n
        if case != "nom" and "weak" in self.classes:
            return self.english, self.german_plural
        if case == "gen" and self.gender != "f":
            syllables = re.findall("[aeiouyäöü]+", self.german.lower())
            return self.english, self.german + ("es" if len(syllables) == 1 else "s")
        return self.english, self.german


class Adjective(NamedTuple):
    """An adjective; `stem` takes the endings, the comparatives are "" where none is used."""

    english: str
    english_comparative: str
    german: str
    german_comparative: str
    stem: str


def _noun(words: str, german: str, classes: str, prepositions: str) -> Noun:
    english, *irregular = words.split()
    article, singular, plural = german.split()
    return Noun(english, "" if plural == "-" else (irregular or [english + "s"])[0],
                singular, plural.strip("-"), {"der": "m", "die": "f", "das": "n"}[article],
                frozenset([english, *classes.split()]), classes.split()[0],
                tuple(prepositions.split()))


def _adjective(words: str, german: str) -> Adjective:
    english, comparative = [*words.split(), ""][:2]
    base, german_comparative, stem = [*german.split(), "", ""][:3]
    if german_comparative and not comparative:
        comparative = f"more {english}"
    return Adjective(english, comparative, base, german_comparative, stem or base.removesuffix("e"))


ALL_NOUNS = tuple(_noun(*row) for row in _table(lexicon.NOUNS, 4))
ALL_ADJECTIVES = [(_adjective(words, german), frozenset(classes.split()))
                  for words, german, classes in _table(lexicon.ADJECTIVES, 3)]


@cache
def nouns_of(classes: str) -> tuple[Noun, ...]:
    """The nouns that are, or belong to, any of the classes in a comma-separated list."""
    wanted = set(classes.split(","))
    return tuple(noun for noun in ALL_NOUNS if wanted & noun.classes)


@cache
def adjectives_of(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that suit a noun."""
    senseless = {"old", "young"} if "young" in noun.classes else set()
    return tuple(adjective for adjective, kinds in ALL_ADJECTIVES
                 if noun.kind in kinds and adjective.english not in senseless)


# The strong endings by gender, and "p" for the plural of all genders.
ENDINGS = {case: dict(zip("mnfp", endings.split(), strict=True)) for case, endings in {
    "nom": "er es e e", "acc": "en es e e", "dat": "em em er en", "gen": "es es er er",
}.items()}
ARTICLES = {"er": "der", "es": "das", "e": "die", "en": "den", "em": "dem"}
DER_WORDS = {"d", "dies", "welch"}
EIN_WORDS = {"ein", "kein", *lexicon.POSSESSIVES.values()}


@cache
def determiner(stem: str, case: str, gender: str) -> Pair:
    """A German determiner inflected, and the ending of an adjective that follows it.

    The noun phrase shows its case once: where the determiner bears the strong ending the adjective
    is weak, where it bears none (no determiner, a number, "ein" in three forms) it is strong. The
    mixed declension after "ein" needs no table of its own.
    """
    strong = ENDINGS[case][gender]
    weak = "e" if (case, gender) in {("nom", "m"), ("nom", "n"), ("nom", "f"), ("acc", "n"),
                                     ("acc", "f")} else "en"
    if stem == "d":
        return ("des" if (case, strong) == ("gen", "es") else ARTICLES[strong]), weak
    if stem in DER_WORDS:
        return stem + strong, weak
    if stem in EIN_WORDS:
        bare = (case, gender) in {("nom", "m"), ("nom", "n"), ("acc", "n")}
        return (stem, strong) if bare else (stem + strong, weak)
    return (stem + strong if stem == "viel" else stem), strong


def relative_pronoun(case: str, gender: str) -> str:
    """The article, except in the dative plural."""
    return "denen" if (case, gender) == ("dat", "p") else determiner("d", case, gender)[0]


# --- Words: numbers


@cache
def number(n: int) -> Pair:
    """A cardinal from 0 to 9999 in words: 342 is "three hundred and forty-two" (British "and")."""
    english, german = [], []
    for value, word, wort in ((1000, "thousand", "tausend"), (100, "hundred", "hundert")):
        if n >= value:
            english.append(f"{lexicon.ENGLISH_SMALL[n // value]} {word}")
            german.append(lexicon.GERMAN_SMALL[n // value] + wort)
            n %= value
    if n or not english:
        tens, ones = divmod(n, 10)
        if n < 20:
            small = lexicon.ENGLISH_SMALL[n]
            german.append(lexicon.GERMAN_SMALL[n] + "s" * (n == 1))
        else:
            small = lexicon.ENGLISH_TENS[tens] + (f"-{lexicon.ENGLISH_SMALL[ones]}" if ones else "")
            units = f"{lexicon.GERMAN_SMALL[ones]}und" if ones else ""
            german.append(units + lexicon.GERMAN_TENS[tens])
        english.append(f"and {small}" if english else small)
    return " ".join(english), "".join(german)


@cache
def ordinal(n: int) -> Pair:
    """An ordinal from 1 to 31; the German one without its ending: 3 is ("third", "dritt")."""
    english, german = number(n)
    head, hyphen, last = english.rpartition("-")
    last = lexicon.ENGLISH_ORDINALS.get(last) or last + "th"
    stem = lexicon.GERMAN_ORDINALS.get(n) or german + ("t" if n < 20 else "st")
    return head + hyphen + last, stem


@cache
def year(n: int) -> Pair:
    """A year from 1910 to 1999 read in hundreds, or from 2000 on read as a number."""
    if n >= 2000:
        return number(n)
    (century, jahrhundert), (rest, jahr) = number(n // 100), number(n % 100)
    return f"{century} {rest}", f"{jahrhundert}hundert{jahr}"


# --- Words: verbs


class Slot(NamedTuple):
    """A place that a verb keeps for a phrase; a preposition "*" is the one the noun names."""

    english: str
    german: str
    case: str
    nouns: tuple[Noun, ...]


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb: its principal parts, the company it keeps, and the tenses it may take."""

    english: str
    english_past: str
    prefix: str
    infinitive: str
    third: str
    participle: str
    auxiliary: str
    subjects: tuple[Noun, ...]
    slots: tuple[tuple[Slot, ...], ...]
    complements: frozenset[str]
    adjuncts: tuple[Pair | Slot, ...]
    tenses: dict[str, tuple[str, ...]]
    is_state: bool


def _slot(text: str) -> Slot:
    prepositions, _, nouns = text.partition(":")
    english, german, case = ["", "", *prepositions.split("/")][-3:]
    return Slot(english, german, case, nouns_of(nouns))


def _english_form(verb: str, suffix: Literal["s", "ed", "ing"]) -> str:
    # Of a verb in several words ("fall asleep") the first is inflected.
    word, space, particle = verb.partition(" ")
    if (word, suffix) == ("have", "s"):
        word = "ha"
    elif suffix == "s":
        word = re.sub("(s|sh|ch|o)$", r"\1e", re.sub("(?<=[^aeiou])y$", "ie", word))
    elif suffix == "ed":
        word = re.sub("(?<=[^aeiou])y$", "i", word.removesuffix("e"))
    elif word.endswith("e") and not word.endswith("ee"):
        word = word.removesuffix("e")
    else:
        word = re.sub("^([^aeiou]*[aeiou])([tmn])$", r"\1\2\2", word)
    return word + suffix + space + particle


def _verb(english: str, german: str, subjects: str, complements: str, adjuncts: str) -> Verb:
    base, _, past = english.partition(", ")
    infinitive, *irregular = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    stem = re.sub("e?n$", "", infinitive)
    third = stem + ("et" if stem[-1] in "td" else "t")
    # No ge- where the stress is not on the first syllable: besuchen, verkaufen, reparieren.
    unstressed = re.search("^(be|ver)|ier$", stem)
    third, participle = irregular or (third, prefix + ("" if unstressed else "ge") + third)
    with_sein, _, participle = participle.rpartition("+")
    limits = [word for word in adjuncts.split() if word in lexicon.TENSES]
    tenses = zip(("now", "later", "past"), lexicon.TENSES[limits[0] if limits else ""], strict=True)
    slots = [
        [word] if ":" in word else [lexicon.PHRASES[key] for key in word.split(",")]
        for word in complements.split() if ":" in word or word.split(",")[0] in lexicon.PHRASES
    ]
    return Verb(
        base, past or _english_form(base, "ed"), prefix, infinitive, third, participle,
        "sein" if with_sein else "haben", nouns_of(subjects),
        tuple(tuple(map(_slot, choices)) for choices in slots),
        frozenset(complements.split()),
        tuple((word, lexicon.MANNERS[word]) if word in lexicon.MANNERS
              else _slot(lexicon.PHRASES[word])
              for word in adjuncts.split() if word not in limits),
        {when: tuple(name.replace("_", " ") for name in names.split()) for when, names in tenses},
        "state" in limits,
    )


VERBS = {row[0].partition(",")[0]: _verb(*row) for row in _table(lexicon.VERBS, 5)}


class Form(NamedTuple):
    """One verb in one tense and person, in the parts that the order of words moves about.

    English says `plain` where it can, and `auxiliary` + `bare` in questions, before "not", and
    where there is no plain form. German brackets the clause with `finite` and `final`.
    """

    auxiliary: str
    bare: str
    plain: str
    finite: str
    final: str
    final_is_prefix: bool


def _present(verb: Verb) -> tuple[str, str, str, str]:
    if verb.infinitive in lexicon.PRESENT:
        return lexicon.PRESENT[verb.infinitive]
    stem = verb.third.removesuffix("t")
    second = verb.third if stem[-1] in "sßzx" else stem + "st"
    return verb.infinitive.removesuffix("n"), second, verb.third, verb.infinitive


@cache
def conjugate(verb: Verb, tense: str, agreement: int) -> Form:
    """The form of a verb: tense is one of `lexicon.TENSES` or "to" (an infinitive with "zu").

    `agreement` is 0 for "I", 1 for "you", 2 for the third person singular, 3 for the plural.
    """
    base, prefix = verb.english, verb.prefix
    infinitive = prefix + verb.infinitive
    if tense == "to":
        zu = f"{prefix}zu{verb.infinitive}" if prefix else f"zu {infinitive}"
        return Form("", "", f"to {base}", "", zu, False)
    if tense in lexicon.AUXILIARIES:
        finite = lexicon.AUXILIARIES[tense][agreement]
        return Form(tense, base, "", finite, infinitive, False)
    do = ("do", "do", "does", "do")[agreement]
    if tense in lexicon.SEMI_MODALS:
        bare, inflected, german = lexicon.SEMI_MODALS[tense]
        past = tense != bare
        plain = inflected if past or agreement == 2 else bare
        return Form("did" if past else do, f"{bare} {base}", f"{plain} {base}",
                    german[agreement], infinitive, False)
    if tense == "past":
        preterite = lexicon.PRETERITE.get(infinitive)
        finite = (preterite or lexicon.PRESENT[verb.auxiliary])[agreement]
        final, final_is_prefix = "" if preterite else verb.participle, False
        english = "did", base, verb.english_past
    else:
        finite, final, final_is_prefix = _present(verb)[agreement], prefix, bool(prefix)
        english = do, base, _english_form(base, "s") if agreement == 2 else base
    if tense == "progressive":
        english = lexicon.ENGLISH_BE["present"][agreement], _english_form(base, "ing"), ""
    elif base == "be":
        english = lexicon.ENGLISH_BE[tense][agreement], "", ""
    return Form(*english, finite, final, final_is_prefix)


# --- Phrases


class Phrase(NamedTuple):
    """A phrase in both languages, with what the clause around it must know of it.

    `agreement` is as for `conjugate`; no two phrases of a clause may share one of `heads`.
    """

    english: str
    german: str
    agreement: int = 2
    kind: Literal["pronoun", "definite", "indefinite"] = "definite"
    heads: tuple[str, ...] = ()


class Determiner(NamedTuple):
    """The English forms for singular and plural, and the German stem."""

    singular: str
    plural: str
    german: str
    is_definite: bool = True


THE = Determiner("the", "the", "d")
THIS = Determiner("this", "these", "dies")
A = Determiner("a", "", "ein", False)
BARE = Determiner("", "", "", False)
MANY = Determiner("", "many", "viel", False)
UNOWNED = {"person", "public", "mass"}  # in the genitive; "my friend" is well, "Anna's man" is not


@cache
def _determiners(noun: Noun) -> tuple[Determiner, ...]:
    """The determiners that suit a noun, the likelier ones more than once."""
    possessive = [Determiner(word, word, stem) for word, stem in lexicon.POSSESSIVES.items()]
    many = [MANY] if noun.english_plural else []
    if "kin" in noun.classes:
        return (THE, THE, *possessive, *possessive, *([A] if many else []))
    if "public" in noun.classes:
        possessive = []
    return (*8 * [THE], *2 * [THIS], *4 * [BARE if "mass" in noun.classes else A],
            *possessive, *many)


@cache
def _inflected(noun: Noun, stem: str, case: str, plural: bool) -> tuple[str, str, str, str]:
    """German determiner, ending of the adjective, English noun, German noun."""
    gender = "p" if plural else noun.gender
    return *determiner(stem, case, gender), *noun.inflect(case, plural)


@cache
def _owners() -> tuple[tuple[str, str, str], ...]:
    """Possessors: the English determiner, the German one, and what German puts after the noun."""
    owners = [(f"{name}'s", f"{name}s", "") for name in lexicon.NAMES]
    for noun in nouns_of("person"):
        for article in _determiners(noun):
            if article.is_definite:
                german, _, english, owner = _inflected(noun, article.german, "gen", False)
                owners.append((f"{article.singular} {english}'s", "d", f" {german} {owner}"))
    return tuple(owners)


def noun_phrase(
    rng: random.Random,
    noun: Noun,
    case: str,
    *,
    definite: bool = False,
    negated: bool = False,
    narrowed: bool = False,
) -> Phrase:
    """A noun with its determiner and perhaps an adjective.

    `definite` asks for a definite one (and of a place for just one), `negated` for one under
    "not", where an indefinite phrase gets "kein", and `narrowed` for one that a relative clause
    can narrow.
    """
    article = _pick(rng, _determiners(noun))
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
        word, stem = number(2 + int(rng.random() * (98 if many else 11)))
        is_definite = False
    elif choice > 0.93 and noun.classes.isdisjoint(UNOWNED):
        word, stem, genitive = _pick(rng, _owners())
        is_definite = True
    german_word, ending, english, german = _inflected(noun, stem, case, plural)
    if rng.random() < 0.3 and (suitable := adjectives_of(noun)):
        adjective = _pick(rng, suitable)
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{ending} {german}"
    if word == "a" and english[0] in "aeiou":
        word = "an"
    return Phrase(
        f"{word} {english}" if word else english,
        f"{german_word} {german}{genitive}" if german_word else german + genitive,
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


NAMES = tuple(Phrase(name, name, 2, "definite", (name,)) for name in lexicon.NAMES)


def participant(
    rng: random.Random,
    nouns: Sequence[Noun],
    case: str,
    others: tuple[str, ...] = (),
    *,
    definite: bool = False,
    negated: bool = False,
) -> Phrase:
    """One of the nouns as a phrase; for a person also a pronoun, a name, or two joined by "and".

    `others` are the heads of the phrases that it must differ from.
    """
    while True:
        noun = _pick(rng, nouns)
        choice = rng.random() if "person" in noun.classes else 1.0
        if choice < 0.28:
            phrase = _pick(rng, _pronouns(case))
        elif choice < 0.42:
            phrase = _pick(rng, NAMES)
        else:
            phrase = noun_phrase(rng, noun, case, definite=definite or choice < 0.46,
                                 negated=negated)
            if choice < 0.46:
                name = _pick(rng, NAMES)
                phrase = Phrase(f"{phrase.english} and {name.english}",
                                f"{phrase.german} und {name.german}", 3, "definite",
                                phrase.heads + name.heads)
        if not others or not any(head in others for head in phrase.heads):
            return phrase


def _place_preposition(rng: random.Random, noun: Noun) -> Pair:
    preposition = _pick(rng, noun.prepositions)
    return lexicon.PLACE_PREPOSITIONS[preposition], preposition


def prepositional(rng: random.Random, slot: Slot, others: tuple[str, ...]) -> Pair:
    """A phrase with its preposition, contracted with the article where German does so."""
    english, preposition = slot.english, slot.german
    definite = "person" not in slot.nouns[0].classes
    if preposition == "*":
        noun = _pick(rng, slot.nouns)
        while noun.english in others:
            noun = _pick(rng, slot.nouns)
        phrase = noun_phrase(rng, noun, slot.case, definite=True)
        english, preposition = _place_preposition(rng, noun)
    else:
        phrase = participant(rng, slot.nouns, slot.case, others, definite=definite)
    article, _, rest = phrase.german.partition(" ")
    contracted = lexicon.CONTRACTIONS.get(f"{preposition} {article}")
    german = f"{contracted} {rest}" if contracted else f"{preposition} {phrase.german}"
    return f"{english} {phrase.english}", german


@cache
def _simple_times(when: str) -> tuple[Pair, ...]:
    rows = _table(lexicon.TIMES, 3)
    return tuple((english, german) for english, german, whens in rows if when in whens.split())


def _clock(rng: random.Random) -> Pair:
    english, german, ahead = _pick(rng, lexicon.CLOCK)
    hour = 1 + int(rng.random() * 12)
    stunde = number((hour + ahead - 1) % 12 + 1)[1]
    if german == "{} Uhr":
        stunde = stunde.replace("eins", "ein")
    return f"at {english.format(number(hour)[0])}", f"um {german.format(stunde)}"


def _date(rng: random.Random, when: str) -> Pair:
    month, monat, days = _pick(rng, lexicon.MONTHS)
    day, tag = ordinal(1 + int(rng.random() * days))
    english, german = f"on the {day} of {month}", f"am {tag}en {monat}"
    if when == "past" and rng.random() < 0.2:
        in_year, im_jahr = _year(rng)
        return f"{english} {in_year}", f"{german} {im_jahr}"
    return english, german


def _year(rng: random.Random) -> Pair:
    first, last = (2000, 2025) if rng.random() < 0.3 else (1910, 1999)
    return year(first + int(rng.random() * (last - first + 1)))


def time_of(rng: random.Random, when: str) -> Pair:
    """When it happens ("now", "later", "past"): a day, an hour, a date, a year, a span ago."""
    choice = rng.random()
    if choice < 0.15:
        return _clock(rng)
    if choice < 0.3:
        day, tag = _pick(rng, lexicon.WEEKDAYS)
        return f"on {day}", f"am {tag}"
    if when != "now" and choice < 0.45:
        return _date(rng, when)
    if when == "past" and choice < 0.55:
        english, german = _year(rng)
        return f"in {english}", f"im Jahr {german}"
    if when == "past" and choice < 0.7:
        english, german = number(2 + int(rng.random() * 19))
        unit, einheit = _pick(rng, lexicon.UNITS)
        return f"{english} {unit} ago", f"vor {german} {einheit}"
    return _pick(rng, _simple_times(when))


# --- Clauses


class Clause(NamedTuple):
    """The parts of one clause, before they are put in order.

    `before` and `after` surround the time in the German middle field; `tail` is a relative clause
    that follows the closing bracket.
    """

    subject: Phrase
    form: Form
    negated: bool
    adverb: str
    rest: list[str]
    before: list[str]
    after: list[str]
    time: Pair
    tail: str = ""


def in_english(clause: Clause, front: str = "", *, question: bool = False) -> str:
    """The clause in English order; a question puts its auxiliary before the subject."""
    form, subject = clause.form, clause.subject.english
    verb, auxiliary = form.plain, ""
    if question or clause.negated or not verb:
        verb, auxiliary = form.bare, form.auxiliary
    if question:
        auxiliary, subject = subject, auxiliary
    if clause.negated:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    return _join(front, subject, auxiliary, clause.adverb, verb, *clause.rest,
                 clause.time[0])


def in_german(
    clause: Clause, front: str = "", *, verb: Literal["first", "second", "last"] = "second"
) -> str:
    """The clause in German order: the finite verb first, second (after `front`), or last."""
    form, subject = clause.form, clause.subject.german
    middle = (*clause.before, clause.time[1], *clause.after)
    if verb == "last":
        space = "" if form.final_is_prefix else " "
        closing = f"{form.final}{space}{form.finite}".strip()
        parts = _join(front, subject, *middle, closing)
    elif verb == "first" or front:
        parts = _join(front, form.finite, subject, *middle, form.final)
    else:
        parts = _join(subject, form.finite, *middle, form.final)
    return f"{parts}, {clause.tail}" if clause.tail else parts


def build(
    rng: random.Random,
    verb: Verb,
    subject: Phrase,
    when: str,
    *,
    gap: Slot | None = None,
    negated: bool | None = None,
    detail: float = 1.0,
    predicate: Pair = NOTHING,
    modified: bool = False,
) -> Clause:
    """A clause around a verb and its subject.

    `when` is "now", "later", "past", or "to" for an infinitive. The slot `gap` stays empty (its
    phrase is asked for, or is a relative pronoun). `detail` scales how often there is a time or
    another adjunct; `modified` gives the last object a relative clause.
    """
    tenses = (when,) if when == "to" else verb.tenses[when] or verb.tenses["now"]
    tense = _pick(rng, tenses)
    if tense == "past" and verb.english == verb.english_past and subject.agreement != 2:
        tense = "had to"  # "they read" would be present or past
    chance = rng.random()
    if negated is None:
        negated = chance < 0.14
    adverb = particle = ""
    if negated:
        particle = "nicht"
    elif chance > 1 - 0.08 * detail and not verb.is_state and tense not in ("progressive", "to"):
        adverb, particle = _pick(rng, lexicon.FREQUENCIES)

    rest: list[str] = []
    light: list[str] = []
    definite: list[str] = []
    indefinite: list[str] = []
    late: list[str] = []
    manner = tail = ""
    heads = subject.heads
    for choices in verb.slots:
        slot = _pick(rng, choices)
        last = choices is verb.slots[-1]
        if choices[0] is gap:
            continue
        if slot.german:
            words, worte = prepositional(rng, slot, heads)
            rest.append(words)
            late.append(worte)
            continue
        if modified and last:
            noun = _pick(rng, slot.nouns)
            phrase = noun_phrase(rng, noun, slot.case, narrowed=True)
            who, tail = relative(rng, noun, phrase.agreement == 3)
            rest.append(f"{phrase.english} {who}")
        else:
            # A recipient is definite: only the last object may turn "nicht" into "kein".
            phrase = participant(rng, slot.nouns, slot.case, heads, negated=negated,
                                 definite=slot.case == "dat" and not last)
            rest.append(phrase.english)
        heads += phrase.heads
        if phrase.kind == "indefinite":
            indefinite.append(phrase.german)
            particle = "" if negated else particle
        else:
            (light if phrase.kind == "pronoun" else definite).append(phrase.german)

    time = NOTHING
    if not tail and rng.random() < 0.35 * detail and verb.adjuncts and (particle or not negated):
        adjunct = _pick(rng, verb.adjuncts)
        if isinstance(adjunct, Slot):
            words, worte = prepositional(rng, adjunct, heads)
            late.insert(0, worte)
        else:
            words, manner = adjunct
        rest.append(words)
    if tense == "progressive":
        time = ("", "gerade")
    elif not (adverb or tail or verb.is_state or when == "to") and rng.random() < 0.45 * detail:
        time = time_of(rng, when)
        if negated and time[0].startswith("every"):
            time = NOTHING  # "not every day" would negate the day
    if predicate is not NOTHING:
        rest.append(predicate[0])
        late.append(predicate[1])
    # What is known comes early: pronouns, then definite objects, which "nicht" follows.
    before, known = (light + definite, []) if particle else (light, definite)
    form = conjugate(verb, tense, subject.agreement)
    return Clause(subject, form, negated, adverb, rest, before,
                  [*known, particle, manner, *indefinite, *late], time, tail)


def _gap(verb: Verb) -> Slot | None:
    """The slot whose phrase can be asked for: the last object, or else what a preposition leads."""
    single = [choices[0] for choices in verb.slots if len(choices) == 1]
    objects = [slot for slot in single if not slot.german]
    return (objects or single)[-1] if single else None


PEOPLE = nouns_of("person")
# Verbs without a rule of their own among the sentences below.
ACTIONS = tuple(verb for verb in VERBS.values()
                if not verb.complements & {"that", "infinitive", "price", "predicate"})
HUMAN_ACTIONS = tuple(verb for verb in ACTIONS if PEOPLE[0] in verb.subjects)
ASKABLE = tuple((verb, slot) for verb in HUMAN_ACTIONS if (slot := _gap(verb)))
TRANSITIVE = tuple(verb for verb, slot in ASKABLE
                   if slot is verb.slots[-1][0] and not slot.german)


@cache
def _relatives(noun: Noun) -> tuple[tuple[tuple[Verb, Slot | None], ...], ...]:
    """The verbs that a noun can be the subject of, and those with a slot for it."""
    as_subject = tuple((verb, None) for verb in ACTIONS if noun in verb.subjects)
    as_object = tuple((verb, slot) for verb, slot in ASKABLE if noun in slot.nouns)
    return tuple(role for role in (as_subject, as_object) if role)


def relative(rng: random.Random, noun: Noun, plural: bool) -> Pair:
    """A relative clause on a noun, without its commas."""
    verb, gap = _pick(rng, _pick(rng, _relatives(noun)))
    gender = "p" if plural else noun.gender
    person = "person" in noun.classes
    when = _pick(rng, ("now", "past"))
    if gap is None:
        subject = Phrase("", "", 3 if plural else 2, heads=(noun.english,))
        clause = build(rng, verb, subject, when, detail=0.5)
        front = "who" if person else "that", relative_pronoun("nom", gender)
    else:
        subject = participant(rng, verb.subjects, "nom", (noun.english,))
        clause = build(rng, verb, subject, when, gap=gap, negated=False, detail=0.5)
        who = "whom" if person else "which" if gap.german else "that"
        front = _led(rng, gap, noun, who, relative_pronoun(gap.case, gender))
    return in_english(clause, front[0]), in_german(clause, front[1], verb="last")


def _led(rng: random.Random, slot: Slot, noun: Noun, word: str, wort: str) -> Pair:
    """A relative pronoun or question word, led by the preposition of the slot that it fills."""
    english, german = slot.english, slot.german
    if german == "*":
        english, german = _place_preposition(rng, noun)
    return _join(english, word), _join(german, wort)


# --- Sentences


def _subject(rng: random.Random, verb: Verb) -> Phrase:
    return participant(rng, verb.subjects, "nom") if verb.subjects else Phrase("it", "es")


def _when(rng: random.Random) -> str:
    return _pick(rng, ("now", "now", "later", "past", "past"))


def _told(rng: random.Random, clause: Clause) -> Pair:
    """A statement; its time comes first now and then, and the German subject after the verb."""
    if clause.time[0] and rng.random() < 0.4:
        front, clause = clause.time, clause._replace(time=NOTHING)
        return in_english(clause, front[0]) + ".", in_german(clause, front[1]) + "."
    return in_english(clause) + ".", in_german(clause) + "."


def _statement(rng: random.Random) -> Pair:
    verb = _pick(rng, ACTIONS)
    return _told(rng, build(rng, verb, _subject(rng, verb), _when(rng)))


def _statement_with_relative_object(rng: random.Random) -> Pair:
    verb = _pick(rng, TRANSITIVE)
    subject = _subject(rng, verb)
    return _told(rng, build(rng, verb, subject, _when(rng), negated=False, modified=True))


def _statement_with_relative_subject(rng: random.Random) -> Pair:
    verb = _pick(rng, ACTIONS)
    noun = _pick(rng, verb.subjects or nouns_of("person"))
    phrase = noun_phrase(rng, noun, "nom", narrowed=True)
    who, der = relative(rng, noun, phrase.agreement == 3)
    subject = phrase._replace(english=f"{phrase.english} {who}", german=f"{phrase.german}, {der},")
    if rng.random() < 0.4 or not verb.subjects:
        return _told(rng, _description(rng, noun, subject))
    return _told(rng, build(rng, verb, subject, _when(rng), detail=0.5))


def _description(
    rng: random.Random, noun: Noun, subject: Phrase, *, negated: bool | None = None
) -> Clause:
    """A noun and "to be" with an adjective, a comparison or an age."""
    choice = rng.random()
    adjective = _pick(rng, adjectives_of(noun))
    while adjective.english in subject.english.split():
        adjective = _pick(rng, adjectives_of(noun))
    passing = adjective.english in lexicon.PASSING
    if choice < 0.2 and noun.kind in AGES:
        youngest, oldest = AGES["animal" if "young" in noun.classes else noun.kind]
        years, jahre = number(youngest + int(rng.random() * (oldest - youngest + 1)))
        predicate = f"{years} years old", f"{jahre} Jahre alt"
        passing = negated = False
    elif choice < 0.5 and adjective.german_comparative:
        others = [other for other in nouns_of(noun.kind) if other is not noun]
        other = noun_phrase(rng, _pick(rng, others), "nom")
        if rng.random() < 0.7:
            predicate = (f"{adjective.english_comparative} than {other.english}",
                         f"{adjective.german_comparative} als {other.german}")
        else:
            predicate = (f"as {adjective.english} as {other.english}",
                         f"so {adjective.german} wie {other.german}")
    else:
        degrees = [NOTHING]
        if adjective.german_comparative:
            degrees = [NOTHING, ("very", "sehr"), ("too", "zu")]
        degree, grad = _pick(rng, degrees[: 2 if adjective.english in lexicon.PLEASANT else 3])
        predicate = _join(degree, adjective.english), _join(grad, adjective.german)
    when, detail = (_when(rng), 0.5) if passing else (_pick(rng, ("now", "past")), 0.0)
    return build(rng, VERBS["be"], subject, when, negated=negated, detail=detail,
                 predicate=predicate)


def _copula(rng: random.Random) -> Pair:
    noun = _pick(rng, DESCRIBABLE)
    subject = participant(rng, (noun,), "nom", definite=True)
    described = {adjective.english for adjective in adjectives_of(noun)}
    while not described.isdisjoint(subject.english.split()):  # no "the cold soup is warm"
        subject = participant(rng, (noun,), "nom", definite=True)
    if rng.random() < 0.2:
        clause = _description(rng, noun, subject, negated=False)
        return in_english(clause, question=True) + "?", in_german(clause, verb="first") + "?"
    return _told(rng, _description(rng, noun, subject))


def _yes_no_question(rng: random.Random) -> Pair:
    verb = _pick(rng, ACTIONS)
    clause = build(rng, verb, _subject(rng, verb), _when(rng), negated=False)
    return in_english(clause, question=True) + "?", in_german(clause, verb="first") + "?"


def _asked(clause: Clause, front: Pair) -> Pair:
    return in_english(clause, front[0], question=True) + "?", in_german(clause, front[1]) + "?"


def _who_question(rng: random.Random) -> Pair:
    clause = build(rng, _pick(rng, HUMAN_ACTIONS), Phrase("", ""), _when(rng), negated=False)
    return in_english(clause, "who") + "?", in_german(clause, "wer") + "?"


def _object_question(rng: random.Random) -> Pair:
    """Whom, what, which, how many: the gap of the clause is asked for."""
    verb, gap = _pick(rng, ASKABLE)
    subject = _subject(rng, verb)
    clause = build(rng, verb, subject, _when(rng), gap=gap, negated=False, detail=0.6)
    noun = _pick(rng, gap.nouns)
    choice = rng.random()
    if gap.german == "*":
        front = "where", "wo"
    elif choice < 0.3 and noun.english_plural:
        front = f"how many {noun.english_plural}", f"wie viele {noun.inflect('nom', True)[1]}"
        if gap.case == "dat":
            front = front[0], f"wie vielen {noun.inflect('dat', True)[1]}"
    elif choice < 0.6:
        welch, _, _, german_noun = _inflected(noun, "welch", gap.case, False)
        front = f"which {noun.english}", f"{welch} {german_noun}"
    elif "person" in noun.classes:
        front = "whom", {"acc": "wen", "dat": "wem"}[gap.case]
    elif gap.german or gap.case == "dat":
        return _object_question(rng)  # "worauf" and the like are left out
    else:
        front = "what", "was"
    if gap.german != "*":
        front = _led(rng, gap, noun, *front)
    return _asked(clause, front)


def _adverb_question(rng: random.Random) -> Pair:
    """When, why, where, whereto."""
    front = _pick(rng, (("when", "wann"), ("why", "warum"), ("where", "wo"), ("where", "wohin")))
    when = _pick(rng, ("later", "past"))
    if front[1] == "wohin":
        verb = _pick(rng, tuple(VERBS[name] for name in ("go", "run", "place")))
        gap = verb.slots[-1][0]
    elif front[1] == "wo":
        verb, gap = _pick(rng, SOMEWHERE), None
    else:
        verb, gap = _pick(rng, HUMAN_ACTIONS), None
    detail = 0.0 if front[1] != "warum" else 0.8
    negated = None if front[1] == "warum" else False
    subject = _subject(rng, verb)
    clause = build(rng, verb, subject, when, gap=gap, negated=negated, detail=detail)
    return _asked(clause, front)


def _how_question(rng: random.Random) -> Pair:
    """How old is the cat? How much does the lamp cost?"""
    verb, nouns, front = _pick(rng, (
        (VERBS["be"], nouns_of("person,animal,building"), ("how old", "wie alt")),
        (VERBS["cost"], VERBS["cost"].subjects, ("how much", "wie viel")),
    ))
    subject = participant(rng, nouns, "nom", definite=True)
    return _asked(build(rng, verb, subject, "now", negated=False, detail=0.0), front)


def _price(rng: random.Random) -> Pair:
    cost = VERBS["cost"]
    n = 2 + int(rng.random() * (98 if (choice := rng.random()) < 0.4 else
                                998 if choice < 0.8 else 9998))
    # "101 Euro" would be "hunderteins" or "hundertein".
    euros, euro = number(n + 1 if n % 100 == 1 else n)
    predicate = f"{euros} euros", f"{euro} Euro"
    clause = build(rng, cost, _subject(rng, cost), "now", detail=0.0, predicate=predicate)
    return _told(rng, clause)


def _existence(rng: random.Random) -> Pair:
    """In the garden there are seven birds."""
    place, ort = prepositional(rng, PLACE, ())
    noun = _pick(rng, COUNTABLE)
    count, zahl = number(2 + int(rng.random() * 98))
    there, es = _pick(rng, (("there are", "gibt es"), ("there were", "gab es")))
    english, german = noun.inflect("acc", True)
    if rng.random() < 0.5:
        adjective = _pick(rng, adjectives_of(noun))
        english, german = f"{adjective.english} {english}", f"{adjective.stem}e {german}"
    return f"{place} {there} {count} {english}.", f"{ort} {es} {zahl} {german}."


def _coordination(rng: random.Random) -> Pair:
    when = _when(rng)
    first, second = (build(rng, verb, _subject(rng, verb), when, detail=0.4)
                     for verb in (_pick(rng, ACTIONS), _pick(rng, ACTIONS)))
    conjunction, konjunktion = _pick(rng, ((" and", " und"), (", but", ", aber")))
    return (f"{in_english(first)}{conjunction} {in_english(second)}.",
            f"{in_german(first)}{konjunktion} {in_german(second)}.")


def _subordination(rng: random.Random) -> Pair:
    conjunction, konjunktion, when, main_when = _pick(rng, lexicon.CONJUNCTIONS)
    negated = False if konjunktion == "bevor" else None
    verb, main_verb = _pick(rng, ACTIONS), _pick(rng, ACTIONS)
    main = build(rng, main_verb, _subject(rng, main_verb), main_when, detail=0.5)
    clause = build(rng, verb, _subject(rng, verb), when, detail=0.5, negated=negated)
    english = in_english(clause, conjunction)
    german = in_german(clause, konjunktion, verb="last")
    if rng.random() < 0.4:
        return f"{english}, {in_english(main)}.", in_german(main, f"{german},") + "."
    return f"{in_english(main)} {english}.", f"{in_german(main)}, {german}."


def _that_clause(rng: random.Random) -> Pair:
    verb = _pick(rng, THINKING)
    subject = _subject(rng, verb)
    when = _pick(rng, ("now", "now", "past"))
    matrix = build(rng, verb, subject, when, detail=0.0)
    inner = _pick(rng, ACTIONS)
    # Past with past, so that English does not shift the tense where German does not.
    inner_when = "past" if when == "past" else _when(rng)
    clause = build(rng, inner, _subject(rng, inner), inner_when, detail=0.7)
    front = "that", "dass"
    if verb is VERBS["know"] and matrix.negated:
        front = "whether", "ob"
    return (f"{in_english(matrix)} {in_english(clause, front[0])}.",
            f"{in_german(matrix)}, {in_german(clause, front[1], verb='last')}.")


def _infinitive(rng: random.Random) -> Pair:
    verb = _pick(rng, TRYING)
    subject = _subject(rng, verb)
    matrix = build(rng, verb, subject, _when(rng), detail=0.0)
    silent = subject._replace(english="", german="")
    inner = build(rng, _pick(rng, INTENTIONS), silent, "to", negated=False, detail=0.6)
    return (f"{in_english(matrix)} {in_english(inner)}.",
            f"{in_german(matrix)}, {in_german(inner, verb='last')}.")


AGES = {"person": (20, 99), "animal": (2, 19), "building": (2, 99), "furniture": (2, 99)}
DESCRIBABLE = tuple(noun for noun in ALL_NOUNS if adjectives_of(noun))
THINKING = tuple(verb for verb in VERBS.values() if "that" in verb.complements)
TRYING = tuple(verb for verb in VERBS.values() if "infinitive" in verb.complements)
COUNTABLE = tuple(noun for noun in nouns_of("person,animal,furniture") if "kin" not in noun.classes)
PLACE = _slot(lexicon.PHRASES["place"])
INTENTIONS = tuple(verb for verb in HUMAN_ACTIONS if not verb.is_state)
SOMEWHERE = tuple(verb for verb in HUMAN_ACTIONS if PLACE in verb.adjuncts)
# The sentence types, by how many in a hundred are of it.
SENTENCES: tuple[tuple[int, Callable[[random.Random], Pair]], ...] = (
    (28, _statement), (5, _statement_with_relative_object), (6, _statement_with_relative_subject),
    (8, _copula), (8, _yes_no_question), (3, _who_question), (5, _object_question),
    (4, _adverb_question), (2, _how_question), (3, _price), (2, _existence), (5, _coordination),
    (9, _subordination), (7, _that_clause), (5, _infinitive),
)
_HUNDRED = tuple(sentence for share, sentence in SENTENCES for _ in range(share))


def sentence_pair(rng: random.Random) -> tuple[str, str]:
    """One derivation: an English sentence and its German translation.

    Both are capitalised, end in "." or "?", have single spaces, and are at most
    `MAX_ENGLISH_WORDS` and `MAX_GERMAN_WORDS` long.
    """
    while True:
        english, german = _pick(rng, _HUNDRED)(rng)
        fits = MIN_ENGLISH_WORDS <= english.count(" ") + 1 <= MAX_ENGLISH_WORDS
        if fits and german.count(" ") < MAX_GERMAN_WORDS:
            # A relative clause that ends the sentence loses its closing comma.
            german = german.replace(",.", ".")
            return english[0].upper() + english[1:], german[0].upper() + german[1:]


def _digest(english: str) -> bytes:
    return blake2b(english.encode(), digest_size=8).digest()


def _split(digest: bytes) -> Literal["train", "validation", "test"]:
    percent = int.from_bytes(digest, "big") % 100
    return "train" if percent >= 4 else "validation" if percent >= 2 else "test"


def split_of(english: str) -> Literal["train", "validation", "test"]:
    """The split a sentence belongs to for ever: 2 % validation, 2 % test, by a hash of its text."""
    return _split(_digest(english))


def pairs(seed: int, split: str) -> Iterator[tuple[str, str]]:
    """Endless distinct (English, German) pairs of one split, a function of `seed` and `split`.

    Raises:
        UserError: `split` is not "train", "validation" or "test".
    """
    if split not in ("train", "validation", "test"):
        raise UserError(f'no split "{split}": use "train", "validation" or "test"')
    rng = random.Random(f"{split}/{seed}")
    seen: set[bytes] = set()
    while True:
        pair = sentence_pair(rng)
        digest = _digest(pair[0])
        if digest not in seen and _split(digest) == split:
            seen.add(digest)
            yield pair
