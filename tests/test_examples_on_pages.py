"""What the README and the quick start show of `python train.py` is what it prints."""

import re
import subprocess
from itertools import islice
from pathlib import Path

import jax
import pytest
from of_a_config import model_shapes

from transformer.data import built_in
from transformer.systems.presets import PRESETS
from transformer.tasks.texts.translation import Translation
from transformer.trainer.evaluator import _of_various_lengths

ROOT = Path(__file__).parent.parent
CONFIG = PRESETS["quickstart"]
README, QUICK_START = (ROOT / name for name in ("README.md", "docs/quick-start.md"))


def pairs(split: str, count: int) -> list[tuple[str, str]]:
    return list(islice(built_in.pairs(seed=0, split=split), count))


def test_the_command_that_translates():
    (record,) = pairs("test", 1)
    task = Translation.without_corpus(CONFIG)
    assert (
        f"\n{task.example_command(record, 'python decode.py runs/transformer-1')}\n"
        in QUICK_START.read_text()
    )


def test_the_command_is_short_and_runs():
    """Of a long source it has the first words. The shell is the oracle of quotes."""
    task = Translation.without_corpus(CONFIG)
    long = "It's " + "very " * 900 + "long."
    for texts, expected in (
        ([long, "A dog."], "A dog."),
        (["", long, "long " * 999], long[:299]),
        (["字" * 900], "字" * 300),
        (["", ""], None),
    ):
        command = task.short_example([(text, "") for text in texts], "cat")
        assert len(command) < 400
        if expected is None:
            assert command == ""
        else:
            assert subprocess.check_output(["bash", "-c", command], text=True) == f"{expected}\n"


def test_the_sample_translations():
    """Sources and references in the README are of the samples that an evaluation prints."""
    some, t = pairs("validation", CONFIG.training.evaluate_sentences), CONFIG.training
    printed = {some[index] for index in _of_various_lengths([len(str(pair)) for pair in some], t.samples)}
    shown = re.findall(r"^  (\w.*)\n  -> (.*)\n(?:   = (.*))?", README.read_text(), re.MULTILINE)
    assert shown
    assert {(source, reference or output) for source, output, reference in shown} <= printed


def test_the_command_at_the_end():
    (record,) = pairs("test", 1)
    assert f"\nTry: echo '{record[0]}' | python decode.py runs/transformer-1\n" in README.read_text()


@pytest.mark.parametrize("page", ["docs/quick-start.md", "docs/recipes/quickstart.md", "docs/results.md"])
def test_the_sizes(page):
    shapes = model_shapes(Translation.without_corpus(CONFIG).config)
    size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    text = (ROOT / page).read_text()
    for number in (size, CONFIG.data.built_in_size):
        assert f"{number:,}" in text


def test_the_readme_begins_with_a_picture_and_the_two_commands():
    """Within the first screen, and it stays short. A telephone shows tables of two columns."""
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 116
    (picture,) = (number for number, line in enumerate(lines) if line.startswith("<img"))
    assert 'width="560"' in lines[picture]
    assert picture < 10
    assert lines.index("pip install .") + 1 == lines.index("python train.py") < 20
    assert {line.count("|") for line in lines if line.startswith("| ")} == {3}
