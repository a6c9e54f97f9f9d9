"""What tests with random cases have in common: their number, values, and damage to files."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from transformer import Config
from transformer.config.options import flatten

CASES = int(os.environ.get("TRANSFORMER_FUZZ", 10))
fuzz = settings(
    max_examples=CASES,
    derandomize=CASES < 1000,  # always the same cases, except in a long run
    database=None,
    suppress_health_check=list(HealthCheck),
)

OPTIONS = sorted({part for name in flatten(Config()) for part in name.split(".")})
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 300), st.floats(), st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(OPTIONS) | st.text(max_size=8), inner)
    ),
    max_leaves=6,
)
CHANCE, VALUES = st.randoms(use_true_random=True), st.lists(JSON, min_size=3, max_size=3)


def damage(chance: Random, values: list[Any], folder: Path, outside: Path | None = None) -> None:
    """Truncates, changes, replaces or removes any file, or puts one in the place of a folder; or makes a link
    to outside, a pipe, a device, or odd JSON."""
    file = chance.choice(sorted(entry for entry in folder.rglob("*") if entry.is_file()))
    content = bytearray(file.read_bytes())
    kinds = ["cut", "flip", "fill", "remove", "folder"]
    kinds += ["link", "link of folder", "pipe", "device", "json", "field"] if outside else []
    match chance.choice(kinds):
        case "link":
            shutil.copy(file, outside / "file")
            file.unlink()
            file.symlink_to(outside / "file")
        case "link of folder":
            if file.parent != folder:
                shutil.copytree(file.parent, outside / "folder")
                shutil.rmtree(file.parent)
                file.parent.symlink_to(outside / "folder")
        case "pipe":
            file.unlink()
            os.mkfifo(file)
        case "device":
            file.unlink()
            file.symlink_to(chance.choice(["/dev/zero", "/dev/null", "/dev/stdin", "/nowhere"]))
        case "json":
            file.write_text(chance.choice(["[" * 10**5, '{"a":' * 10**5, json.dumps(values.pop())]))
        case "field":
            with contextlib.suppress(ValueError, RecursionError):
                about = json.loads(content)
                if isinstance(about, dict) and about:
                    about[chance.choice(sorted(about))] = values.pop()
                    file.write_text(json.dumps(about))
        case "cut":
            file.write_bytes(content[: chance.randint(0, max(len(content) - 1, 0))])
        case "flip":
            for _ in range(chance.randint(1, 4)):
                if content:
                    content[chance.randint(0, len(content) - 1)] ^= chance.randint(1, 255)
            file.write_bytes(content)
        case "fill":
            file.write_bytes(chance.randbytes(chance.randint(0, 300)))
        case "remove":
            file.unlink()
        case "folder":
            file.unlink()
            file.mkdir()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
