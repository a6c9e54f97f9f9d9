"""The notebooks run, from first to last cell, as anyone would run them."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path("notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert all(cell.outputs is not None for cell in notebook.cells if cell.cell_type == "code")


def test_they_are_committed_with_small_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert path.stat().st_size < 500_000
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert any(cell.outputs for cell in code), f"{path} was committed without outputs"
