"""Pictures show the given numbers with the right words."""

import json
import subprocess
import sys

import numpy as np
import pytest

from transformer import Hypothesis, UserError
from transformer.config.training import OptimizerConfig
from transformer.explorer import Attention, Candidate, SearchTree
from transformer.explorer import figures as p

SOURCE, TARGET = ("red", "cat", "</s>"), ("Katze", "</s>")
RANDOM = np.random.default_rng(0)


def rows(*shape: int) -> np.ndarray:
    weights = RANDOM.random(shape, np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.fixture
def attention() -> Attention:
    sizes = {"encoder": rows(2, 5, 3, 3), "decoder": rows(1, 5, 2, 2), "cross": rows(1, 5, 2, 3)}
    return Attention(source=SOURCE, target=TARGET, given=("<s>", "Katze"), **sizes)


def labels(ticks: list) -> list[str]:
    return [tick.get_text() for tick in ticks]


def maps(figure) -> list:
    return [axis for axis in figure.axes if axis.images]


def test_a_layer_has_a_panel_for_each_head(attention, tmp_path):
    figure = p.draw_layer(attention, "cross", 0)
    for head, axis in enumerate(maps(figure)):
        np.testing.assert_array_equal(axis.images[0].get_array(), attention.cross[0, head])
        assert axis.get_title() == f"head {head + 1}"
        # panels share their labels: rows on the left, columns where no panel is below
        assert labels(axis.get_yticklabels()) == (list(TARGET) if head in (0, 4) else [])
        assert labels(axis.get_xticklabels()) == (list(SOURCE) if head > 0 else [])
    assert head == 4
    assert figure.get_suptitle() == "Layer 1, cross-attention"
    (single,) = maps(p.draw_attention(attention.weights("decoder"), *attention.words("decoder")))
    assert labels(single.get_xticklabels()) == ["<s>", "Katze"]
    figure.savefig(tmp_path / "layer.png")
    assert (tmp_path / "layer.png").stat().st_size > 5000


def test_an_alignment_has_the_hypothesis_words(tmp_path):
    weights = rows(3, 3)
    hypothesis = Hypothesis("$5 $", ("$5", "$"), -1.0, -1.0, weights)
    figure = p.draw_alignment(hypothesis, SOURCE[:-1])
    (axis,) = maps(figure)
    np.testing.assert_array_equal(axis.images[0].get_array(), weights)
    figure.savefig(tmp_path / "dollars.png")  # no formula
    with pytest.raises(UserError, match="search with alignments=True"):
        p.draw_alignment(Hypothesis("a", ("a",), 0.0, 0.0), SOURCE)
    with pytest.raises(UserError, match="3 queries and 4 keys"):
        p.draw_alignment(hypothesis, SOURCE)


def test_layers_and_kinds_that_are_not_there_are_refused(attention):
    with pytest.raises(UserError, match="layer 1: cross attention has 1"):
        p.draw_layer(attention, "cross", 1)
    with pytest.raises(UserError, match="choose one of"):
        p.draw_layer(attention, "pointer", 0)


def test_positions_are_the_sinusoids():
    (axis,) = maps(p.draw_positions(length=9, d_model=6))
    place = np.arange(9)[:, None] / 10_000 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(place), np.cos(place)], axis=-1).reshape(9, 6)
    np.testing.assert_allclose(axis.images[0].get_array(), expected, atol=1e-5)


def test_schedules_have_their_peaks_and_names():
    paper = OptimizerConfig(schedule="paper", warmup_steps=40)
    figure = p.draw_schedule({"paper": paper, "longer": OptimizerConfig(warmup_steps=80)}, 64, 200)
    (axis,) = figure.axes
    assert labels(axis.get_legend().get_texts()) == ["paper", "longer"]
    steps, rates = axis.lines[0].get_data()
    assert (steps[0], len(steps), steps[np.argmax(rates)]) == (1, 200, 40)
    assert max(rates) == pytest.approx(64**-0.5 * 40**-0.5)


def test_the_learning_curve_is_that_of_the_metrics(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    records = [
        {"kind": "training", "step": 50, "nll": 6.0},
        {"kind": "training", "step": 100, "nll": 4.0},
        {"kind": "evaluation", "step": 100, "nll": 4.5, "bleu": 12.0},
    ]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    losses, bleu = p.draw_learning_curve(tmp_path).axes
    assert labels(losses.get_legend().get_texts()) == ["training", "validation"]
    assert [np.column_stack(line.get_data()).tolist() for line in losses.lines] == [
        [[50, 6.0], [100, 4.0]],
        [[100, 4.5]],
    ]
    assert np.column_stack(bleu.lines[0].get_data()).tolist() == [[100, 12.0]]
    for text, message in (
        ("{}\n", "line 1: not a line"),
        ('{"kind": "training"}\n', "line 1: not a line"),
        ("", "no step yet"),
    ):
        metrics.write_text(text)
        with pytest.raises(UserError, match=message):
            p.draw_learning_curve(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        p.draw_learning_curve(tmp_path / "missing")


def test_the_tree_shows_every_candidate_and_its_fate():
    candidates = (
        Candidate(1, 0, None, "Katze", -0.5, -0.5, "live"),
        Candidate(1, 1, None, "Hund", -1.5, -1.5, "pruned"),
        Candidate(2, 0, 0, "</s>", -0.75, -0.25, "finished", -0.7, 0),
    )
    tree = SearchTree(candidates, beam_size=1)
    (axis,) = p.draw_tree(tree).axes
    shown = {text.get_text(): text.get_position() for text in axis.texts}
    assert shown == {"Katze\n-0.50": (1, 0), "Hund\n-1.50": (1, 1), "</s>  [1]\n-0.75": (2, 0), "<s>": (0, 0)}
    ends = [tuple(map(tuple, line.get_xydata().tolist())) for line in axis.lines]
    assert ends == [((0, 0), (1, 0)), ((0, 0), (1, 1)), ((1, 0), (2, 0))]
    assert [line.get_linestyle() for line in axis.lines] == ["-", "--", "-"]
    (axis,) = p.draw_tree(tree, pruned=False).axes
    assert len(axis.texts) == 3


def test_nothing_is_wider_than_nine_inches():
    words = tuple(f"word{index}" for index in range(40))
    wide = p.draw_attention(rows(8, 40, 40), words, words, title="Layer 1, cross-attention")
    assert wide.get_size_inches()[0] <= 9
    assert wide.get_suptitle() == "Layer 1, cross-attention"
    columns = {axis.get_subplotspec().colspan.start for axis in maps(wide)}
    assert columns == {0, 1}
    steps = [Candidate(1, 0, None, "a", -0.1, -0.1, "live"), Candidate(1, 1, None, "b", -9.0, -9.0, "pruned")]
    for step in range(2, 30):
        steps.append(Candidate(step, 1, len(steps) - 1 if step > 2 else 0, "a", -0.1 * step, -0.1, "live"))
    steps.append(Candidate(30, 0, len(steps) - 1, "</s>", -3.0, -0.1, "finished", -1.0, 0))
    tree = SearchTree(tuple(steps), beam_size=1)
    figure = p.draw_tree(tree)
    assert figure.get_size_inches()[0] <= 9
    lines = [line.get_xydata().tolist() for axis in figure.axes for line in axis.lines]
    assert sorted(int(end[0]) for _, end in lines) == [1, 1, *range(2, 31)]  # each edge once
    below = p.draw_tree(tree, pruned=False)
    assert {text.get_position()[1] for axis in below.axes for text in axis.texts} == {0}  # moved up


@pytest.mark.parametrize(("heads", "tokens", "across"), [(4, 9, 4), (4, 16, 3), (8, 24, 2), (1, 40, 1)])
def test_labels_have_at_least_nine_pixels(heads, tokens, across):
    """As many panels stand side by side as leave the labels legible."""
    figure = p.draw_attention(rows(heads, tokens, tokens), ["Haus"] * tokens, ["house"] * tokens)
    assert {axis.get_subplotspec().colspan.start for axis in maps(figure)} == set(range(across))
    names = [tick for axis in maps(figure) for tick in axis.get_xticklabels() + axis.get_yticklabels()]
    assert min(tick.get_fontsize() for tick in names) * figure.dpi / 72 >= 9


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install '\.\[notebooks\]'"):
        p.draw_positions()


def test_pyplot_keeps_no_hold_of_them():
    from matplotlib import pyplot

    p.draw_positions()
    assert pyplot.get_fignums() == []


@pytest.mark.slow
def test_the_package_does_not_import_it():
    program = """
import sys
import transformer, transformer.commands.decode, transformer.commands.train
from transformer.systems.registry import REGISTRY, find_system
for name in REGISTRY:
    find_system(name)
print([name for name in sys.modules if name.startswith(("transformer.explorer", "matplotlib"))])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
