"""The notebooks run, from the first to the last cell, and stored outputs are as the package is today."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from small_translator import small_translator
from stored_outputs import (
    CPU_SECONDS,
    DATA,
    FIXED_PAGES,
    NOTEBOOKS,
    README,
    ROOT,
    WITH_PICTURES,
    Picture,
    blocks,
    drawn_anew,
    execute,
    explorers,
    figure_of,
    style_of,
)

from transformer.explorer import explore

REMEDY = "run python tests/stored_outputs.py WORK explorers README docs/pictures"
CPU_LIMIT = 240  # seconds


@pytest.mark.slow
def test_the_first_runs_with_hardly_any_training(tmp_path):
    sizes = {
        "UPDATES = 600": "UPDATES = 1",
        "size=45_000": "size=4_000",
        "samples=2": "samples=2, evaluate_sentences=8",
        "preset,\n": "preset, model=replace(preset.model, num_layers=1, d_model=32, d_ff=64),\n",
    }
    execute(NOTEBOOKS[0], tmp_path, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_runs_as_it_stands(path, tmp_path):
    execute(path, tmp_path)


def test_the_table_of_the_second_is_searched(capsys):
    """A model that is no Transformer, which has to keep the contract of a search."""
    cells = [cell.source for cell in nbformat.read(NOTEBOOKS[1], as_version=4).cells]
    (imports,) = (source for source in cells if "import flax.linen as nn" in source)
    (config,) = (line for source in cells for line in source.splitlines() if "config = Tr" in line)
    (search,) = (source for source in cells if "class Table(nn.Module)" in source)
    exec("\n".join([imports, config, search]), {"__name__": "notebook"})
    printed = " ".join(capsys.readouterr().out.split())
    expected = "greedy: the dog barks </s> probability 0.173 beam 2: a dog barks </s> probability 0.385"
    assert printed == expected


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def stored(request) -> Any:
    return nbformat.read(request.param, as_version=4)


def test_they_are_committed_with_small_outputs(stored):
    assert len(nbformat.writes(stored)) < 500_000
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    # one run, from top to bottom
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    errors = [output.text for output in outputs if output.get("name") == "stderr"]
    assert all(line.startswith("WARNING:transformer:") for text in errors for line in text.splitlines())


def test_each_says_the_cpu_seconds_that_were_measured(stored):
    (seconds,) = CPU_SECONDS.findall(stored.cells[0].source)
    assert int(seconds) <= CPU_LIMIT


def test_labels_are_legible(stored):
    sizes = [int(size) for cell in stored.cells for size in re.findall(r"fontsize=(\d+)", cell.source)]
    widths = [float(w) for cell in stored.cells for w in re.findall(r"figsize=\(([\d.]+)", cell.source)]
    assert all(size >= 9 for size in sizes)
    assert all(width <= 10 for width in widths)  # wider ones are made smaller where they are shown


def test_the_readme_and_the_quick_start_list_all():
    for page in (README, ROOT / "docs" / "quick-start.md"):
        text = page.read_text(encoding="utf-8")
        assert [path.name for path in NOTEBOOKS if path.name not in text] == []
    assert f"under {CPU_LIMIT} CPU seconds" in README.read_text(encoding="utf-8")


def test_a_stored_explorer_is_as_the_package_draws_it_today(stored):
    """Its style, words and scripts, from the numbers in it."""
    for _, page in explorers(stored):
        assert drawn_anew(page) == page, REMEDY


def test_a_stored_explorer_has_the_numbers_that_pages_have_today():
    """Otherwise its notebook has to run."""

    def names(page: str) -> set[str]:
        data = json.loads(DATA.findall(page)[0])
        sentence = data["sentences"][0]
        return {*data, *sentence, *sentence["hypotheses"][0], *sentence["tree"][0]}

    pages = [page for path in NOTEBOOKS for _, page in explorers(nbformat.read(path, as_version=4))]
    assert pages
    today = explore(small_translator(), ["a"], beam_size=2).html
    for page in pages:
        assert names(page) == names(today), "run python tests/stored_outputs.py WORK notebooks/1"


@pytest.mark.parametrize("path", WITH_PICTURES, ids=lambda path: path.stem)
def test_pictures_on_pages_are_of_todays_pages(path: Path):
    """A figure is that in the notebook; a picture of a page has the style of pages today."""
    from PIL import Image

    for block in blocks(path.read_text(encoding="utf-8")):
        if block.kind != "image" or not block.note.startswith("picture of "):
            continue
        picture, target = Picture.of(block.note), path.parent / block.text
        with Image.open(target) as image:
            size, text = image.size, image.text
        if picture.selector.startswith("output of "):
            notebook = nbformat.read(ROOT / picture.source, as_version=4)
            assert target.read_bytes() == figure_of(notebook, picture.selector.removeprefix("output of "))
            continue
        if picture.size:
            assert size == picture.size
        assert text["style"] in set(map(style_of, FIXED_PAGES.values())), REMEDY


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
