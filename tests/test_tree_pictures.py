"""Trees in the report and in the explorer: where they are drawn, what is marked, and what a run shows."""

import dataclasses
import itertools
import json
import random
import re
from xml.etree import ElementTree

import pytest
from small_run import WORDS, changed, quiet, small_config
from test_inspection import data_of

from transformer import Run, Translator
from transformer.data.trees import Tree, read_tree
from transformer.runs.exhibits import exhibit_as_json, read_exhibits, write_exhibits
from transformer.runs.report.charts import LETTER
from transformer.runs.report.exhibits import drawing, exhibits_of, svg_of
from transformer.runs.report.page import REPORT
from transformer.tasks.exhibit import ReportSample, TreePicture
from transformer.tasks.metrics.bracketing import count_brackets, different, tagging_accuracy
from transformer.trainer.train import train


def drawn_tree(chance, depth=0):
    """A tree with labels and words of any length; some words have no part of speech."""
    name = "".join(chance.choices("abcXYZ木", k=chance.choice((1, 2, 3, 9))))
    if depth == 5 or chance.random() < 0.3:
        return Tree(name, ("w" * chance.randint(1, 12),))
    parts = [drawn_tree(chance, depth + 1) for _ in range(chance.randint(1, 4))]
    return Tree(name, (*parts, "bare") if chance.random() < 0.2 else tuple(parts))


def in_order(tree):
    """Its labels and words from left to right, each label before its parts, with the label around it."""
    yield tree.label
    for child in tree.children:
        yield from [child] if isinstance(child, str) else in_order(child)


@pytest.mark.parametrize("seed", range(20))
def test_all_of_a_tree_is_inside_and_nothing_overlaps(seed):
    tree = drawn_tree(random.Random(seed))
    width, height, nodes = picture = drawing(tree)
    assert [node.text for node in nodes] == list(in_order(tree))
    words = [node for node in nodes if node.bracket < 0]
    assert [node.text for node in words] == list(tree.words())
    assert [node.bracket for node in nodes if node.bracket >= 0] == list(range(len(nodes) - len(words)))
    for y in {node.y for node in nodes}:
        row = [node for node in nodes if node.y == y]
        sizes = [LETTER * sum(2 if letter == "木" else 1 for letter in node.text) / 2 for node in row]
        spans = [(node.x - size, node.x + size) for node, size in zip(row, sizes, strict=True)]
        assert spans == sorted(spans)
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
        assert spans[0][0] >= 0
        assert spans[-1][1] <= width
        assert 13 <= y <= height
    for index, node in enumerate(nodes):
        assert node.parent < index
        if node.parent >= 0:
            assert nodes[node.parent].y < node.y
    ends = [index for index, *_ in picture.lines()]
    assert ends == sorted(set(ends))
    assert len(ends) >= sum(node.bracket > 0 for node in nodes)


def test_a_drawing_is_xml_and_marks_brackets():
    tree = read_tree("(S (NP (DT <b>&) (NN dog)) (VP (VBZ barks)))")
    root = ElementTree.fromstring(svg_of('"A" & <b>', tree, {1, 3}))
    assert root.get("aria-label") == '"A" & <b>'
    texts = {each.text: each.get("class") for each in root.iter("text")}
    assert texts == {"S": "", "NP": "marked", "DT": "", "<b>&": "word", "NN": "marked", "dog": "word"} | {
        "VP": "",
        "VBZ": "",
        "barks": "word",
    }
    assert [each.get("class") for each in root.iter("line")].count("grid marked") == 2
    assert "…" in svg_of("", read_tree(f"(S {'x' * 99})"))


PAIRS = (
    ("(S (A (P a)) (B (Q b) (A (R c) (T d))))", "(S (A (P a)) (B (Q b) (C (R c) (T d))))", {5}),
    ("(S (A (P a)) (B (Q b)))", "(S (A (P a)) (B (U b)))", {4}),
    ("(S (A (A (A (P a)))) (B (Q b)))", "(S (A (P a)) (B (Q b)))", {2, 3}),
    ("(TOP (S (A-SBJ (P a)) (. .)))", "(S (A (P a)) (, .))", set()),
    ("(S (A (P a)) (B (Q b)))", "(S (A (P a)) (B (Q c)))", {0, 1, 2, 3, 4}),
)


@pytest.mark.parametrize(("text", "other", "expected"), PAIRS)
def test_brackets_that_another_tree_lacks(text, other, expected):
    tree = read_tree(text)
    assert different(tree, read_tree(other))[0] == frozenset(expected)
    assert different(read_tree(other), tree)[1] == frozenset(expected)
    assert different(tree, tree) == (frozenset(), frozenset())


@pytest.mark.parametrize("seed", range(10))
def test_as_many_brackets_are_marked_as_the_scores_count(seed):
    chance = random.Random(seed)

    def tree():
        words = iter("abcdef")
        parts = [Tree(chance.choice("PQ"), (word,)) for word in words]
        while len(parts) > 1:
            first = chance.randrange(len(parts) - 1)
            parts[first : first + 2] = [Tree(chance.choice("AB"), tuple(parts[first : first + 2]))]
        return parts[0]

    one, other = tree(), tree()
    counts = count_brackets([str(one)], [str(other)])
    wrong_tags = round(6 - 6 * tagging_accuracy([str(one)], [str(other)]).value / 100)
    assert len(different(one, other)[0]) == counts.output - counts.right + wrong_tags


def test_trees_are_stored_and_shown(tmp_path):
    tree = read_tree("(S (A <script>))")
    pictures = (TreePicture("<i>one", tree, frozenset({1})), TreePicture("two", tree))
    stored = exhibit_as_json(ReportSample("title", {}, trees=pictures))
    write_exhibits(tmp_path, 1, [json.loads(json.dumps(stored))])
    page = exhibits_of(tmp_path)
    assert page.count('<svg class="tree"') == 2
    assert "<script" not in page
    assert page.count("<i>") == 0
    assert page.count('class="marked"') == 1
    for spoilt in ({"tree": "(S"}, {"tree": "(" * 500 + "a" + ")" * 500}, {"marked": ["1"]}, {"caption": 1}):
        write_exhibits(tmp_path, 1, [{**stored, "trees": [{**stored["trees"][0], **spoilt}]}])
        assert read_exhibits(tmp_path) == (0, [])
    del stored["trees"]
    write_exhibits(tmp_path, 1, [stored])
    assert read_exhibits(tmp_path)[0] == 1  # as earlier versions wrote it


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    chance = random.Random(0)
    files = {}
    for split, count in (("train", 60), ("validation", 8)):
        path = files[split] = folder / f"{split}.mrg"
        pairs = (chance.sample(WORDS, 2) for _ in range(count))
        path.write_text("".join(f"(S (NP (NN {one})) (VP (VB {other})))\n" for one, other in pairs))
    config = small_config(folder)
    sides = {f"{split}_{side}": None for split in (*files, "test") for side in ("source", "target")}
    data = dataclasses.replace(config.data, task="trees", **files, **sides, max_length=16, buckets=(16,))
    decoding = dataclasses.replace(config.decoding, extra_length=12)
    config = changed(dataclasses.replace(config, data=data, decoding=decoding), steps=4, samples=2)
    return Run(train(config, folder / "run", watch=quiet()))


@pytest.mark.slow
def test_the_report_has_both_trees(run):
    _, exhibits = read_exhibits(run.path)
    assert len(exhibits) == 2
    for each in exhibits:
        reference, output = (read_tree(picture["tree"]) for picture in each["trees"])
        assert list(reference.words()) == list(output.words()) == each["title"].split()
        assert each["texts"]["brackets right"].endswith("; the reference has 3")
        marks = [set(picture["marked"]) for picture in each["trees"]]
        assert marks == [*reversed(different(output, reference))]
    page = (run.path / REPORT).read_text()
    for svg in (found := re.findall(r'<svg class="tree".*?</svg>', page)):
        ElementTree.fromstring(svg)
    assert len(found) == 4


@pytest.mark.slow
def test_outputs_have_words_that_the_vocabulary_lacks(run):
    """They are those of the source, so that such a tree is compared with its reference."""
    (output,) = Translator.load(run.path).search(["red ( quokka"])[0][:1]
    assert "<unk>" in output.tokens
    assert list(read_tree(output.text).words()) == ["red", "-LRB-", "quokka"]


@pytest.mark.thorough
def test_an_output_that_is_no_tree_is_written(run):
    record = ("red cat", "(S (NN red ) (NN cat ) )")
    sample = run.task.exhibit(record, run.task.empty_output(), None)
    assert sample.texts["output"] == "no tree: "
    assert sample.trees == ()


@pytest.mark.slow
def test_the_explorer_draws_the_tree(run, tmp_path, decode):
    page = tmp_path / "page.html"
    assert decode(run.path, "--explore", page, stdin=b"red cat sings\n")[0] == 0
    (sentence,) = data_of(page.read_text())["sentences"]
    for hypothesis in sentence["hypotheses"]:
        tree, parse = read_tree(hypothesis["text"]), hypothesis["parse"]
        assert [node["text"] for node in parse["nodes"]] == list(in_order(tree))
        assert [node["text"] for node in parse["nodes"] if node["isWord"]] == ["red", "cat", "sings"]
