"""The words of the built-in corpus, as tables (lexicon.txt).

Each word has exactly one translation, so the German of a sentence is a function of its English. The tables
have only what a dictionary lists (plurals, principal parts); the grammar derives the rest.
"""

from typing import Any

from transformer.data.built_in.generated import pairs_of, tables

_TABLES = tables("lexicon.txt")


def _filled(name: str, columns: int) -> list[list[str]]:
    return [row + [""] * (columns - len(row)) for row in _TABLES[name]]


def _map(name: str) -> dict[str, str]:
    return dict(pairs_of(_TABLES[name]))


def _forms(name: str) -> dict[str, tuple[str, ...]]:
    return {word: tuple(forms.split()) for word, forms in _map(name).items()}


def _words(name: str) -> list[str]:
    return [word for (row,) in _TABLES[name] for word in row.split()]


NOUNS, ADJECTIVES, VERBS, TIMES = (
    _filled(name, columns) for name, columns in (("nouns", 3), ("adjectives", 3), ("verbs", 5), ("times", 3))
)
PASSING, PLEASANT = set(_words("passing")), set(_words("pleasant"))
RULES = {"that", "infinitive", "price", "predicate"}
PHRASES, PLACE_PREPOSITIONS, CONTRACTIONS = _map("phrases"), _map("prepositions"), _map("contractions")
MANNERS, POSSESSIVES, ENGLISH_ORDINALS = _map("manners"), _map("possessives"), _map("english ordinals")
GERMAN_ORDINALS = {int(number): stem for number, stem in _map("german ordinals").items()}
FREQUENCIES, WEEKDAYS, UNITS = (pairs_of(_TABLES[name]) for name in ("frequencies", "weekdays", "units"))
NAMES = tuple(_words("names"))
PRONOUNS: tuple[tuple[Any, ...], ...] = tuple(
    (subject, other, dict(zip(("nom", "acc", "dat"), german.split(), strict=True)), int(agreement), *head)
    for subject, other, german, agreement, *head in _TABLES["pronouns"]
)
ENGLISH_BE, PRESENT, PRETERITE, AUXILIARIES = map(_forms, ("be", "present", "preterite", "auxiliaries"))
SEMI_MODALS = {
    verb: (bare, inflected, tuple(german.split())) for verb, bare, inflected, german in _TABLES["semi-modals"]
}
# The tenses a verb can have, by key; more likely ones are repeated. If there are none, those of "now".
_ALL_TENSES = {
    "now": (*3 * ["present"], "progressive"),
    "later": ("will", "can", "may", "have to", "want to", "should"),
    "past": (*4 * ["past"], "could", "had to", "wanted to"),
}
TENSES: dict[str, dict[str, tuple[str, ...]]] = {
    "": _ALL_TENSES,
    "simple": {**_ALL_TENSES, "now": ("present",)},
    "state": {"now": ("present",), "past": ("past",)},
    "event": {"now": ("present",), "later": ("will",), "past": ("past",)},
    "weather": {"now": ("progressive",), "later": ("will",), "past": ("past",)},
    "timeless": {"now": ("present",)},
}
CLOCK, MONTHS = (
    tuple((english, german, int(number)) for english, german, number in _TABLES[name])
    for name in ("clock", "months")
)
ENGLISH_SMALL, ENGLISH_TENS, GERMAN_SMALL, GERMAN_TENS = (row.split() for (row,) in _TABLES["numbers"])
CONJUNCTIONS = tuple(
    (english, german, subordinate, main) for english, german, subordinate, main in _TABLES["conjunctions"]
)
