"""Names and prose use the words of the field.

A reader knows batches, positions, masks and checkpoints, so the package calls them that. Two habits make code
hard to read: locals named by how their value was obtained, and everyday words for what has a standard term.
The lists below were collected from earlier versions of this package, in which a reader needed the code to
understand such a word. They have only what is wrong wherever it stands: "keep" and "place" are often right,
so their forms are forbidden as names and not in prose.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transformer"
NAMES = {"found", "given", "going_on", "kept", "own", "told", "wanted"}
NAMES |= {"each", "mine", "ours", "place", "places", "theirs", "there"}
"""Of locals and arguments: name them by what they hold. Fields of classes are public, and not checked."""
PHRASES = {
    r"(go|goes|going|gone|went) on": "continue, resume",
    r"deal(s|t|ing)? out": "shard",
    r"(lie|lies|lay) on the devices": "is placed, is sharded",
    r"first host": "main process",
    r"fill(s|ed|ing)? up with|filled up": "pad",
    r"(is|are|was|were|be) cut to": "truncate",
    r"but for the rounding": "up to rounding",
    r"rounded (weights|matrices)": "quantised",
    r"(brings?|brought|bringing) back": "restore",
    r"at hand": "cached",
    r"mend(s|ed|ing)?": "refine",
    r"all words at once": "non-autoregressive",
    r"judg(e|es|ed|ing)": "re-rank, reranker",
    r"rise and fall": "warmup and decay",
    r"(heads?|layers?|models?|positions?|quer(y|ies)|tokens?) looks? at": "attend to",
    r"models? (say|says|said|would say|has said|have said)": "generate, output, predict",
    r"thereby": "so",
}
"""Regular expressions of whole words, and what to write instead."""
DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(PACKAGE.rglob("*.py"))


def locals_of(source: str) -> Iterator[tuple[int, str]]:
    """The line and the name of every local and argument, also of lambdas and comprehensions."""
    tree = ast.parse(source)
    fields = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assigned = [target for item in node.body for target in targets_of(item)]
            fields |= {id(name) for target in assigned for name in ast.walk(target)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def targets_of(statement: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else []


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings, comments and other strings of a module, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def private_words(text: str) -> Iterator[tuple[int, str]]:
    """The phrases in a text that have a standard term, each with its line, also across line breaks."""
    for phrase, term in PHRASES.items():
        pattern = rf"\b({phrase})\b".replace(" ", r"\s+")
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()), f"{' '.join(match[0].split())!r}: write {term}"


def listed(path: Path, findings: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in findings]


@pytest.mark.parametrize("package", sorted({path.relative_to(PACKAGE).parts[0] for path in SOURCES}))
def test_locals_are_named_by_what_they_hold(package: str) -> None:
    wrong = []
    for path in SOURCES:
        if path.relative_to(PACKAGE).parts[0] == package:
            names = locals_of(path.read_text(encoding="utf-8"))
            wrong += listed(path, ((line, name) for line, name in names if name in NAMES))
    assert not wrong


@pytest.mark.parametrize("package", sorted({path.relative_to(PACKAGE).parts[0] for path in SOURCES}))
def test_modules_use_the_words_of_the_field(package: str) -> None:
    wrong = []
    for path in SOURCES:
        if path.relative_to(PACKAGE).parts[0] == package:
            for start, text in prose_of(path.read_text(encoding="utf-8")):
                wrong += listed(path, ((start + line, hint) for line, hint in private_words(text)))
    assert not wrong


def test_pages_use_the_words_of_the_field() -> None:
    assert not [
        line
        for path in DOCS
        for line in listed(
            path, ((line + 1, hint) for line, hint in private_words(path.read_text(encoding="utf-8")))
        )
    ]


def test_what_these_tests_find() -> None:
    source = '''
class Sample:
    """A sample."""

    given: tuple
    kept = 1

    def method(self, found, *own, wanted=0, **told):
        self.there = [each for each in found]  # it goes on
        while (place := own):
            pass
        for mine, (theirs, ours) in found:
            f"rows are {mine} deals   out"
        try:
            return lambda places: 0
        except ValueError as going_on:
            raise
'''
    names = {name for _, name in locals_of(source)} & NAMES
    assert names == NAMES - {"given", "kept", "there"}
    hints = [hint for _, text in prose_of(source) for _, hint in private_words(text)]
    assert hints == ["'deals out': write shard", "'goes on': write continue, resume"]
    assert [line for line, _ in private_words("The search\ngoes\non; foregoes on")] == [1]
