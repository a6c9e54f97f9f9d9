"""The study of baselines: what is put out without a model, and a row of a run."""

import re
from dataclasses import replace

import numpy as np
import pytest
from test_tree_pictures import run as run_of_trees  # noqa: F401

from benchmarks.studies import baselines
from transformer import PRESETS, UserError
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.data.sources.tagged import TaggedSentence
from transformer.data.store import TextRecord
from transformer.tasks.metrics.bracketing import count_brackets


def test_what_is_most_frequent():
    texts = [TextRecord("One. Two? Three", target) for target in ("a", "b", "b")]
    assert baselines.most_frequent(texts)(texts[0]) == "b"
    assert baselines.first_sentence(texts)(texts[0]) == "One."
    sentences = [TaggedSentence(("a", "b"), ("X", "Y")), TaggedSentence(("a", "c"), ("Z", "Y"))]
    tag = baselines.most_frequent_labels(sentences)
    assert tag(TaggedSentence(("c", "a", "d"))) == ["Y", "X", "Y"]


def test_a_right_branching_tree():
    train = [TextRecord("a b", "(S (N a ) (A (N b ) ) (A (N b ) ) )")]
    guess = baselines.right_branching(train)(TextRecord("b a z", ""))
    assert guess == "(A (N b ) (A (N a ) (A (NN z ) ) ) )"
    counts = count_brackets([guess], ["(S (N b) (A (N a) (N z)))"])
    assert (counts.right, counts.output, counts.expected) == (1, 3, 2)


def test_the_mean_of_pictures():
    pixels, boxes = np.zeros((8, 8, 3), np.uint8), np.array([[0.0, 2, 4, 4], [2, 4, 4, 6], [1, 1, 1, 1]])
    pictures = [
        AnnotatedPicture("one", pixels, 8, 8, ("x", "y"), ("a", "a"), boxes[:2]),
        AnnotatedPicture("two", pixels, 8, 8, ("y",), ("b",), boxes[2:]),
    ]
    assert baselines.most_frequent_caption(pictures)(pictures[0]) == "y"
    expected = [("a", pytest.approx(2 / 3), [1, 3, 4, 5]), ("b", pytest.approx(1 / 3), [1, 1, 1, 1])]
    assert baselines.mean_boxes(pictures)(pictures[0]) == expected


@pytest.mark.slow
def test_presets_have_baselines_and_others_are_refused(run_of_trees, capsys):  # noqa: F811
    for name in baselines.NAMES:
        assert baselines.config_of(name) == PRESETS[name]
    with pytest.raises(UserError, match="spoken: there are simple outputs for .*, not for speech"):
        baselines.row("spoken", PRESETS["speech"])
    with pytest.raises(UserError, match="was trained without a test set: give --data.test"):
        baselines.main([str(run_of_trees.path)])


@pytest.mark.slow
def test_the_table_of_all_presets(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path))
    few = {}
    for name in baselines.NAMES:
        data = replace(PRESETS[name].data, built_in_size=500)
        if hasattr(data, "vocab_size"):
            data = replace(data, vocab_size=min(data.vocab_size, 400))
        few[name] = replace(PRESETS[name], data=data)
    monkeypatch.setattr(baselines, "PRESETS", few)
    baselines.main([])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(baselines.NAMES)
    for name, row in zip(baselines.NAMES, rows, strict=True):
        assert re.match(rf"\| {name} \| .*\d", row)
