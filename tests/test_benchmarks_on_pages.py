"""The commands of `benchmarks`: their list, what they import, who runs them, and one that measures starts."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_benchmarks import ROOT

from benchmarks.__main__ import GROUPS, commands
from benchmarks.speed import start
from transformer import Config
from transformer.runs.config_json import to_json


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_finds_what_it_imports(group: str) -> None:
    for name in commands(group):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(("transformer", "benchmarks")):
                raise  # the others are programs that some compare with


def listed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True
    )


def test_the_list_of_commands() -> None:
    assert listed().returncode == listed("--help").returncode == 0
    wrong = listed("nosuch")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "benchmarks: 'nosuch': there is no such argument; python -m benchmarks lists all\n"
    for name in ("start", "speed.start", "benchmarks.speed.start"):
        assert "run it with python -m benchmarks.speed.start" in listed(name).stderr
    reader = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m benchmarks | head -n 1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (reader.returncode, reader.stderr, reader.stdout.count("\n")) == (0, "", 1)


def commands_run_by(path: Path) -> set[str]:
    """The commands whose `main` a file of tests calls, and not to see that it refuses something."""
    text, names = path.read_text(encoding="utf-8"), dict[str, str]()
    if "from benchmarks" not in text:
        return set()
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    found, nodes = set[str](), list[ast.AST](module.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.With) and "pytest.raises" in ast.unparse(node.items[0]):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".main"):
            found.add(names.get(ast.unparse(node.func).removesuffix(".main"), ""))
        nodes += ast.iter_child_nodes(node)
    return found


def test_every_command_is_run_by_a_test() -> None:
    named = {name for group in GROUPS for name in commands(group)}
    run = set[str]().union(*map(commands_run_by, ROOT.glob("tests/test_*.py")))
    assert len(named) > 20
    assert sorted(named - run) == []


def test_benchmarks_are_few() -> None:
    """Those that answered one question once are deleted; a page with their figures cites a commit."""
    files = [path.read_text(encoding="utf-8") for path in ROOT.glob("benchmarks/**/*.py")]
    assert len(files) <= 40
    assert sum(text.count("\n") for text in files) <= 7_000


STARTED = """
import sys
from pathlib import Path
from benchmarks.speed import start
from transformer.runs.config_json import from_json
start.preset = lambda name: from_json(Path(sys.argv[1]).read_text())
start.main(sys.argv[2:])
"""


@pytest.mark.slow
def test_stages_of_a_start(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The command and both processes that it starts, with a small config in place of a preset."""
    (tmp_path / "config.json").write_text(to_json(config))
    several, run = [], subprocess.run

    def started(command: list[str], **options: Any) -> Any:
        if command[:3] != [sys.executable, "-m", start.__name__]:  # what tells about the machine
            return run(command, **options)
        run([sys.executable, "-c", STARTED, tmp_path / "config.json", *command[3:]], cwd=ROOT, **options)
        several.append(json.loads((Path(command[4]) / "stages.json").read_text()))
        return None

    monkeypatch.setattr(start, "preset", lambda name: config)
    monkeypatch.setattr(subprocess, "run", started)
    start.main(["small"])
    resumed = [name for name in start.NAMES if name != "examples"]
    for names, stages in zip((start.NAMES, resumed), several, strict=True):
        assert {*names, "rest", "all"} <= stages.keys()
        assert all(len(times) == 2 for times in stages.values())
        assert stages["first update"][1] > 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*start.NAMES, "rest", "all"))
    with pytest.raises(SystemExit):
        start.main(["--nothing"])
