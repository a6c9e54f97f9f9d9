"""Clauses: a verb and its arguments, which each language puts in its own order.

`build` makes the parts of a clause. `in_english` and `in_german` determine the word order: the position of
the finite verb, the end of the clause, and everything between.
"""

import random
from functools import cache
from typing import Literal, NamedTuple

from transformer.data.built_in import lexicon
from transformer.data.built_in.inflection import (
    NOTHING,
    VERBS,
    Form,
    Noun,
    Pair,
    Slot,
    Verb,
    conjugate,
    nouns_of,
    relative_pronoun,
)
from transformer.data.built_in.phrases import (
    Phrase,
    join,
    led,
    noun_phrase,
    participant,
    pick,
    prepositional,
    time_of,
)


class Clause(NamedTuple):
    """The parts of a clause, not yet in order.

    `before` and `after` surround the time in the German middle field. `tail` is a relative clause after the
    closing bracket.
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
    """The clause in English word order. In a question the auxiliary is before the subject."""
    form, subject = clause.form, clause.subject.english
    verb, auxiliary = form.plain, ""
    if question or clause.negated or not verb:
        verb, auxiliary = form.bare, form.auxiliary
    if question:
        auxiliary, subject = subject, auxiliary
    if clause.negated:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    return join(front, subject, auxiliary, clause.adverb, verb, *clause.rest, clause.time[0])


def in_german(clause: Clause, front: str = "", *, verb: Literal["first", "second", "last"] = "second") -> str:
    """The clause in German word order, with the finite verb first, second (after `front`), or last."""
    form, subject = clause.form, clause.subject.german
    middle = (*clause.before, clause.time[1], *clause.after)
    if verb == "last":
        space = "" if form.final_is_prefix else " "
        closing = f"{form.final}{space}{form.finite}".strip()
        parts = join(front, subject, *middle, closing)
    elif verb == "first" or front:
        parts = join(front, form.finite, subject, *middle, form.final)
    else:
        parts = join(subject, form.finite, *middle, form.final)
    return f"{parts}, {clause.tail}" if clause.tail else parts


def a_time(rng: random.Random) -> str:
    """Samples the time of a main clause: "now", "later" or "past"."""
    return pick(rng, ("now", "now", "later", "past", "past"))


def subject_of(rng: random.Random, verb: Verb) -> Phrase:
    """Samples a subject for the verb."""
    return participant(rng, verb.subjects, "nom") if verb.subjects else Phrase("it", "es")


def build(
    rng: random.Random,
    verb: Verb,
    subject: Phrase | None = None,
    when: str = "",
    *,
    gap: Slot | None = None,
    negated: bool | None = None,
    detail: float = 1.0,
    predicate: Pair = NOTHING,
    modified: bool = False,
) -> Clause:
    """A clause with a verb. Arguments that are not given are sampled.

    `when` is "now", "later", "past", or "to" for an infinitive. The slot `gap` stays empty, because its
    phrase is the question word or the relative pronoun. `detail` scales the probability of a time or
    another adjunct; `modified` adds a relative clause to the last object.
    """
    subject = subject or subject_of(rng, verb)
    when = when or a_time(rng)
    tense = pick(rng, ("to",) if when == "to" else verb.tenses.get(when) or verb.tenses["now"])
    if tense == "past" and verb.english == verb.english_past and subject.agreement != 2:
        tense = "had to"  # "they read" would be present or past
    chance = rng.random()
    if negated is None:
        negated = chance < 0.14
    adverb, particle = "", "nicht" if negated else ""
    frequent = not (negated or verb.is_state or tense in ("progressive", "to"))
    if frequent and chance > 1 - 0.08 * detail:
        adverb, particle = pick(rng, lexicon.FREQUENCIES)

    rest: list[str] = []
    late: list[str] = []
    objects: dict[str, list[str]] = {"pronoun": [], "definite": [], "indefinite": []}
    manner = tail = ""
    heads = subject.heads
    for choices in verb.slots:
        slot = pick(rng, choices)
        last = choices is verb.slots[-1]
        if choices[0] is gap:
            continue
        if slot.german:
            words, worte = prepositional(rng, slot, heads)
            rest.append(words)
            late.append(worte)
            continue
        if modified and last:
            phrase, tail = narrowed(rng, pick(rng, slot.nouns), slot.case)
        else:
            # A recipient is definite: only the last object may replace "nicht" by "kein".
            phrase = participant(
                rng, slot.nouns, slot.case, heads, negated=negated, definite=slot.case == "dat" and not last
            )
        heads += phrase.heads
        rest.append(phrase.english)
        objects[phrase.kind].append(phrase.german)
        if negated and phrase.kind == "indefinite":
            particle = ""  # the phrase has "kein"

    if not tail and rng.random() < 0.35 * detail and verb.adjuncts and (particle or not negated):
        adjunct = pick(rng, verb.adjuncts)
        if isinstance(adjunct, Slot):
            words, worte = prepositional(rng, adjunct, heads)
            late.insert(0, worte)
        else:
            words, manner = adjunct
        rest.append(words)
    time = NOTHING
    if tense == "progressive":
        time = ("", "gerade")
    elif not (adverb or tail or verb.is_state or when == "to") and rng.random() < 0.45 * detail:
        time = time_of(rng, when)
        if negated and time[0].startswith("every"):
            time = NOTHING  # "not every day" would negate the day
    rest.append(predicate[0])
    late.append(predicate[1])
    # Known information comes first: pronouns, then definite objects, then "nicht".
    before, known = objects["pronoun"], objects["definite"]
    if particle:
        before, known = before + known, []
    return Clause(
        subject,
        conjugate(verb, tense, subject.agreement),
        negated,
        adverb,
        rest,
        before,
        [*known, particle, manner, *objects["indefinite"], *late],
        time,
        tail,
    )


# --- Verbs by their slots, and relative clauses


def _gap(verb: Verb) -> Slot | None:
    """The slot that a question can ask for: the last object, or else the last prepositional phrase."""
    single = [choices[0] for choices in verb.slots if len(choices) == 1]
    objects = [slot for slot in single if not slot.german]
    return (objects or single)[-1] if single else None


# Verbs without a rule of their own.
ACTIONS = tuple(verb for verb in VERBS.values() if not verb.rules)
HUMAN_ACTIONS = tuple(verb for verb in ACTIONS if nouns_of("person")[0] in verb.subjects)
ASKABLE = tuple((verb, slot) for verb in HUMAN_ACTIONS if (slot := _gap(verb)))


@cache
def _roles(noun: Noun) -> list[list[tuple[Verb, Slot | None]]]:
    """The verbs that can have the noun as subject, and those that can have it in a slot."""
    as_subject: list[tuple[Verb, Slot | None]] = [(verb, None) for verb in ACTIONS if noun in verb.subjects]
    as_object: list[tuple[Verb, Slot | None]] = [(verb, slot) for verb, slot in ASKABLE if noun in slot.nouns]
    return [role for role in (as_subject, as_object) if role]


def narrowed(rng: random.Random, noun: Noun, case: str) -> tuple[Phrase, str]:
    """A noun with a relative clause. The German clause is returned separately, since it may come later."""
    phrase = noun_phrase(rng, noun, case, narrowed=True)
    verb, gap = pick(rng, pick(rng, _roles(noun)))
    gender = "p" if phrase.agreement == 3 else noun.gender
    person = "person" in noun.classes
    when = pick(rng, ("now", "past"))
    if gap is None:
        silent = phrase._replace(english="", german="")
        clause = build(rng, verb, silent, when, detail=0.5)
        front = "who" if person else "that", relative_pronoun("nom", gender)
    else:
        subject = participant(rng, verb.subjects, "nom", phrase.heads)
        clause = build(rng, verb, subject, when, gap=gap, negated=False, detail=0.5)
        who = "whom" if person else "which" if gap.german else "that"
        front = led(rng, gap, noun, who, relative_pronoun(gap.case, gender))
    english = f"{phrase.english} {in_english(clause, front[0])}"
    return phrase._replace(english=english), in_german(clause, front[1], verb="last")
