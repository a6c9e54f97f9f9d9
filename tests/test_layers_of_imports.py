"""Imports run one way, from the commands down to the configuration, and change no global setting."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transformer.systems.registry import REGISTRY

PACKAGE = Path(__file__).parent.parent / "transformer"
LAYERS = (
    {"paper"},
    {"runtime"},
    {"config"},
    {"data", "model"},
    {"training"},
    {"decoding"},
    {"tasks"},
    {"systems"},
    {"training.methods"},
    {"runs"},
    {"translator.documents"},
    {"translator"},
    {"training.loop"},
    {"interop", "training.plan", "translator.explorer"},
    {"cli"},
    {"serve"},
)
"""From the bottom to the top: each imports those below, itself, and nothing else of the package."""
OF_A_SYSTEM = {
    "api": "translator",
    "arriving": "cli",
    "page": "translator.explorer",
    "recording_file": "cli",
    "requested": "cli",
    "service": "serve",
    "writer": "cli",
}
"""Modules of a system's folder that belong to another layer than the rest of it."""
PACKAGES = set().union(*LAYERS)


def modules() -> dict[str, Path]:
    """Every module of the package, by its name without `transformer.`."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name.removeprefix("transformer.") in known else node.module for name in inside}
    return {name.removeprefix("transformer.") for name in names if name.startswith("transformer.")}


def layer(name: str) -> str:
    """The package in `LAYERS` to which a module belongs."""
    first, *inner = name.split(".")
    if first == "systems" and inner:
        return OF_A_SYSTEM.get(inner[-1], first)
    part = f"{first}.{inner[0]}" if inner else first
    return part if part in PACKAGES else first


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_run_one_way(package: str) -> None:
    known = modules()
    level = next(index for index, layer in enumerate(LAYERS) if package in layer)
    allowed = {package}.union(*LAYERS[:level])
    for name, path in known.items():
        if layer(name) == package:
            assert {layer(other) for other in imported(path, known)} <= allowed, name


def test_every_package_has_its_layer() -> None:
    assert {layer(name) for name in modules() if name} - {"__main__"} == PACKAGES
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "py.typed"}
    assert len(entries) <= 16, entries
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


PUBLIC = {
    "": "public names",
    "runs.config_json": "systems that earlier versions named otherwise",
    "interop.bert": "a pretrained model of one system",
    "interop.whisper": "a pretrained model of one system",
}


@pytest.mark.parametrize(
    "name", sorted(REGISTRY.keys() - {"transformer"})
)  # the name of the package, and what Marian is
def test_nothing_outside_its_folder_knows_a_system(name: str) -> None:
    """A system may build on another; everything else finds it by the name in a config."""
    folder = str(REGISTRY[name]).rpartition(".")[2]
    knows = re.compile(rf"systems[./]{folder}\b|system[^a-z\n]{{1,9}}{name}\b")
    for module, path in modules().items():
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


def test_there_is_no_circle() -> None:
    known = modules()
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    while leaves := {name for name, below in graph.items() if not below & graph.keys()}:
        graph = {name: below for name, below in graph.items() if name not in leaves}
    assert graph == {}


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
