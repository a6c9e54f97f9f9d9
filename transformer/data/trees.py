"""Constituency trees as the Penn Treebank writes them: `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Union

DEEPEST = 200
"""Brackets within brackets. Sentences have less than 50."""
FREQUENT = 10
"""A word that occurs so often in a treebank has no parts of speech that it does not have there."""
TRACE = "-NONE-"
"""The part of speech of what is not written."""
ROOT = "TOP"
"""The label of a bracket without one, around a sentence: it is not scored."""
_TOKEN = re.compile(r"[()]|[^\s()]+")


class Tree(NamedTuple):
    """A constituent of a sentence."""

    label: str
    """Empty for the outermost bracket in files of the Penn Treebank."""
    children: Sequence[Union["Tree", str]]
    """Constituents, and words."""

    @property
    def is_preterminal(self) -> bool:
        """Whether it is a part of speech with its word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def words(self) -> Iterator[str]:
        """The words of the sentence."""
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child.words()

    def __str__(self) -> str:
        """The tree as a line of a treebank."""
        return f"({' '.join((self.label, *map(str, self.children)))})"


def read_tree(text: str) -> Tree:
    """The tree that a text is.

    Raises:
      ValueError: it is none: brackets are not balanced, one is empty, there is something after the tree, or
        it is more than `DEEPEST` deep.
    """
    unfinished: list[tuple[str, list[Tree | str]]] = [("", [])]
    tokens = _TOKEN.findall(text)
    opens = False
    for token in tokens:
        label, children = unfinished[-1]
        if token == "(":
            if len(unfinished) > DEEPEST:
                raise ValueError(f"the tree is more than {DEEPEST} brackets deep")
            unfinished.append(("", []))
        elif token == ")":
            if len(unfinished) == 1:
                raise ValueError("a bracket is closed that was not opened")
            if not children:
                raise ValueError(f"the bracket {label or '()'} is empty")
            unfinished.pop()
            unfinished[-1][1].append(Tree(label, tuple(children)))
        elif opens:
            unfinished[-1] = token, children
        else:
            children.append(token)
        opens = token == "("
    if len(unfinished) > 1:
        raise ValueError("a bracket is not closed")
    trees = unfinished[0][1]
    if len(trees) != 1 or isinstance(trees[0], str):
        raise ValueError("the text is not one tree in brackets")
    return trees[0]


def linearised(tree: Tree) -> str:
    """A tree as a sequence of tokens with spaces between them, as a decoder generates it (Vinyals et al.
    2015): `(S (NP (DT the ) (NN dog ) ) (VP (VBZ barks ) ) )`. A bracket without label is TOP. `read_tree`
    reads it."""
    return str(tree).replace("( ", f"({ROOT} ").replace(")", " )")


class BracketKinds(NamedTuple):
    """What the trees of a treebank have in common."""

    parts_of_speech: tuple[str, ...]
    """Labels of brackets around one word. Empty: words stand beside brackets or other words."""
    phrases: tuple[str, ...]
    """Labels of brackets around brackets."""
    longest_chain: int
    """The most brackets that open one after the other."""
    of_words: Mapping[str, Sequence[str]] = {}
    """The parts of speech of each word that is frequent, as in the tag dictionary of Ratnaparkhi (1996)."""

    @classmethod
    def of(cls, trees: Iterable[str]) -> "BracketKinds":
        """The kinds of brackets in linearised trees."""
        parts, phrases, longest, are_alone = set[str](), set[str](), 0, True
        tagged: dict[str, Counter[str]] = {}
        for text in trees:
            chain, tokens = 0, text.split()
            for token, following in itertools.pairwise(tokens):
                is_open = token.startswith("(")
                chain = chain + 1 if is_open else 0
                longest = max(longest, chain)
                if is_open and following.startswith("("):
                    phrases.add(token[1:])
                elif is_open:
                    parts.add(token[1:])
                    tagged.setdefault(following, Counter())[token[1:]] += 1
                elif following[0] not in "()" or (token != ")" and following != ")"):
                    are_alone = False
        if not are_alone:
            return cls((), tuple(sorted(phrases)), longest)
        of_words = {
            word: tuple(sorted(counts))
            for word, counts in sorted(tagged.items())
            if counts.total() >= FREQUENT
        }
        return cls(tuple(sorted(parts)), tuple(sorted(phrases)), longest, of_words)

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> "BracketKinds":
        """What `_asdict` wrote. Raises ValueError if it is something else."""
        if content.keys() != set(cls._fields):
            raise ValueError(f"its fields must be {', '.join(cls._fields)}")
        longest = content["longest_chain"]
        if type(longest) is not int or longest < 1:
            raise ValueError("longest_chain must be a whole number above 0")
        of_words = content["of_words"]
        if not isinstance(of_words, dict):
            raise ValueError("of_words must be an object")
        several = {str(word): _labels(parts) for word, parts in of_words.items()}
        return cls(_labels(content["parts_of_speech"]), _labels(content["phrases"]), longest, several)


def _labels(content: object) -> tuple[str, ...]:
    if not isinstance(content, list) or not all(isinstance(label, str) for label in content):
        raise ValueError("labels must be a list of texts")
    return tuple(content)


def with_words(text: str, words: Sequence[str]) -> str:
    """A linearised tree with these words instead of its own, and parentheses in them as the Penn Treebank
    writes them: -LRB-, -RRB-. Unchanged if it has another number of words."""
    tokens = text.split()
    leaves = [index for index, token in enumerate(tokens) if token[0] not in "()"]
    if len(leaves) == len(words):
        for index, word in zip(leaves, words, strict=True):
            tokens[index] = word.replace("(", "-LRB-").replace(")", "-RRB-")
    return " ".join(tokens)


def tree_texts(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The texts of the trees in the numbered lines of a file of a treebank, each over any number of lines,
    with the number of its first line."""
    first, depth, text = 0, 0, list[str]()
    for number, line in lines:
        if not text and not line.strip():
            continue
        first = first if text else number
        text.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            yield first, " ".join(text)
            depth, text = 0, []
    if text:
        yield first, " ".join(text)


def simplified(tree: Tree) -> Tree | None:
    """A tree as parsers learn it: without traces, functions (NP-SBJ is NP) and a bracket without label around
    it. None: nothing is left."""
    if tree.is_preterminal:
        return None if tree.label == TRACE else tree
    inner = (child if isinstance(child, str) else simplified(child) for child in tree.children)
    children = [child for child in inner if child is not None]
    if not children:
        return None
    if not tree.label and len(children) == 1 and isinstance(children[0], Tree):
        return children[0]
    return Tree(without_function(tree.label), tuple(children))


def without_function(label: str) -> str:
    """A label without what follows a hyphen or an equals sign, unless it begins with one, as -LRB- does."""
    return label if label.startswith("-") else label.partition("-")[0].partition("=")[0]
