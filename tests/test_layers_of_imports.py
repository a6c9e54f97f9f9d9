"""Rooms stand one above the other: imports run downwards, without circles, and change no global setting."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from transformer.systems.registry import REGISTRY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transformer"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROOMS = re.findall(
    r"^\| `([\w/*]+)` \| ", DESIGN.partition("## The rooms")[2].partition("\n## ")[0], re.MULTILINE
)
"""From the bottom to the top, as docs/design.md lists them."""
SYSTEMS = "systems/*"
BESIDE = {"__init__.py", "__main__.py", "paper.py", "testing.py"}
"""Modules that belong to no room: the public names, the command, the paper as plain functions, and the kit
for tests of systems."""


def modules() -> dict[str, Path]:
    """Every module of the package, by its name without `transformer.`."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


KNOWN = modules()


def named_by(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The modules of the package that an import statement names, without `transformer.`."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    else:
        inside = {f"{node.module}.{alias.name}" for alias in node.names}
        names = {name if name.removeprefix("transformer.") in KNOWN else str(node.module) for name in inside}
    return {name.removeprefix("transformer.") for name in names if name.startswith("transformer.")}


def imported(path: Path) -> set[str]:
    """The modules of the package that a module imports anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return set().union(
        *(named_by(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    )


def imported_at_once(path: Path) -> set[str]:
    """What a module imports when it is imported: neither within functions nor for types alone."""
    names: set[str] = set()
    statements: list[ast.stmt] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= named_by(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            statements += node.body + node.orelse
        elif isinstance(node, ast.Try | ast.ClassDef | ast.With):
            statements += node.body
    parents = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    return (names | parents) & KNOWN.keys()


def room(path: Path) -> str | None:
    """The room of a module. None: it stands beside them."""
    folder = path.relative_to(PACKAGE).parent.as_posix()
    if folder == ".":
        assert path.name in BESIDE, path
        return None
    return SYSTEMS if folder.startswith("systems/") else folder


def test_every_folder_is_a_room_and_every_room_a_folder() -> None:
    rooms = {room(path) for path in KNOWN.values()} - {None}
    assert len(ROOMS) == len(set(ROOMS))
    assert rooms == set(ROOMS)
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_import_runs_upwards() -> None:
    upwards, arrows = set(), set()
    for path in KNOWN.values():
        here = room(path)
        for name in imported(path) if here else ():
            there = room(KNOWN[name])
            if there and there != here:
                arrows.add((here, there))
                if ROOMS.index(there) > ROOMS.index(here):
                    upwards.add((str(path.relative_to(PACKAGE)), name))
    print(f"{len(ROOMS)} rooms, {len(arrows)} arrows between them, {len(upwards)} imports upwards")
    assert upwards == set()


def test_there_is_no_circle() -> None:
    graph = {name: imported(path) - {name} for name, path in KNOWN.items()}
    while leaves := {name for name, below in graph.items() if not below & graph.keys()}:
        graph = {name: below for name, below in graph.items() if name not in leaves}
    print(f"{len(graph)} modules in circles")
    assert graph == {}


def test_what_benchmarks_import_is_there() -> None:
    missing = []
    for path in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.startswith("transformer."):
                source = KNOWN[module.removeprefix("transformer.")]
                there = {
                    *re.findall(r"\w+", source.read_text(encoding="utf-8")),
                    *(p.stem for p in source.parent.iterdir()),
                }
                missing += [(path.name, alias.name) for alias in node.names if alias.name not in there]
    assert missing == []


MOST_FILES, MOST_FILES_OF_A_FOLDER, MOST_OF_A_NAME = 380, 20, 2
LAYOUT = {"__init__.py"}


def test_files_are_few() -> None:
    files = [path.relative_to(PACKAGE) for path in KNOWN.values()]
    folders = Counter(path.parent for path in files)
    outside = Counter(path.name for path in files if not str(path).startswith("systems/"))
    repeated = {name: count for name, count in outside.items() if name not in LAYOUT}
    print(
        f"{len(files)} files, at most {max(folders.values())} in a folder, {max(repeated.values())} of a name"
    )
    assert len(files) <= MOST_FILES
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES_OF_A_FOLDER} == {}
    assert {name: count for name, count in repeated.items() if count > MOST_OF_A_NAME} == {}


def assigned(node: ast.stmt) -> list[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        aims = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [part for aim in aims for part in getattr(aim, "elts", [aim])]
        return [name.id for name in names if isinstance(name, ast.Name)]
    return []


def test_no_name_of_a_module_is_bound_twice() -> None:
    """The later value would silently take the stead of the earlier one."""
    for path in KNOWN.values():
        names = Counter(
            name for node in ast.parse(path.read_text(encoding="utf-8")).body for name in assigned(node)
        )
        assert {name for name, count in names.items() if count > 1} == set(), path


CORE = (
    "model.transformer",
    "training.step",
    "training.cross_entropy",
    "training.schedule",
    "training.objective",
    "decoding.beam",
)
"""Eq. 1, an update, and the beam search."""
MOST_CORE_FILES, MOST_CORE_LINES = 36, 5_200


def test_the_paper_is_found_in_few_files() -> None:
    """All that the modules of the paper import, followed inside the package."""
    core, left = set(), set(CORE)
    while left:
        core |= left
        left = set().union(*(imported_at_once(KNOWN[name]) for name in left)) - core - {""}
    lines = {name: KNOWN[name].read_text(encoding="utf-8").count("\n") for name in core}
    print(f"Eq. 1, an update and beam search: {len(core)} files, {sum(lines.values()):,} lines")
    assert len(core) <= MOST_CORE_FILES, lines
    assert sum(lines.values()) <= MOST_CORE_LINES, lines


PUBLIC = {
    "": "public names",
    "runs.config_json": "systems that earlier versions named otherwise",
    "interop.architectures.bert": "a pretrained model of one system",
    "interop.architectures.whisper": "a pretrained model of one system",
}


@pytest.mark.parametrize(
    "name", sorted(REGISTRY.keys() - {"transformer"})
)  # the name of the package, and what Marian is
def test_nothing_outside_its_folder_knows_a_system(name: str) -> None:
    """A system may build on another; everything else finds it by the name in a config."""
    folder = str(REGISTRY[name]).rpartition(".")[2]
    knows = re.compile(rf"systems[./]{folder}\b|system[^a-z\n]{{1,9}}{name}\b")
    for module, path in KNOWN.items():
        if not module.startswith("systems.") and module not in PUBLIC:
            assert not knows.search(path.read_text(encoding="utf-8")), module


@pytest.mark.parametrize(("name", "most"), [("token_scores", 4), ("word_confidences", 6)])
def test_an_output_of_decoding_is_named_in_few_files(name: str, most: int) -> None:
    """The option, the step after the search that makes it, the API, and who says where else to find it. The
    confidence of words is also a field of the outputs, and a page asks for it."""
    naming = [
        path for path in PACKAGE.rglob("*.py") if re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))
    ]
    assert 3 <= len(naming) <= most, naming


SETTINGS = """
import importlib, logging, os, pkgutil, warnings
import absl.logging, jax, orbax.checkpoint, tensorboardX, transformer  # libraries change some themselves
def settings():
    levels = {name: logging.getLogger(name).level for name in ("", "jax", "absl", "asyncio", "transformer")}
    verbosity, handlers = absl.logging.get_verbosity(), logging.root.handlers[:]
    return dict(jax.config.values), levels, verbosity, handlers, dict(os.environ)
before = settings()
for module in pkgutil.walk_packages(transformer.__path__, "transformer."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print([i for i, (old, new) in enumerate(zip(before, settings(), strict=True)) if old != new])
"""


@pytest.mark.slow
def test_importing_changes_no_setting() -> None:
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
