"""English sentences of the built-in grammar with the part of speech of each word, as in the Penn Treebank
(Marcus et al. 1993).

Tags follow from the tables of the grammar: most words have one. The others are resolved by their neighbours:
"her" (his or him), "that" (a relative pronoun or not), "as", "on", "may", and verbs, whose plain form is an
infinitive (VB) after an auxiliary or "to", and otherwise the present (VBP). Sentences in which "read" could
also be the past are left out.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from transformer.data.sources import built_in
from transformer.data.sources.built_in import lexicon
from transformer.data.sources.built_in.inflection import (
    ALL_ADJECTIVES,
    ALL_NOUNS,
    VERBS,
    Verb,
    conjugate,
    nouns_of,
    ordinal,
)
from transformer.data.sources.conll import TaggedSentence

OF_ONE_KIND = {
    ".": ". ?",
    ",": ",",
    "CC": "and but",
    "CD": " ".join(lexicon.ENGLISH_SMALL + lexicon.ENGLISH_TENS[2:]) + " hundred thousand",
    "DT": "the a an this these every",
    "EX": "there",
    "IN": "in at under behind with for of into through out from ago past "
    "because although if before whether than",
    "JJ": "many next last asleep",
    "MD": "will can should could cannot",
    "NN": "front half quarter evening morning today yesterday tomorrow day week year",
    "NNS": "euros days weeks months years",
    "POS": "'s",
    "PRP": "I me you he him she we us they them it",
    "PRP$": "my your his our their",
    "RB": "not now up back much very too o'clock slowly quickly carefully loudly well "
    "often always never sometimes",
    "RBR": "more",
    "TO": "to",
    "VB": "want",
    "VBD": "did had was were wanted",
    "VBP": "am are do",
    "VBZ": "is does has wants",
    "WDT": "which",
    "WP": "who whom what",
    "WRB": "when where why how",
}
AUXILIARIES = {*OF_ONE_KIND["MD"].split(), "may", "do", "does", "did"}
BETWEEN = {"not", *(english for english, _ in lexicon.FREQUENCIES)}
"""What may be between an auxiliary and its verb."""
WITH_TWO_OBJECTS = ("give", "show", "send", "bring")
_TOKENS = re.compile(r"'s\b|[.,?]|[^\s.,?]+?(?='s\b|[.,?]|\s|$)")


def words_of(sentence: str) -> list[str]:
    """The words and signs of an English sentence of the grammar, as the Penn Treebank divides them."""
    return _TOKENS.findall(sentence)


def sentences(split: str, seed: int = 0) -> Iterator[TaggedSentence]:
    """An infinite stream of distinct sentences of a split, see `built_in.pairs`."""
    for english, _ in built_in.pairs(seed, split):
        words = words_of(english)
        tags = tags_of(words)
        if all(tags):
            yield TaggedSentence(tuple(words), tuple(tags))


def tags_of(words: Sequence[str]) -> list[str]:
    """The tag of each word of a sentence of the grammar; empty if it could be of two kinds.

    Raises:
      KeyError: a word is not of the grammar.
    """
    lowered = [word if word in _table() else word[0].lower() + word[1:] for word in words]
    return [_tag(lowered, index) for index in range(len(words))]


@functools.cache
def _table() -> dict[str, str]:
    """The tag of each word that has one, also of the plain forms of verbs: VB."""
    table = {word: tag for tag, words in OF_ONE_KIND.items() for word in words.split()}
    table |= dict.fromkeys((*lexicon.NAMES, *(month for month, *_ in lexicon.MONTHS)), "NNP")
    del table["May"]  # which is also an auxiliary
    table |= dict.fromkeys((day for day, _ in lexicon.WEEKDAYS), "NNP")
    table |= {ordinal(number)[0]: "JJ" for number in range(1, 32)}
    for noun in ALL_NOUNS:
        table |= {noun.english: "NN"} | ({noun.english_plural: "NNS"} if noun.english_plural else {})
    for adjective in ALL_ADJECTIVES:
        compared = adjective.english_comparative
        table |= {adjective.english: "JJ"} | ({} if " " in compared or not compared else {compared: "JJR"})
    for verb in VERBS.values():
        table |= {form: tag for tag, form in _forms(verb).items()}
    return table


def _forms(verb: Verb) -> dict[str, str]:
    """The forms of a verb by their tags, without what follows it, as in "turn on"."""
    if verb.english == "be":
        return {"VB": "be"}
    forms = {
        "VBZ": conjugate(verb, "present", 2).plain,
        "VBG": conjugate(verb, "progressive", 2).bare,
        "VBD": verb.english_past,
        "VB": verb.english,  # the last one, which the past may equal
    }
    return {tag: form.split()[0] for tag, form in forms.items()}


@functools.cache
def _nouns() -> set[str]:
    return {form for noun in ALL_NOUNS for form in (noun.english, noun.english_plural) if form}


@functools.cache
def _adjectives() -> set[str]:
    return {adjective.english for adjective in ALL_ADJECTIVES}


@functools.cache
def _people() -> set[str]:
    """The nouns that name persons, as a recipient does."""
    return {form for noun in nouns_of("person") for form in (noun.english, noun.english_plural) if form}


@functools.cache
def _giving() -> set[str]:
    """The forms of the verbs that have a recipient and another object."""
    return {form for name in WITH_TWO_OBJECTS for form in _forms(VERBS[name]).values()}


def _tag(words: Sequence[str], index: int) -> str:
    word = words[index]
    before = words[index - 1] if index else ""
    match word:
        case "her":
            return _tag_of_her(words, index)
        case "that":
            return "WDT" if _table().get(before, "").startswith("NN") else "IN"
        case "as":
            return "IN" if index > 1 and words[index - 2] == "as" else "RB"
        case "on":
            return "RP" if before in _forms(VERBS["turn on"]).values() else "IN"
        case "may":
            return "NNP" if before == "of" else "MD"
    tag = _table()[word.rpartition("-")[2]]  # such as forty-two
    return _tag_of_verb(words, index) if tag == "VB" and word != "be" else tag


def _tag_of_her(words: Sequence[str], index: int) -> str:
    """PRP$ before a noun and its adjectives, unless these are what she is given."""
    described = itertools.dropwhile(_adjectives().__contains__, words[index + 1 :])
    noun = next(described, "")
    is_given = index > 0 and words[index - 1] in _giving() and noun not in _people()
    return "PRP$" if noun in _nouns() and not is_given else "PRP"


def _tag_of_verb(words: Sequence[str], index: int) -> str:
    """VB after "to" or an auxiliary, otherwise VBP."""
    before = [word for word in words[:index] if word not in BETWEEN]
    last = before[-1] if before else ""
    if last in AUXILIARIES | {"to"} or (words[-1] == "?" and not AUXILIARIES.isdisjoint(before)):
        return "VB"
    if words[index] != "read" or last in ("I", "you", "we", "they"):
        return "VBP"
    return "VBD" if last in ("he", "she") else ""
