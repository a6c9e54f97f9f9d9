"""Pictures of the corpus, and the page of --explore for systems that see."""

# ruff: noqa: F811 (fixtures of another file)

from pathlib import Path

import numpy as np
import pytest
from test_captions_and_boxes import boxes, captions, pictures  # noqa: F401
from test_inspection import data_of

from transformer import Captioner, Detector, Run, UserError
from transformer.explorer import explore_pictures


@pytest.mark.slow
def test_pictures_of_the_corpus_are_decoded(captions: Run, tmp_path: Path, decode) -> None:
    records = list(captions.task.open_corpus(captions.config).splits["test"])
    (tmp_path / "names.txt").write_text("test:0\nvalidation:1\n test:3\n")
    status, out, _ = decode(captions.path, "--input", tmp_path / "names.txt")
    assert status == 0
    expected = Captioner.load(captions.path).caption([records[0].pixels, records[3].pixels])
    assert out.splitlines()[::2] == expected
    for line, message in {
        "test:10": "line 1: test:10: must be from test:0 to test:9: the corpus of the run has no more",
        "tset:1": "line 1: ",
    }.items():
        (tmp_path / "names.txt").write_text(line)
        status, _, said = decode(captions.path, "--input", tmp_path / "names.txt")
        assert (status, said.count("\n")) == (2, 1)
        assert message in said


def explored(run: Run, folder: Path, decode, *words: object) -> dict:
    page = folder / "page.html"
    status, _, said = decode(run.path, "--explore", page, *words)
    assert (status, said) == (0, "")
    return data_of(page.read_text())


@pytest.mark.slow
def test_the_explorer_has_the_attention_of_each_word(
    captions: Run, pictures: Path, tmp_path: Path, decode
) -> None:
    (tmp_path / "names.txt").write_text(f"test:2\n\n{pictures / '2.png'}\n")
    options = ("--method", "beam", "--beam-size", 3, "--n-best", 2)
    data = explored(captions, tmp_path, decode, "--input", tmp_path / "names.txt", *options)
    corpus, other = data["records"]
    assert (corpus["title"], other["title"]) == ("test-2", "2.png")
    assert (other["width"], other["reference"], data["threshold"]) == (40, "", None)
    assert corpus["reference"]
    (expected,) = Captioner.load(captions.path).search(
        [pictures / "2.png"], n_best=2, alignments=True, method="beam", beam_size=3
    )
    for output, hypothesis in zip(other["outputs"], expected, strict=True):
        assert output["text"] == hypothesis.text
        assert [part["text"] for part in output["parts"]] == [*hypothesis.tokens, "</s>"]
        weights = np.array([part["patches"] for part in output["parts"]]) / data["unit"]
        np.testing.assert_allclose(weights, hypothesis.alignment, atol=1e-4)


@pytest.mark.slow
def test_the_explorer_has_all_boxes(boxes: Run, pictures: Path, tmp_path: Path, decode) -> None:
    (tmp_path / "names.txt").write_text(f"{pictures / '2.png'}\n")
    words = ("--input", tmp_path / "names.txt", "--threshold", 0.9)
    data = explored(boxes, tmp_path, decode, *words)
    assert data["threshold"] == 0.9
    (record,) = data["records"]
    (output,) = record["outputs"]
    objects = Detector.load(boxes.path).detect(pictures / "2.png", threshold=0.0)
    assert [part["text"] for part in output["parts"]] == [item.label for item in objects]
    assert [part["probability"] for part in output["parts"]] == [round(item.score, 4) for item in objects]
    sides = np.array([part["box"] for part in output["parts"]]) * 40
    np.testing.assert_allclose(sides, [item.box for item in objects], atol=0.01)


@pytest.mark.slow
@pytest.mark.by_default("boxes")
@pytest.mark.parametrize("name", ["captions", "boxes"])
def test_the_explorer_refuses_in_one_sentence(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, decode
) -> None:
    run = request.getfixturevalue(name)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for text, message in {
        "": "nothing to explore",
        "a.png": "line 1: ",
        "validation:99": "must be from ",
    }.items():
        (tmp_path / "names.txt").write_text(text)
        status, _, said = decode(
            run.path, "--input", tmp_path / "names.txt", "--explore", tmp_path / "page.html"
        )
        assert (status, said.count("\n")) == (2, 1), said
        assert message in said
        assert not (tmp_path / "page.html").exists()
    with pytest.raises(UserError, match="nothing to explore"):
        explore_pictures(Captioner.load(run.path) if name == "captions" else Detector.load(run.path), [])
