"""Libraries that are not always installed: what a run needs is checked before anything is prepared."""

import ast
import dataclasses
import re
import sys
import tomllib
from pathlib import Path

import pytest
from configs import CONFIGS

from transformer import UserError
from transformer.commands.train import train_main
from transformer.runtime.machine import EXTRAS, check_libraries, library
from transformer.systems.presets import PRESETS
from transformer.systems.registry import REGISTRY, find_system
from transformer.trainer import train as training

ROOT = Path(__file__).parent.parent


class Prepared(Exception):
    """A corpus would be prepared now."""


@pytest.fixture
def bare(monkeypatch):
    """An environment without any of these libraries, in which no corpus is prepared."""
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)

    def prepare(*_):
        raise Prepared

    monkeypatch.setattr(training, "open_corpus_shown", prepare)


def needed(config) -> list[str]:
    """The libraries that training with a config refuses to begin without."""
    with pytest.raises((UserError, Prepared)) as end:
        training.train(config)
    found = re.fullmatch(rf"system {config.system} needs (.*): pip install '.\[speech\]'", str(end.value))
    return found[1].split(", ") if found else []  # some presets are refused since they need a run


def test_every_preset_is_checked_before_its_corpus_is_prepared(bare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused: dict[str, set[str]] = {}
    for config in CONFIGS.values():
        refused.setdefault(config.system, set()).update(needed(config))
    assert {name: libraries for name, libraries in refused.items() if libraries} == {"speech": {"jiwer"}}
    assert refused.keys() == REGISTRY.keys()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("system", ["speech", "synthesis", "nonautoregressive-synthesis"])
@pytest.mark.parametrize(
    ("options", "libraries"),
    [
        ({}, ()),
        ({"train": Path("train.tsv")}, ("soundfile", "soxr")),
        ({"speeds": (0.9, 1.0)}, ("soxr",)),
        ({"tempi": (0.5, 2.0)}, ()),
        ({"dataset": "librispeech"}, ("soxr",)),
    ],
)
def test_what_recordings_need(system, options, libraries):
    config = PRESETS[system]
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **options))
    scores = ("jiwer",) if system == "speech" else ()
    assert tuple(find_system(system).task.libraries(config)) == libraries + scores


def test_the_command_says_what_to_install(bare, refused):
    assert refused(train_main, "speech") == "train.py: system speech needs jiwer: pip install '.[speech]'\n"


def test_all_that_is_missing_is_named_at_once(bare):
    check_libraries(("numpy", "jax"), "this")
    with pytest.raises(UserError, match=r"x needs jiwer, s3fs: pip install '.\[speech\]' '.\[remote\]'"):
        check_libraries(("jiwer", "numpy", "s3fs"), "x")


def test_a_library_that_cannot_load_what_it_needs_is_missing(monkeypatch, tmp_path):
    (tmp_path / "libraryless.py").write_text("raise OSError('libsndfile not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="this needs libraryless: pip install libraryless"):
        library("libraryless")


def test_every_extra_is_one_of_the_package():
    """And every library that the package asks for by name has one."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, remedy in EXTRAS.items():
        if own := re.fullmatch(r"'\.\[(.+)\]'", remedy):
            distribution = {"PIL": "pillow", "markdown_it": "markdown-it-py"}.get(
                name, name.replace("_", "-")
            )
            assert any(re.match(rf"{distribution}\b", requirement) for requirement in extras[own[1]]), name
    asked = set()
    for path in (ROOT / "transformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "library":
                asked |= {
                    word.value.partition(".")[0] for word in node.args if isinstance(word, ast.Constant)
                }
    assert {"jiwer", "soundfile", "soxr", "matplotlib"} <= asked <= EXTRAS.keys()


def test_the_page_install_names_every_extra():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing = [name for name in extras["optional-dependencies"] if f"`{name}`" not in page]
    assert set(missing) <= {"cuda", "tpu"}  # these are in the first commands
