"""docs/paper.md names files and functions: all of them exist, and no part of the paper is missing."""

import functools
import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs/paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([\d.]+|Figures)(.*?) \| .*\| `(\S+)\.py` \| `(\S+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), sorted({row[2:] for row in ROWS}))
def test_what_is_named_is_there(file: str, name: str) -> None:
    module = importlib.import_module(file.replace("/", "."))
    found = functools.reduce(getattr, name.split("."), module)
    assert getattr(found, "__module__", module.__name__) == module.__name__  # defined there, not imported


def test_every_row_was_read_and_every_part_of_the_paper_has_one() -> None:
    assert len(ROWS) == PAGE.count("\n| ") - 1  # except for the heading
    parts = " ".join(section + rest for section, rest, *_ in ROWS)
    sections = ["2", "3", "3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4"]
    sections += ["5.1", "5.2", "5.3", "5.4", "6.1", "6.2"]
    assert {row[0] for row in ROWS} >= set(sections)
    for part in ("Eq. 1", "Eq. 2", "Eq. 3", "Table 1", "Table 2", "Table 3", "Figure 1", "Figure 2"):
        assert part in parts
