"""A built-in corpus of stories with questions, in the style of bAbI (Weston et al. 2015).

    Anna went to the kitchen. Anna took the ball. Paul moved to the garden. Anna went to the park.
    Where is the ball?        the park

Persons move, take objects, put them down and give them away. Stories have two to eight sentences. The answer
is a place, a person, "nobody" if an object lies where it was put down, or "unknown" if the story does not
say: a word that a model can output like any other.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in.generated import Pair, draw_split
from transformer.data.built_in.lexicon import NAMES

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
PERSONS = NAMES
PLACES = ("bathroom", "bedroom", "garden", "hall", "kitchen", "office", "park", "school")
OBJECTS = ("apple", "ball", "book", "coat", "key", "lamp", "letter", "milk")
GOES = ("went to the {}", "moved to the {}", "travelled to the {}", "walked to the {}")
TAKES = ("took the {}", "picked up the {}", "grabbed the {}")
DROPS = ("put down the {}", "dropped the {}", "left the {} there")
GIVES = ("gave the {} to {}", "handed the {} to {}")
LENGTHS = range(2, 9)
UNKNOWN = "unknown"
NOBODY = "nobody"
UNANSWERABLE = 0.15
"""Share of questions that the story does not answer."""


class Story(NamedTuple):
    """A story, a question about its end, and the answer."""

    story: str
    question: str
    answer: str


class World:
    """Where everybody is, and who has what."""

    def __init__(self) -> None:
        self.place_of_person: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.place_of_object: dict[str, str] = {}
        """Of those that were put down; unknown where the person's place was."""

    def place(self, thing: str) -> str:
        """Where an object is."""
        if thing in self.holder:
            return self.place_of_person.get(self.holder[thing], UNKNOWN)
        return self.place_of_object.get(thing, UNKNOWN)

    def owner(self, thing: str) -> str:
        """Who has an object."""
        if thing in self.holder:
            return self.holder[thing]
        return NOBODY if thing in self.place_of_object else UNKNOWN


def records(split: str, seed: int = 0) -> Iterator[Story]:
    """Yields stories, as `draw_split`. A hash of the story decides in which split one is."""
    return draw_split("stories", split, seed, _story, lambda record: record.story)


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields stories with their questions, marked by <story> and <question>, and answers."""
    for record in records(split, seed):
        yield f"<story> {record.story} <question> {record.question}", record.answer


def _story(chance: random.Random) -> Story:
    world, sentences = World(), []
    persons = chance.sample(PERSONS, chance.randint(2, 4))
    things = chance.sample(OBJECTS, chance.randint(1, 3))
    for _ in range(chance.choice(LENGTHS)):
        sentences.append(_event(chance, world, persons, things))
    is_unknown = chance.random() < UNANSWERABLE
    questions = _questions(world)
    fitting = [pair for pair in questions if (pair[1] == UNKNOWN) == is_unknown]
    # An answer that few questions have is as likely as one that many have.
    answer = chance.choice(sorted({answer for _, answer in fitting}))
    question = chance.choice([question for question, other in fitting if other == answer])
    return Story(" ".join(sentences), question, answer)


def _event(chance: random.Random, world: World, persons: list[str], things: list[str]) -> str:
    """Something happens, and the sentence that tells it."""
    person, draw = chance.choice(persons), chance.random()
    free = [thing for thing in things if _can_take(world, person, thing)]
    held = [thing for thing, holder in world.holder.items() if holder == person]
    near = [other for other in persons if other != person and _can_meet(world, person, other)]
    if draw < 0.3 and free:
        thing = chance.choice(free)
        world.holder[thing] = person
        world.place_of_object.pop(thing, None)
        return f"{person} {chance.choice(TAKES).format(thing)}."
    if draw < 0.45 and held:
        thing = chance.choice(held)
        del world.holder[thing]
        world.place_of_object[thing] = world.place_of_person.get(person, UNKNOWN)
        return f"{person} {chance.choice(DROPS).format(thing)}."
    if draw < 0.6 and held and near:
        thing, other = chance.choice(held), chance.choice(near)
        world.holder[thing] = other
        return f"{person} {chance.choice(GIVES).format(thing, other)}."
    elsewhere = [name for name in PLACES if name != world.place_of_person.get(person)]
    world.place_of_person[person] = chance.choice(elsewhere)
    return f"{person} {chance.choice(GOES).format(world.place_of_person[person])}."


def _can_take(world: World, person: str, thing: str) -> bool:
    """Whether nobody has it, and it is not known to be elsewhere."""
    if thing in world.holder:
        return False
    return world.place_of_object.get(thing) in (None, world.place_of_person.get(person))


def _can_meet(world: World, person: str, other: str) -> bool:
    """Whether both are in the same known place: nobody's place follows from a gift."""
    locations = world.place_of_person
    return person in locations and locations[person] == locations.get(other)


def _questions(world: World) -> list[tuple[str, str]]:
    """All questions, with their answers."""
    questions = []
    for person in PERSONS:
        location = world.place_of_person.get(person, UNKNOWN)
        questions.append((f"Where is {person}?", _with_article(location)))
    for thing in OBJECTS:
        questions.append((f"Where is the {thing}?", _with_article(world.place(thing))))
        questions.append((f"Who has the {thing}?", world.owner(thing)))
    return questions


def _with_article(location: str) -> str:
    return location if location == UNKNOWN else f"the {location}"
