"""The notebooks run, from the first to the last cell."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path("notebooks").glob("*.ipynb"))


def run(path, monkeypatch, cache, changes=None):
    """Runs every cell, with these changes of text."""
    monkeypatch.setenv("TRANSFORMER_CACHE", str(cache))
    notebook = nbformat.read(path, as_version=4)
    for before, after in (changes or {}).items():
        (cell,) = (cell for cell in notebook.cells if before in cell.source)
        cell.source = cell.source.replace(before, after)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()


@pytest.mark.slow
def test_the_first_runs_with_hardly_any_training(monkeypatch, tmp_path):
    sizes = {
        "UPDATES = 420": "UPDATES = 1",
        "size=45_000": "size=4_000",
        "samples=2": "samples=2, evaluate_sentences=8",
        "preset,\n": "preset, model=replace(preset.model, num_layers=1, d_model=32, d_ff=64),\n",
    }
    run(NOTEBOOKS[0], monkeypatch, tmp_path, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_runs_as_it_stands(path, monkeypatch, tmp_path):
    run(path, monkeypatch, tmp_path)


def test_they_are_committed_with_small_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert path.stat().st_size < 500_000
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        # one run, from top to bottom
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_nobody_is_told_to_install_by_a_name_that_is_not_registered():
    """Whoever registers it first would run their code there."""
    readers = [*NOTEBOOKS, Path("README.md"), Path("CONTRIBUTING.md"), *Path("docs").rglob("*.md")]
    told = [
        (path, line)
        for path in readers
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip3? install\b.*\btransformer[-_]jax", line) and "--no-index" not in line
    ]
    assert told == []
