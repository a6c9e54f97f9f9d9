"""Sentences: statements, questions, and combined clauses, with the frequencies in `SENTENCES`.

Each function samples one type of sentence in both languages, not yet capitalised.
"""

import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Literal

from transformer.data.built_in import lexicon
from transformer.data.built_in.clauses import (
    ACTIONS,
    ASKABLE,
    HUMAN_ACTIONS,
    Clause,
    a_time,
    build,
    in_english,
    in_german,
    narrowed,
    subject_of,
)
from transformer.data.built_in.inflection import (
    ALL_NOUNS,
    NOTHING,
    PHRASES,
    VERBS,
    Noun,
    Pair,
    nouns_of,
    number,
)
from transformer.data.built_in.phrases import (
    Phrase,
    inflected,
    led,
    noun_phrase,
    participant,
    pick,
    prepositional,
)
from transformer.runtime.errors import UserError

MIN_ENGLISH_WORDS = 3
MAX_ENGLISH_WORDS = 18
MAX_GERMAN_WORDS = 20

AGES = {
    "person": range(20, 100),
    "animal": range(2, 20),
    "building": range(2, 100),
    "furniture": range(2, 100),
}
DESCRIBABLE = tuple(noun for noun in ALL_NOUNS if noun.adjectives)
COUNTABLE = tuple(noun for noun in nouns_of("person,animal,furniture") if "kin" not in noun.classes)
TRANSITIVE = tuple(verb for verb, slot in ASKABLE if slot is verb.slots[-1][0] and not slot.german)
SOMEWHERE = tuple(verb for verb in HUMAN_ACTIONS if PHRASES["place"] in verb.adjuncts)
SOMEWHERE_ELSE = tuple(VERBS[name] for name in ("go", "run", "place"))
INTENTIONS = tuple(verb for verb in HUMAN_ACTIONS if not verb.is_state)
THINKING = tuple(verb for verb in VERBS.values() if "that" in verb.rules)
TRYING = tuple(verb for verb in VERBS.values() if "infinitive" in verb.rules)


# --- Statements


def _told(rng: random.Random, clause: Clause) -> Pair:
    """A statement. Sometimes the time comes first, and the German subject after the verb."""
    front = NOTHING
    if clause.time[0] and rng.random() < 0.4:
        front, clause = clause.time, clause._replace(time=NOTHING)
    return in_english(clause, front[0]) + ".", in_german(clause, front[1]) + "."


def _statement(rng: random.Random) -> Pair:
    return _told(rng, build(rng, pick(rng, ACTIONS)))


def _statement_with_relative_object(rng: random.Random) -> Pair:
    return _told(rng, build(rng, pick(rng, TRANSITIVE), negated=False, modified=True))


def _statement_with_relative_subject(rng: random.Random) -> Pair:
    verb = pick(rng, ACTIONS)
    noun = pick(rng, verb.subjects or nouns_of("person"))
    phrase, german = narrowed(rng, noun, "nom")
    subject = phrase._replace(german=f"{phrase.german}, {german},")
    if rng.random() < 0.4 or not verb.subjects:
        return _told(rng, _description(rng, noun, subject))
    return _told(rng, build(rng, verb, subject, detail=0.5))


def _description(rng: random.Random, noun: Noun, subject: Phrase, negated: bool | None = None) -> Clause:
    """A noun with "to be" and an adjective, a comparison or an age."""
    choice = rng.random()
    adjective = pick(rng, noun.adjectives)
    while adjective.english in subject.english.split():
        adjective = pick(rng, noun.adjectives)
    passing = adjective.english in lexicon.PASSING
    if choice < 0.2 and noun.kind in AGES:
        years, jahre = number(pick(rng, AGES["animal" if "young" in noun.classes else noun.kind]))
        predicate = f"{years} years old", f"{jahre} Jahre alt"
        passing = negated = False
    elif choice < 0.5 and adjective.german_comparative:
        others = [other for other in nouns_of(noun.kind) if other is not noun]
        other = noun_phrase(rng, pick(rng, others), "nom")
        if rng.random() < 0.7:
            predicate = (
                f"{adjective.english_comparative} than {other.english}",
                f"{adjective.german_comparative} als {other.german}",
            )
        else:
            predicate = (
                f"as {adjective.english} as {other.english}",
                f"so {adjective.german} wie {other.german}",
            )
    else:
        degrees = 1 if not adjective.german_comparative else 2 if adjective.english in lexicon.PLEASANT else 3
        degree, grad = pick(rng, (NOTHING, ("very ", "sehr "), ("too ", "zu "))[:degrees])
        predicate = degree + adjective.english, grad + adjective.german
    when, detail = ("", 0.5) if passing else (pick(rng, ("now", "past")), 0.0)
    return build(rng, VERBS["be"], subject, when, negated=negated, detail=detail, predicate=predicate)


def _copula(rng: random.Random) -> Pair:
    noun = pick(rng, DESCRIBABLE)
    subject = participant(rng, (noun,), "nom", definite=True)
    described = {adjective.english for adjective in noun.adjectives}
    while not described.isdisjoint(subject.english.split()):  # no "the cold soup is warm"
        subject = participant(rng, (noun,), "nom", definite=True)
    if rng.random() < 0.2:
        return _asked(_description(rng, noun, subject, negated=False))
    return _told(rng, _description(rng, noun, subject))


def _price(rng: random.Random) -> Pair:
    share, digits = rng.random(), rng.random()
    n = 2 + int(share * (98 if digits < 0.4 else 998 if digits < 0.8 else 9998))
    # "101 Euro" would be "hunderteins" or "hundertein".
    euros, euro = number(n + 1 if n % 100 == 1 else n)
    predicate = f"{euros} euros", f"{euro} Euro"
    return _told(rng, build(rng, VERBS["cost"], when="now", detail=0.0, predicate=predicate))


def _existence(rng: random.Random) -> Pair:
    """In the garden there are seven birds."""
    where, ort = prepositional(rng, PHRASES["place"])
    noun = pick(rng, COUNTABLE)
    count, zahl = number(pick(rng, range(2, 100)))
    verb, es = pick(rng, (("there are", "gibt es"), ("there were", "gab es")))
    english, german = noun.inflect("acc", True)
    if rng.random() < 0.5:
        adjective = pick(rng, noun.adjectives)
        english, german = f"{adjective.english} {english}", f"{adjective.stem}e {german}"
    return f"{where} {verb} {count} {english}.", f"{ort} {es} {zahl} {german}."


# --- Questions


def _asked(clause: Clause, front: Pair = NOTHING) -> Pair:
    return in_english(clause, front[0], question=True) + "?", in_german(clause, front[1], verb="first") + "?"


def _yes_no_question(rng: random.Random) -> Pair:
    return _asked(build(rng, pick(rng, ACTIONS), negated=False))


def _who_question(rng: random.Random) -> Pair:
    clause = build(rng, pick(rng, HUMAN_ACTIONS), Phrase("", ""), negated=False)
    return in_english(clause, "who") + "?", in_german(clause, "wer") + "?"


def _object_question(rng: random.Random) -> Pair:
    """Asks for the gap of the clause: whom, what, where, which, how many."""
    verb, gap = pick(rng, ASKABLE)
    clause = build(rng, verb, gap=gap, negated=False, detail=0.6)
    noun = pick(rng, gap.nouns)
    choice = rng.random()
    if gap.german == "*":
        return _asked(clause, ("where", "wo"))
    if choice < 0.3 and noun.english_plural:
        viele, _, english, german = inflected(noun, "viel", gap.case, True)
        front = f"how many {english}", f"wie {viele} {german}"
    elif choice < 0.6:
        welche, _, english, german = inflected(noun, "welch", gap.case, False)
        front = f"which {english}", f"{welche} {german}"
    elif "person" in noun.classes:
        front = "whom", {"acc": "wen", "dat": "wem"}[gap.case]
    elif gap.german or gap.case == "dat":
        return _object_question(rng)  # "worauf" and the like are not in the grammar
    else:
        front = "what", "was"
    return _asked(clause, led(rng, gap, noun, *front))


def _adverb_question(rng: random.Random) -> Pair:
    """When, why, where, whereto."""
    front = pick(rng, (("when", "wann"), ("why", "warum"), ("where", "wo"), ("where", "wohin")))
    when = pick(rng, ("later", "past"))
    verb = pick(rng, {"wo": SOMEWHERE, "wohin": SOMEWHERE_ELSE}.get(front[1], HUMAN_ACTIONS))
    gap = verb.slots[-1][0] if front[1] == "wohin" else None
    why = front[1] == "warum"
    negated, detail = (None, 0.8) if why else (False, 0.0)
    return _asked(build(rng, verb, when=when, gap=gap, negated=negated, detail=detail), front)


def _how_question(rng: random.Random) -> Pair:
    """How old is the cat? How much does the lamp cost?"""
    verb, nouns, front = pick(
        rng,
        (
            (VERBS["be"], nouns_of("person,animal,building"), ("how old", "wie alt")),
            (VERBS["cost"], VERBS["cost"].subjects, ("how much", "wie viel")),
        ),
    )
    subject = participant(rng, nouns, "nom", definite=True)
    return _asked(build(rng, verb, subject, "now", negated=False, detail=0.0), front)


# --- Two clauses


def _coordination(rng: random.Random) -> Pair:
    when = a_time(rng)
    verbs = pick(rng, ACTIONS), pick(rng, ACTIONS)
    first, second = (build(rng, verb, when=when, detail=0.4) for verb in verbs)
    conjunction, konjunktion = pick(rng, ((" and", " und"), (", but", ", aber")))
    return (
        f"{in_english(first)}{conjunction} {in_english(second)}.",
        f"{in_german(first)}{konjunktion} {in_german(second)}.",
    )


def _subordination(rng: random.Random) -> Pair:
    conjunction, konjunktion, when, main_when = pick(rng, lexicon.CONJUNCTIONS)
    verb, main_verb = pick(rng, ACTIONS), pick(rng, ACTIONS)
    main = build(rng, main_verb, when=main_when, detail=0.5)
    clause = build(rng, verb, when=when, detail=0.5, negated=False if konjunktion == "bevor" else None)
    english = in_english(clause, conjunction)
    german = in_german(clause, konjunktion, verb="last")
    if rng.random() < 0.4:
        return f"{english}, {in_english(main)}.", in_german(main, f"{german},") + "."
    return f"{in_english(main)} {english}.", f"{in_german(main)}, {german}."


def _that_clause(rng: random.Random) -> Pair:
    verb = pick(rng, THINKING)
    subject = subject_of(rng, verb)
    when = pick(rng, ("now", "now", "past"))
    main = build(rng, verb, subject, when, detail=0.0)
    # Past goes with past: otherwise English would shift the tense and German would not.
    clause = build(rng, pick(rng, ACTIONS), when="past" if when == "past" else a_time(rng), detail=0.7)
    unsure = verb is VERBS["know"] and main.negated
    that, dass = ("whether", "ob") if unsure else ("that", "dass")
    return (
        f"{in_english(main)} {in_english(clause, that)}.",
        f"{in_german(main)}, {in_german(clause, dass, verb='last')}.",
    )


def _infinitive(rng: random.Random) -> Pair:
    main = build(rng, pick(rng, TRYING), detail=0.0)
    silent = main.subject._replace(english="", german="")
    clause = build(rng, pick(rng, INTENTIONS), silent, "to", negated=False, detail=0.6)
    return (
        f"{in_english(main)} {in_english(clause)}.",
        f"{in_german(main)}, {in_german(clause, verb='last')}.",
    )


# The sentence types, with their frequencies in percent.
SENTENCES: tuple[tuple[int, Callable[[random.Random], Pair]], ...] = (
    (28, _statement),
    (5, _statement_with_relative_object),
    (6, _statement_with_relative_subject),
    (8, _copula),
    (8, _yes_no_question),
    (3, _who_question),
    (5, _object_question),
    (4, _adverb_question),
    (2, _how_question),
    (3, _price),
    (2, _existence),
    (5, _coordination),
    (9, _subordination),
    (7, _that_clause),
    (5, _infinitive),
)
_HUNDRED = tuple(sentence for share, sentence in SENTENCES for _ in range(share))


def sentence_pair(rng: random.Random) -> Pair:
    """One derivation: an English sentence and its German translation.

    Both are capitalised, end in "." or "?", have single spaces, and are at most
    `MAX_ENGLISH_WORDS` and `MAX_GERMAN_WORDS` long.
    """
    while True:
        english, german = pick(rng, _HUNDRED)(rng)
        fits = MIN_ENGLISH_WORDS <= english.count(" ") + 1 <= MAX_ENGLISH_WORDS
        if fits and german.count(" ") < MAX_GERMAN_WORDS:
            # A relative clause that ends the sentence loses its closing comma.
            german = german.replace(",.", ".")
            return english[0].upper() + english[1:], german[0].upper() + german[1:]


# An infinite stream of sentence pairs, and a fixed split into training, validation and test.


HELD_OUT_PERCENT = 4


def _fingerprint(english: str) -> int:
    return int.from_bytes(blake2b(english.encode(), digest_size=8).digest(), "big")


def _split(fingerprint: int) -> Literal["train", "validation", "test"]:
    part = fingerprint % 100 // HELD_OUT_PERCENT
    return "test" if part == 0 else "validation" if part == 1 else "train"


def split_of(english: str) -> Literal["train", "validation", "test"]:
    """The split of a sentence. It depends only on a hash of the text, so it never changes.

    `HELD_OUT_PERCENT` percent of all sentences are for validation, and as many for the test.
    """
    return _split(_fingerprint(english))


def pairs(seed: int, split: str) -> Iterator[Pair]:
    """An infinite stream of distinct (English, German) pairs of a split, determined by `seed` and `split`.

    Raises:
        UserError: `split` is not "train", "validation" or "test".
    """
    if split not in ("train", "validation", "test"):
        raise UserError(f'no split "{split}": use "train", "validation" or "test"')
    rng = random.Random(f"{split}/{seed}")
    seen: set[int] = set()
    while True:
        pair = sentence_pair(rng)
        fingerprint = _fingerprint(pair[0])
        if _split(fingerprint) == split and fingerprint not in seen:
            seen.add(fingerprint)
            yield pair
