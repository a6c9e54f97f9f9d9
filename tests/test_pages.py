"""Programs of the documentation run as printed."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from transformer import Config
from transformer.config import flatten

DOCS = Path(__file__).parent.parent / "docs"


def test_a_training_loop_in_thirty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    page = (DOCS / "training-loop.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= 30
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(program, names)
    assert capsys.readouterr().out == "4 3 2 1\n"
    assert float(names["metrics"]["correct"]) > 0.95
    translator, sources = names["Translator"].load("runs/reverse", "last"), names["sources"][:50]
    expected = [" ".join(reversed(source.split())) for source in sources]
    found = translator.translate(sources)
    assert sum(map(str.__eq__, found, expected)) >= 45


def test_a_system_from_outside(tmp_path: Path, config: Config) -> None:
    """A package beside this one, found through its entry point by commands in separate processes."""
    page = (DOCS / "own-system.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "zloss.py").write_text(program, encoding="utf-8")
    info = tmp_path / "zloss-0.1.dist-info"
    info.mkdir()
    named = tomllib.loads(project)["project"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: 0.1\n")
    points = named["entry-points"]["transformer.systems"].items()
    (info / "entry_points.txt").write_text(
        "[transformer.systems]\n" + "".join(f"{name} = {module}\n" for name, module in points)
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{DOCS.parent}"}

    def run(*words: object, text: str = "") -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "transformer", *map(str, words)]
        return subprocess.run(
            command, env=environment, input=text, cwd=tmp_path, capture_output=True, text=True, timeout=240
        )

    assert "quickstart with a z-loss" in run("train", "--list-presets").stdout
    files = {name: value for name, value in flatten(config).items() if name.startswith("data.") and value}
    options = [
        f"--{name.replace('_', '-')}={files[name]}"
        for name in ("data.train_source", "data.train_target", "data.validation_source", "data.cache_dir")
        if name in files
    ]
    options.append(f"--data.validation-target={files['data.validation_target']}")
    sizes = [
        f"--model.{name}" for name in ("num-layers=1", "d-model=16", "d-ff=16", "num-heads=2", "z-loss=0.5")
    ]
    short = ["--training.steps=4", "--training.evaluate-every=2", "--data.vocab-size=280"]
    short.append("--optimizer.schedule=inverse_sqrt")  # whose number of steps may change
    done = run("train", "z-loss", *options, *sizes, *short, "--run-dir=run")
    assert done.returncode == 0, done.stderr
    assert run("train", "--run-dir=run", "--training.steps=6", *options).returncode == 0
    assert Path(tmp_path / "run/checkpoints/6").is_dir()
    assert '"z_loss": 0.5' in (tmp_path / "run/config.json").read_text()
    for words in (("decode", "run"), ("average", "run"), ("report", "run")):
        done = run(*words, text="a b\n")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    (tmp_path / "zloss.py").write_text("import nothing_like_this")
    done = run("decode", "run", text="a\n")
    assert done.returncode == 2
    assert "the systems of package zloss cannot be imported: No module named" in done.stderr
