"""A built-in treebank: English sentences of the built-in lexicon, and the trees that they were derived from.

    the dog sees a man in the park .
    (S (NP (DT the ) (NN dog ) ) (VP (VBZ sees ) (NP (DT a ) (NN man ) ) (PP (IN in ) (NP (DT the ) ...

Labels are those of the Penn Treebank (Marcus et al. 1993). A phrase with a preposition belongs to the verb or
to the noun before it. The preposition makes one of them more likely, and the words do not always tell: the
best parser makes mistakes, and one that always attaches to the noun makes more.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in.generated import Pair, draw_split
from transformer.data.built_in.inflection import VERBS, Noun, Verb, conjugate, nouns_of
from transformer.data.built_in.lexicon import FREQUENCIES, MANNERS, NAMES, POSSESSIVES, PRONOUNS

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
WORDS = range(3, 21)
"""The number of words of a sentence, with its full stop."""
SUBORDINATORS = ("although", "because", "before", "if", "when")
AUXILIARIES = {"VBD": "did", "VBP": "do", "VBZ": "does"}
MODALS = ("can", "could", "may", "should", "will")
SINGLE = tuple(verb for name, verb in VERBS.items() if " " not in name and verb.subjects)
ACTIONS = tuple(
    verb
    for verb in SINGLE
    if not verb.rules and all(not slot.english for choices in verb.slots for slot in choices)
)
"""Verbs without objects, with one, or with two, none with a preposition."""
THINKING = tuple(verb for verb in SINGLE if "that" in verb.rules)
TRYING = tuple(verb for verb in SINGLE if "infinitive" in verb.rules)
PREPOSITIONS = {
    "with": (nouns_of("person,animal"), 0.5),
    "for": (nouns_of("person"), 0.2),
    "in": (nouns_of("room,area,building"), 0.3),
    "on": (nouns_of("furniture"), 0.8),
    "under": (nouns_of("furniture"), 0.7),
    "from": (nouns_of("building,area"), 0.6),
}
"""The nouns after each, and the probability that the phrase belongs to the noun before it."""


class Node(NamedTuple):
    """A constituent, or a part of speech with its word."""

    label: str
    children: tuple["Node", ...] = ()
    word: str = ""

    def leaves(self) -> Iterator["Node"]:
        """The parts of speech with their words."""
        if self.word:
            yield self
        for child in self.children:
            yield from child.leaves()

    def __str__(self) -> str:
        """Linearised, with spaces between all tokens."""
        return f"({self.label} {self.word or ' '.join(map(str, self.children))} )"


class Sentence(NamedTuple):
    """A sentence and its derivation."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    """The part of speech of each word."""
    tree: str
    """The tree in linear form (`transformer.data.trees.linearised`)."""


def records(split: str, seed: int = 0) -> Iterator[Sentence]:
    """Yields sentences, as `draw_split`. A hash of the words decides in which split one is."""
    return draw_split("treebank", split, seed, _sentence, lambda record: " ".join(record.words))


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields sentences, with spaces between all words, and linearised trees."""
    return ((" ".join(record.words), record.tree) for record in records(split, seed))


def _sentence(chance: random.Random) -> Sentence:
    while True:
        root = _root(chance)
        leaves = list(root.leaves())
        if len(leaves) in WORDS:
            words, tags = (leaf.word for leaf in leaves), (leaf.label for leaf in leaves)
            return Sentence(tuple(words), tuple(tags), str(root))


def _root(chance: random.Random) -> Node:
    draw = chance.random()
    stop = Node(".", word=".")
    if draw < 0.12:
        return _question(chance)
    if draw < 0.24:
        conjunction = Node("CC", word=chance.choice(("and", "but")))
        return Node("S", (_clause(chance), conjunction, _clause(chance), stop))
    if draw < 0.34:
        front = _subordinate(chance)
        return Node("S", (front, Node(",", word=","), *_clause(chance).children, stop))
    return Node("S", (*_clause(chance, detail=True).children, stop))


def _question(chance: random.Random) -> Node:
    subject, is_plural = _subject(chance, chance.choice(ACTIONS))
    tag = _finite(chance.random() < 0.5, is_plural)
    verb = chance.choice([verb for verb in ACTIONS if not verb.is_state])
    children = Node(tag, word=AUXILIARIES[tag]), subject, _verb_phrase(chance, verb, "VB", verb.english)
    return Node("SQ", (*children, Node(".", word="?")))


def _clause(chance: random.Random, detail: bool = False) -> Node:
    """Subject and predicate. With `detail` there may be an adverb or a clause within it."""
    draw = chance.random() if detail else 0.0
    verb = chance.choice(THINKING if draw > 0.85 else TRYING if draw > 0.75 else ACTIONS)
    subject, is_plural = _subject(chance, verb)
    children = [subject]
    if detail and chance.random() < 0.15:
        children.append(_adverb(chance.choice(FREQUENCIES)[0]))
    extra: tuple[Node, ...] = ()
    if draw > 0.85:
        extra = (Node("SBAR", (Node("IN", word="that"), _clause(chance))),)
    elif draw > 0.75:
        action = chance.choice(ACTIONS)
        infinitive = Node("VP", (Node("TO", word="to"), _verb_phrase(chance, action, "VB", action.english)))
        extra = (Node("S", (infinitive,)),)
    elif detail and draw < 0.12:
        extra = (_subordinate(chance),)
    children.append(_predicate(chance, verb, is_plural, extra))
    return Node("S", tuple(children))


def _subordinate(chance: random.Random) -> Node:
    return Node("SBAR", (Node("IN", word=chance.choice(SUBORDINATORS)), _clause(chance)))


def _predicate(chance: random.Random, verb: Verb, is_plural: bool, extra: tuple[Node, ...] = ()) -> Node:
    """A finite verb phrase: present, past, negated or with a modal."""
    draw, is_past = chance.random(), chance.random() < 0.5
    if draw < 0.12:
        modal = Node("MD", word=chance.choice(MODALS))
        return Node("VP", (modal, _verb_phrase(chance, verb, "VB", verb.english, extra)))
    tag = _finite(is_past, is_plural)
    if draw < 0.24:
        inner = _verb_phrase(chance, verb, "VB", verb.english, extra)
        return Node("VP", (Node(tag, word=AUXILIARIES[tag]), Node("RB", word="not"), inner))
    present = conjugate(verb, "present", 3 if is_plural else 2).plain
    return _verb_phrase(chance, verb, tag, verb.english_past if is_past else present, extra)


def _finite(is_past: bool, is_plural: bool) -> str:
    """The part of speech of a finite verb."""
    return "VBD" if is_past else "VBP" if is_plural else "VBZ"


def _verb_phrase(
    chance: random.Random, verb: Verb, tag: str, word: str, extra: tuple[Node, ...] = ()
) -> Node:
    """A verb with its objects, and phrases that belong to it or to the last object."""
    objects = [_object(chance, chance.choice(choices).nouns) for choices in verb.slots]
    after: list[Node] = []
    if not extra:
        manners = [adjunct[0] for adjunct in verb.adjuncts if adjunct[0] in MANNERS]
        if manners and chance.random() < 0.2:
            after.append(_adverb(chance.choice(manners)))
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            preposition = chance.choice(list(PREPOSITIONS))
            phrase = _prepositional(chance, preposition)
            can_attach = bool(objects) and not after and _is_described(objects[-1])
            if can_attach and chance.random() < PREPOSITIONS[preposition][1]:
                objects[-1] = Node("NP", (objects[-1], phrase))
            else:
                after.append(phrase)
    return Node("VP", (Node(tag, word=word), *objects, *after, *extra))


def _is_described(phrase: Node) -> bool:
    """Whether a noun phrase can have another phrase: it is no pronoun and no name."""
    return next(phrase.leaves()).label not in ("PRP", "NNP")


def _subject(chance: random.Random, verb: Verb) -> tuple[Node, bool]:
    """A noun phrase, and whether its verb is that of "they"."""
    draw = chance.random()
    if draw < 0.2:
        word, *_, agreement = chance.choice(PRONOUNS)[:4]
        return Node("NP", (Node("PRP", word=str(word)),)), agreement != 2
    if draw < 0.3:
        return Node("NP", (Node("NNP", word=chance.choice(NAMES)),)), False
    if draw < 0.38:
        one, other = (_noun_phrase(chance, chance.choice(verb.subjects), False) for _ in range(2))
        return Node("NP", (one, Node("CC", word="and"), other)), True
    noun = chance.choice(verb.subjects)
    is_plural = bool(noun.english_plural) and chance.random() < 0.3
    phrase = _noun_phrase(chance, noun, is_plural)
    if draw < 0.5:
        relative = Node("WHNP", (Node("WP" if "person" in noun.classes else "WDT", word=_relative(noun)),))
        predicate = _predicate(chance, chance.choice([v for v in ACTIONS if noun in v.subjects]), is_plural)
        phrase = Node("NP", (phrase, Node("SBAR", (relative, Node("S", (predicate,))))))
    elif draw < 0.6:
        phrase = Node("NP", (phrase, _prepositional(chance, chance.choice(("with", "in", "from")))))
    return phrase, is_plural


def _relative(noun: Noun) -> str:
    return "who" if "person" in noun.classes else "that"


def _object(chance: random.Random, nouns: tuple[Noun, ...]) -> Node:
    noun = chance.choice(nouns)
    if "person" in noun.classes and chance.random() < 0.3:
        word = chance.choice(PRONOUNS)[1] if chance.random() < 0.6 else ""
        leaf = Node("PRP", word=str(word)) if word else Node("NNP", word=chance.choice(NAMES))
        return Node("NP", (leaf,))
    return _noun_phrase(chance, noun, bool(noun.english_plural) and chance.random() < 0.25)


def _prepositional(chance: random.Random, preposition: str) -> Node:
    noun = chance.choice(PREPOSITIONS[preposition][0])
    return Node("PP", (Node("IN", word=preposition), _noun_phrase(chance, noun, False)))


def _noun_phrase(chance: random.Random, noun: Noun, is_plural: bool) -> Node:
    """An article or a possessive, perhaps an adjective, and a noun."""
    leaves = []
    if noun.adjectives and chance.random() < 0.3:
        leaves.append(Node("JJ", word=chance.choice(noun.adjectives).english))
    leaves.append(Node("NNS", word=noun.english_plural) if is_plural else Node("NN", word=noun.english))
    if "mass" in noun.classes or (is_plural and chance.random() < 0.4):
        return Node("NP", tuple(leaves))
    draw = chance.random()
    if draw < 0.2 and "public" not in noun.classes:
        return Node("NP", (Node("PRP$", word=chance.choice(list(POSSESSIVES))), *leaves))
    article = "the"
    if draw > 0.6 and not is_plural:
        article = "an" if leaves[0].word[0] in "aeiou" else "a"
    return Node("NP", (Node("DT", word=article), *leaves))


def _adverb(word: str) -> Node:
    return Node("ADVP", (Node("RB", word=word),))
