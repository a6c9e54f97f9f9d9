"""The commands of `benchmarks`: their list, what they import, and one that measures starts."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

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


STARTED = """
import sys
from pathlib import Path
from benchmarks.speed import start
from transformer.runs.config_json import from_json
start.preset = lambda name: from_json(Path(sys.argv[1]).read_text())
start.started("small", Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_stages_of_a_start(config: Config, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(to_json(config))
    for names in (start.NAMES, [name for name in start.NAMES if name != "examples"]):  # the second is resumed
        subprocess.run(
            [sys.executable, "-c", STARTED, tmp_path / "config.json", tmp_path], cwd=ROOT, check=True
        )
        stages = json.loads((tmp_path / "stages.json").read_text())
        assert {*names, "rest", "all"} <= stages.keys()
        assert all(len(times) == 2 for times in stages.values())
        assert stages["first update"][1] > 0
    with pytest.raises(SystemExit):
        start.main(["--nothing"])
