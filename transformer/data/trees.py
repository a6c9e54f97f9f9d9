"""Constituency trees as the Penn Treebank writes them: `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Union

DEEPEST = 200
"""Brackets within brackets. Sentences have less than 50."""
_TOKEN = re.compile(r"[()]|[^\s()]+")


class Tree(NamedTuple):
    """A constituent."""

    label: str
    """Empty for the outermost bracket in files of the Penn Treebank."""
    children: Sequence[Union["Tree", str]]
    """Constituents, and words."""

    @property
    def is_preterminal(self) -> bool:
        """Whether it is a part of speech with its word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def words(self) -> Iterator[str]:
        """The sentence."""
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child.words()

    def __str__(self) -> str:
        """As a line of a treebank."""
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
    2015): `(S (NP (DT the ) (NN dog ) ) (VP (VBZ barks ) ) )`. `read_tree` reads it."""
    return str(tree).replace(")", " )")
