"""A built-in corpus of conversations in which the reply needs what was said at least two turns before.

    My dog is called Girta. <turn> I see. <turn> My age is 40. <turn> All right. <turn> What is my dog called?
    Your dog is called Girta.

A person tells one thing in each turn, and is answered without repeating it. The last turn asks for one of
these things. If it was corrected, the last statement counts; if it was never said, the reply says so. Names
are invented, and no split has those of another.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in.generated import SENTENCES, Pair, draw_split, persons, towns

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
SEPARATOR = " <turn> "
TOPICS = {topic: wordings for topic, *wordings in SENTENCES["turns"]}
"""What a person tells, with its statements, questions and the reply."""
WORDS = {
    "drink": ("coffee", "juice", "lemonade", "milk", "tea", "water"),
    "colour": ("black", "blue", "green", "red", "white", "yellow"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "age": tuple(map(str, range(18, 80))),
}
"""The other topics have names."""
ANSWERS = ("I see.", "Good to know.", "Thank you for telling me.", "How nice!", "All right.", "Tell me more.")
CORRECTION = "No, wait. "
UNTOLD = "You have not told me."
CORRECTED = 0.25
UNANSWERABLE = 0.1


class Conversation(NamedTuple):
    """The turns of two speakers, who take turns, and the reply to the last one."""

    turns: tuple[str, ...]
    reply: str


def records(split: str, seed: int = 0) -> Iterator[Conversation]:
    """Yields conversations, as `draw_split`. The names of splits are disjoint."""

    def draw(chance: random.Random) -> Conversation:
        return _conversation(chance, split)

    return draw_split("conversations", split, seed, draw, lambda record: SEPARATOR.join(record.turns))


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields the turns, joined by <turn>, and replies."""
    return ((SEPARATOR.join(record.turns), record.reply) for record in records(split, seed))


def _conversation(chance: random.Random, split: str) -> Conversation:
    topics = chance.sample(list(TOPICS), chance.randint(2, 3))
    statements = [(topic, _value(chance, split, topic)) for topic in topics]
    if chance.random() < CORRECTED:
        statements.append((topic := chance.choice(topics), _value(chance, split, topic)))
    turns, values = [], dict[str, str]()
    for topic, value in statements:
        correction = CORRECTION if topic in values else ""
        values[topic] = value
        turns.append(correction + _wording(chance, topic, 0).format(value))
        turns.append(chance.choice(ANSWERS))
    if chance.random() < UNANSWERABLE:
        subject = chance.choice([topic for topic in TOPICS if topic not in values])
    else:
        subject = chance.choice(topics)
    turns.append(_wording(chance, subject, 1))
    reply = _wording(chance, subject, 2).format(values[subject]) if subject in values else UNTOLD
    return Conversation(tuple(turns), reply)


def _wording(chance: random.Random, topic: str, part: int) -> str:
    return chance.choice(TOPICS[topic][part].split("|"))


def _value(chance: random.Random, split: str, topic: str) -> str:
    if topic in WORDS:
        return chance.choice(WORDS[topic])
    return (towns if topic == "town" else persons)(chance, split, 1)[0]
