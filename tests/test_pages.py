"""Programs of the documentation run as printed."""

import re
from pathlib import Path

import pytest

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
