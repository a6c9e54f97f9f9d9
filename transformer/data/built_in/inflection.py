"""Words and their forms: nouns, adjectives, determiners, numbers and verbs of both languages.

Derives all forms that the tables of the lexicon do not list. For the rules of German see any reference
grammar, such as Durrell, *Hammer's German Grammar and Usage*.
"""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple

from transformer.data.built_in import lexicon

Pair = tuple[str, str]  # English and German
NOTHING = ("", "")


# --- Nouns, adjectives, determiners


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun with its plural ("" if it has none), its gender ("m", "f" or "n"), and its classes.

    `kind` is its main class, which determines the adjectives that can modify it.
    """

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    classes: frozenset[str]
    kind: str
    prepositions: list[str]

    def inflect(self, case: str, plural: bool) -> Pair:
        """The English and the German form. `case` is "nom", "acc", "dat" or "gen"."""
        if plural:
            needs_n = case == "dat" and self.german_plural[-1] not in "ns"
            return self.english_plural, self.german_plural + "n" * needs_n
        if case != "nom" and "weak" in self.classes:
            return self.english, self.german_plural
        if case == "gen" and self.gender != "f":
            syllables = re.findall("[aeiouyäöü]+", self.german.lower())
            return self.english, self.german + ("es" if len(syllables) == 1 else "s")
        return self.english, self.german

    @cached_property
    def adjectives(self) -> list["Adjective"]:
        """The adjectives that can modify the noun."""
        senseless = {"old", "young"} if "young" in self.classes else set()
        return [
            adjective
            for adjective in ALL_ADJECTIVES
            if self.kind in adjective.kinds and adjective.english not in senseless
        ]


class Adjective(NamedTuple):
    """An adjective. Endings are added to `stem`; a comparative that is not used is ""."""

    english: str
    english_comparative: str
    german: str
    german_comparative: str
    stem: str
    kinds: list[str]


def _noun(classes: str, prepositions: str, forms: str) -> Noun:
    english, *irregular, article, singular, plural = forms.split()
    return Noun(
        english,
        "" if plural == "-" else (irregular or [english + "s"])[0],
        singular,
        plural.strip("-"),
        {"der": "m", "die": "f", "das": "n"}[article],
        frozenset([english, *classes.split()]),
        classes.split()[0],
        prepositions.split(),
    )


def _adjective(words: str, german: str, kinds: str) -> Adjective:
    english, comparative = [*words.split(), ""][:2]
    base, german_comparative, stem = [*german.split(), "", ""][:3]
    if german_comparative and not comparative:
        comparative = f"more {english}"
    stem = stem or base.removesuffix("e")
    return Adjective(english, comparative, base, german_comparative, stem, kinds.split())


ALL_NOUNS = tuple(
    _noun(classes, prepositions, forms)
    for classes, prepositions, row in lexicon.NOUNS
    for forms in row.split(",")
)
ALL_ADJECTIVES = tuple(_adjective(*row) for row in lexicon.ADJECTIVES)


@cache
def nouns_of(classes: str) -> tuple[Noun, ...]:
    """The nouns that are named, or whose class is named, in a comma-separated list."""
    chosen = set(classes.split(","))
    return tuple(noun for noun in ALL_NOUNS if chosen & noun.classes)


# The strong endings by case and gender; "p" is the plural of all genders.
ENDINGS = {
    case: dict(zip("mnfp", endings.split(), strict=True))
    for case, endings in {
        "nom": "er es e e",
        "acc": "en es e e",
        "dat": "em em er en",
        "gen": "es es er er",
    }.items()
}
EIN_WORDS = {"ein", "kein", *lexicon.POSSESSIVES.values()}


@cache
def determiner(stem: str, case: str, gender: str) -> Pair:
    """The inflected German determiner, and the ending of an adjective after it.

    A noun phrase marks its case once. After a determiner with a strong ending the adjective is weak. After
    one without an ending (no determiner, a number, "ein" in three forms) it is strong. So the mixed
    declension after "ein" needs no table.
    """
    strong = ENDINGS[case][gender]
    direct = case == "nom" or (case == "acc" and gender != "m")
    weak = "e" if direct and gender != "p" else "en"
    if stem == "d":
        return "d" + ({"es": "as", "e": "ie"}.get(strong, strong) if direct else strong), weak
    if stem in {"dies", "welch"}:
        return stem + strong, weak
    if stem in EIN_WORDS:
        bare = weak == "e" and gender != "f"
        return (stem, strong) if bare else (stem + strong, weak)
    return (stem + strong if stem == "viel" else stem), strong


def relative_pronoun(case: str, gender: str) -> str:
    """The German relative pronoun: the article, except in the dative plural."""
    return "denen" if (case, gender) == ("dat", "p") else determiner("d", case, gender)[0]


# --- Numbers


@cache
def number(n: int) -> Pair:
    """A cardinal from 0 to 9999 in words: 342 is "three hundred and forty-two" (British "and")."""
    english, german = [], ""
    for value, word, wort in ((1000, "thousand", "tausend"), (100, "hundred", "hundert")):
        if n >= value:
            english.append(f"{lexicon.ENGLISH_SMALL[n // value]} {word}")
            german += lexicon.GERMAN_SMALL[n // value] + wort
            n %= value
    if n or not english:
        tens, ones = divmod(n, 10)
        if n < 20:
            small, klein = lexicon.ENGLISH_SMALL[n], lexicon.GERMAN_SMALL[n] + "s" * (n == 1)
        else:
            small = lexicon.ENGLISH_TENS[tens] + f"-{lexicon.ENGLISH_SMALL[ones]}" * (ones > 0)
            klein = f"{lexicon.GERMAN_SMALL[ones]}und" * (ones > 0) + lexicon.GERMAN_TENS[tens]
        english.append(f"and {small}" if english else small)
        german += klein
    return " ".join(english), german


@cache
def ordinal(n: int) -> Pair:
    """An ordinal from 1 to 31. The German one has no ending: 3 is ("third", "dritt")."""
    english, german = number(n)
    head, hyphen, last = english.rpartition("-")
    last = lexicon.ENGLISH_ORDINALS.get(last) or last + "th"
    stem = lexicon.GERMAN_ORDINALS.get(n) or german + ("t" if n < 20 else "st")
    return head + hyphen + last, stem


@cache
def year(n: int) -> Pair:
    """A year in words: from 1910 to 1999 in hundreds, from 2000 as a number."""
    if n >= 2000:
        return number(n)
    (century, jahrhundert), (rest, jahr) = number(n // 100), number(n % 100)
    return f"{century} {rest}", f"{jahrhundert}hundert{jahr}"


# --- Verbs


class Slot(NamedTuple):
    """A slot of a verb for a phrase. The preposition "*" is determined by the noun."""

    english: str
    german: str
    case: str
    nouns: tuple[Noun, ...]


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb: its principal parts, its subjects and slots, and its tenses.

    `present` and `past` are the finite German forms by agreement (as in `conjugate`); with a participle,
    `past` is the auxiliary. Each item of `slots` is a choice of one slot; `rules` names parts that only
    some sentence types add.
    """

    english: str
    english_past: str
    prefix: str
    infinitive: str
    present: tuple[str, ...]
    past: tuple[str, ...]
    participle: str
    subjects: tuple[Noun, ...]
    slots: tuple[tuple[Slot, ...], ...]
    rules: frozenset[str]
    adjuncts: tuple[Pair | Slot, ...]
    tenses: dict[str, tuple[str, ...]]
    is_state: bool


def _slot(text: str) -> Slot:
    prepositions, _, nouns = text.partition(":")
    english, german, case = ["", "", *prepositions.split("/")][-3:]
    return Slot(english, german, case, nouns_of(nouns))


PHRASES = {name: _slot(text) for name, text in lexicon.PHRASES.items()}


def _english_form(verb: str, suffix: Literal["s", "ed", "ing"]) -> str:
    # In a verb of several words ("fall asleep") the first is inflected.
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
    base, _, english_past = english.partition(", ")
    infinitive, *irregular = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    stem = re.sub("e?n$", "", infinitive)
    third = stem + ("et" if stem[-1] in "td" else "t")
    # No ge- if the first syllable is unstressed: besuchen, verkaufen, reparieren.
    unstressed = re.search("^(be|ver)|ier$", stem)
    third, participle = irregular or (third, prefix + ("" if unstressed else "ge") + third)
    with_sein, _, participle = participle.rpartition("+")
    second = third if third[-2] in "sßzx" else third.removesuffix("t") + "st"
    present = infinitive.removesuffix("n"), second, third, infinitive
    past = lexicon.PRESENT["sein" if with_sein else "haben"]
    if infinitive in lexicon.PRETERITE:
        past, participle = lexicon.PRETERITE[infinitive], ""
    limit = next((word for word in adjuncts.split() if word in lexicon.TENSES), "")
    return Verb(
        base,
        english_past or _english_form(base, "ed"),
        prefix,
        infinitive,
        lexicon.PRESENT.get(infinitive, present),
        past,
        participle,
        nouns_of(subjects),
        tuple(
            tuple(PHRASES.get(option) or _slot(option) for option in word.split("+"))
            for word in complements.split()
            if word not in lexicon.RULES
        ),
        frozenset(complements.split()) & lexicon.RULES,
        tuple(
            PHRASES.get(word) or (word, lexicon.MANNERS[word]) for word in adjuncts.split() if word != limit
        ),
        lexicon.TENSES[limit],
        limit == "state",
    )


VERBS = {verb.english: verb for verb in (_verb(*row) for row in lexicon.VERBS)}


class Form(NamedTuple):
    """A verb in one tense and person, split into the parts that word order separates.

    English uses `plain` where possible, and `auxiliary` + `bare` in questions, before "not", and if there
    is no plain form. In German, `finite` and `final` enclose the clause.
    """

    auxiliary: str
    bare: str
    plain: str
    finite: str
    final: str
    final_is_prefix: bool = False


@cache
def conjugate(verb: Verb, tense: str, agreement: int) -> Form:
    """A verb in a tense of `lexicon.TENSES`, or "to" (an infinitive with "zu").

    `agreement` is 0 for "I", 1 for "you", 2 for the third person singular, 3 for the plural.
    """
    base, prefix = verb.english, verb.prefix
    infinitive = prefix + verb.infinitive
    if tense == "to":
        zu = f"{prefix}zu{verb.infinitive}" if prefix else f"zu {infinitive}"
        return Form("", "", f"to {base}", "", zu)
    if tense in lexicon.AUXILIARIES:
        return Form(tense, base, "", lexicon.AUXILIARIES[tense][agreement], infinitive)
    is_third = agreement == 2
    do = "does" if is_third else "do"
    if tense in lexicon.SEMI_MODALS:
        bare, inflected, finite = lexicon.SEMI_MODALS[tense]
        past = tense != bare
        plain = inflected if past or is_third else bare
        return Form("did" if past else do, f"{bare} {base}", f"{plain} {base}", finite[agreement], infinitive)
    if tense == "past":
        german = verb.past[agreement], verb.participle
        english = "did", base, verb.english_past
    else:
        german = verb.present[agreement], prefix
        english = do, base, _english_form(base, "s") if is_third else base
    if tense == "progressive":
        english = lexicon.ENGLISH_BE["present"][agreement], _english_form(base, "ing"), ""
    elif base == "be":
        english = lexicon.ENGLISH_BE[tense][agreement], "", ""
    return Form(*english, *german, final_is_prefix=bool(prefix) and tense != "past")
