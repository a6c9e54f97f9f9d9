"""The confidence of words: its labels, measures and fit against other ways to compute them, and how it
travels from `transformer calibrate` to JSON, a server and the explorer."""

import dataclasses
import errno
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from served import asked, translations
from small_translator import small_translator, stored

from transformer import Translator, UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.calibrate import calibrate_main
from transformer.commands.decode_lines import decode_lines
from transformer.documents import suspicion
from transformer.explorer import explore
from transformer.tasks.text import Hypothesis
from transformer.translator import confidence
from transformer.translator.calibration import (
    area_under_curve,
    calibrated,
    calibration_error,
    labels_of,
    right_words,
    scored_outputs,
)
from transformer.translator.confidence import FEATURES, FILE, RIDGE, Confidence, word_features, words_of

SOURCES = ["red green blue", "cat", "dog bird runs", "blue cat sings", "green dog"]
CONFIDENCE = Confidence((0.5, -1, 1, -1, 0.5, 0.5), (1,) * 6, (1, 0.5, -0.5, 0.1, 0.2, 0.3), 0.25)


@pytest.fixture(scope="module")
def translator() -> Translator:
    translator = small_translator()
    translator.confidence = CONFIDENCE
    return translator


def hypothesis(text: str, tokens: str, p: list[float], entropies: list[float]) -> Hypothesis:
    log_p = tuple(map(math.log, p))
    return Hypothesis(
        text, tuple(tokens.split()), 0, sum(log_p), token_log_probabilities=log_p, entropies=tuple(entropies)
    )


# Labels and measures


def most_matches(output: str, reference: str) -> tuple[int, int]:
    """The fewest edits, and the most equal letters of an alignment with as few, by trying all alignments."""
    if not output or not reference:
        return len(output) + len(reference), 0
    is_equal = output[0] == reference[0]
    aligned = most_matches(output[1:], reference[1:])
    ways = [(aligned[0] + (not is_equal), aligned[1] + is_equal)]
    for edits, matches in (most_matches(output[1:], reference), most_matches(output, reference[1:])):
        ways.append((edits + 1, matches))
    return min(ways, key=lambda way: (way[0], -way[1]))


def test_right_words_are_those_of_an_alignment_with_the_fewest_edits() -> None:
    assert right_words(["a", "man", "runs", "fast"], ["the", "man", "runs"]).tolist() == [0, 1, 1, 0]
    assert right_words([], ["a"]).tolist() == []
    assert right_words(["a"], []).tolist() == [False]
    random = np.random.default_rng(0)
    for _ in range(60):
        output, reference = ("".join(random.choice(list("abc"), random.integers(0, 6))) for _ in range(2))
        right = right_words(output, reference)
        assert right.sum() == most_matches(output, reference)[1]
        kept = iter(reference)  # the right words are, in order, words of the reference
        assert all(letter in kept for letter in itertools.compress(output, right))


def test_the_area_under_the_curve_is_the_share_of_ordered_pairs() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        positive, scores = random.random(12) < 0.4, random.integers(0, 4, 12) / 4
        pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
        assert area_under_curve(positive, scores) == pytest.approx(np.mean(pairs))
    assert math.isnan(area_under_curve(np.ones(3, bool), np.arange(3.0)))


def test_the_calibration_error_of_an_example() -> None:
    """Two of three right at 0.9, and none of one at 0.25, in ten intervals; 1.0 is in the last one."""
    right = np.array([True, True, False, False])
    expected = (3 * abs(0.9 - 2 / 3) + 1 * 0.25) / 4
    assert calibration_error(right, np.array([0.9, 0.9, 0.9, 0.25])) == pytest.approx(expected)
    assert calibration_error(np.array([True]), np.array([1.0])) == 0


# Features and fit


def test_features_of_words() -> None:
    """Two tokens make a word, punctuation is another, and the neighbours of the ends are certain."""
    found = word_features(
        hypothesis("Ein Hund.", "▁Ein ▁Hu nd .", [0.5, 0.8, 0.5, 0.9, 1.0], [1, 0.2, 0.7, 0, 0])
    )
    p = [0.5, 0.4, 0.9]
    sentence = np.mean(np.log([0.5, 0.8, 0.5, 0.9, 1.0]))
    rows = zip(p, np.log(p), [1, 0.7, 0], [sentence] * 3, [1, 0.5, 0.4], [0.4, 0.9, 1], strict=True)
    np.testing.assert_allclose(found, list(rows))
    assert words_of("Ein Hund.") == ["Ein", "Hund", "."]
    assert word_features(hypothesis("", "", [0.5], [1.0])).shape == (0, len(FEATURES))


def test_words_whose_tokens_are_written_otherwise_get_the_mean() -> None:
    found = word_features(hypothesis("😀 da", "▁ <0xF0> <0x9F> ▁da", [0.5, 0.5, 0.5, 0.5, 0.5], [1] * 5))
    assert found.shape == (2, len(FEATURES))
    assert np.isfinite(found).all()


def test_the_fit_is_the_one_of_other_minimisers() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(2)
    features = random.normal(size=(300, 6)) * [1, 2, 3, 4, 5, 0] + 1
    right = random.random(300) < 1 / (1 + np.exp(-features[:, 0] + features[:, 1] / 3))
    fitted = Confidence.fitted(features, right)
    x = (features - features.mean(axis=0)) / np.where(features.std(axis=0) > 0, features.std(axis=0), 1)

    def loss(w: np.ndarray) -> float:
        logits = x @ w[:-1] + w[-1]
        return np.logaddexp(0, np.where(right, -logits, logits)).sum() + RIDGE * (w[:-1] ** 2).sum() / 2

    found = optimize.minimize(loss, np.zeros(7), tol=1e-10).x
    np.testing.assert_allclose([*fitted.weights, fitted.bias], found, atol=1e-4)
    expected = 1 / (1 + np.exp(-(x @ found[:-1] + found[-1])))
    np.testing.assert_allclose(fitted.probabilities(features), expected, atol=1e-4)
    assert fitted.probabilities(features).mean() == pytest.approx(right.mean())  # the gradient of the bias


def test_separable_words_have_a_fit() -> None:
    features = np.repeat(np.arange(10.0)[:, None], 6, axis=1)
    found = Confidence.fitted(features, features[:, 0] > 4.5).probabilities(features)
    assert (np.diff(found) > 0).all()
    for right, every in (np.ones(10, bool), "all"), (np.zeros(10, bool), "none"):
        with pytest.raises(UserError, match=f"{every} of 10 words are right"):
            Confidence.fitted(features, right)


@pytest.mark.slow
def test_what_is_learned_from_outputs() -> None:
    translator = small_translator()
    records = [(source, "") for source in SOURCES]
    outputs = scored_outputs(translator, records)
    references = [output.text if index % 3 else "red red" for index, output in enumerate(outputs)]
    found = calibrated(outputs, references)
    labels = np.concatenate(labels_of(outputs, references))
    assert found.words == len(labels)
    assert found.wrong == pytest.approx(1 - labels.mean())
    assert found.before.area == pytest.approx(
        area_under_curve(~labels, -np.concatenate([word_features(x) for x in outputs])[:, 0])
    )
    with pytest.raises(UserError, match="at least two sentences"):
        calibrated(outputs[:1], references[:1])


# The file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "line 1 column 1"),
        (lambda text: "[]", "not a JSON object"),
        (lambda text: text.replace("0.25", "NaN"), "NaN as a number"),
        (lambda text: text.replace("0.25", '"high"'), "must be a number"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "not of version 1"),
        (lambda text: text.replace("entropy", "surprise"), "its features must be probability, log_prob"),
        (lambda text: text.replace('"scale": 1', '"scale": 0'), "a scale must be positive"),
        (lambda text: text.replace('"scale": 1', '"scale": [1]'), "must be a number"),
        (lambda text: re.sub(r'"scale": [^\n]+', '"scale": 1e-320,', text, count=1), "must be positive"),
        (
            lambda text: re.sub(r'"mean": [^\n]+', '"mean": -1e308,', text, count=1),
            "mean must be a number up",
        ),
        (lambda text: re.sub(r'"bias": [^\n]+', '"bias": true,', text), "bias must be a number"),
        (lambda text: text.replace('"scale"', '"size"'), "must have mean, scale and weight"),
        (lambda text: '{"short": 1.7}', "not of version 1"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change, message: str) -> None:
    CONFIDENCE.write(tmp_path)
    assert Confidence.read(tmp_path) == CONFIDENCE
    (tmp_path / FILE).write_text(change((tmp_path / FILE).read_text()))
    with pytest.raises(
        UserError, match=rf"{FILE} is damaged: .*{message}.*; delete it, and make it again"
    ) as error:
        Confidence.read(tmp_path)
    assert "\n" not in str(error.value)


def test_no_file_no_confidence(tmp_path: Path) -> None:
    assert Confidence.read(tmp_path) is None
    (tmp_path / FILE).mkdir()
    with pytest.raises(UserError, match="is damaged"):
        Confidence.read(tmp_path)


# The outputs


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "recurrent", "copying", "nonautoregressive"])
def test_every_hypothesis_has_them(system: str) -> None:
    translator = small_translator(system)
    translator.confidence = CONFIDENCE
    found = translator.search(SOURCES[:2], word_confidences=True)
    scored = translator.search(SOURCES[:2], token_scores=True)
    for several, others in zip(found, scored, strict=True):
        for one, other in zip(several, others, strict=True):
            assert one.token_log_probabilities is None
            assert one.word_confidences is not None
            words = [word.word for word in one.word_confidences]
            assert words == words_of(one.text)
            assert all(one.text[word.start :].startswith(word.word) for word in one.word_confidences)
            expected = CONFIDENCE.probabilities(word_features(other))
            confidences = [word.confidence for word in one.word_confidences]
            np.testing.assert_allclose(confidences, expected, atol=1e-5)


def test_futures_and_plain_values(translator: Translator) -> None:
    (expected,) = translator.search(SOURCES[:1], word_confidences=True, token_scores=True)
    found = translator.submit(SOURCES[0], word_confidences=True, token_scores=True).result()
    assert [x.ids for x in found] == [x.ids for x in expected]
    assert found[0].token_log_probabilities is not None
    values = json.loads(json.dumps(found[0].to_json()))
    assert values["word_confidences"][0].keys() == {"word", "start", "confidence"}
    assert translator.search([""], word_confidences=True)[0][0].word_confidences is None


def test_a_model_without_them_says_so(translator: Translator) -> None:
    other = small_translator()
    with pytest.raises(UserError, match="writes confidence.json into runs from text to text"):
        other.search(["cat"], word_confidences=True)
    with pytest.raises(UserError, match="an ensemble has none"):
        Translator.together([translator, translator]).search(["cat"], word_confidences=True)


# The commands


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(small_translator(), tmp_path_factory.mktemp("confidence") / "run")


@pytest.mark.thorough
def test_from_calibration_to_json(run, tmp_path, call, capfd) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run"))
    translator = Translator.load(run)
    texts, references = tmp_path / "texts", tmp_path / "references"
    texts.write_text("".join(f"{source}\n" for source in [*SOURCES, ""]))
    outputs = translator.translate(SOURCES)
    wrong = [text if index % 3 else "red" for index, text in enumerate(outputs)]
    references.write_text("".join(f"{text}\n" for text in [*wrong, ""]))
    status, out, err = call(calibrate_main, run, "--input", texts, "--reference", references)
    assert status == 0
    assert "area under the ROC curve" in out
    assert out.splitlines()[-1].endswith("--format json --word-confidences")
    assert "sentences: 5" in err
    lines = tmp_path / "lines"
    lines.write_text("red green\n\ncat\n")
    for more in ([], ["--int8"], ["--token-scores", "--alignments"]):
        asked = [str(run), "--input", str(lines), "--format", "json", "--n-best", "2", "--word-confidences"]
        decode_lines(parse_decode([*asked, *more]))
        for line in map(json.loads, capfd.readouterr().out.splitlines()):
            for hypothesis in line["hypotheses"] if line["source"] else ():
                words = hypothesis["word_confidences"]
                assert [word["word"] for word in words] == words_of(hypothesis["text"])
                assert all(0 <= word["confidence"] <= 1 for word in words)
                assert ("entropies" in hypothesis) == ("--token-scores" in more)
    with pytest.raises(UserError, match="--word-confidences needs --format json"):
        decode_lines(parse_decode([str(run), "--input", str(lines), "--word-confidences"]))


def test_commands_refuse_in_a_sentence(run, tmp_path, refused) -> None:
    lines = tmp_path / "lines"
    lines.write_text("red\ncat\n")
    asked = [str(run), "--input", str(lines), "--format", "json", "--word-confidences"]
    with pytest.raises(UserError, match="transformer calibrate writes"):
        decode_lines(parse_decode(asked))
    assert "--reference has the translations of --input" in refused(calibrate_main, run, "--reference", lines)
    same = tmp_path / "same"
    same.write_text("".join(f"{text}\n" for text in Translator.load(run).translate(["red", "cat"])))
    said = refused(calibrate_main, run, "--input", lines, "--reference", same)
    assert "words are right, so confidence cannot be learned" in said
    assert not list(run.glob("*.json"))[1:]  # nothing but its config
    lines.write_text("\n \n")
    assert "there is no sentence to learn from" in refused(calibrate_main, run, "--input", lines)


@pytest.mark.parametrize("name", ["limits.json", "confidence.json"])
def test_a_file_that_cannot_be_written_is_named(name, run, tmp_path, monkeypatch, refused) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run"))
    for file, text in ("in", "red\ncat\n"), ("right", "red\nnever\n"):
        (tmp_path / file).write_text(text)

    def full(path: Path, content: str) -> None:
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text(content)

    for module in suspicion, confidence:
        monkeypatch.setattr(module, "write_whole", full)
    monkeypatch.setattr(Confidence, "fitted", classmethod(lambda *_: CONFIDENCE))
    asked = [run, "--input", tmp_path / "in", "--reference", tmp_path / "right"]
    assert f"cannot write {run}/{name}: No space left on device" in refused(calibrate_main, *asked)


def test_calibrate_refuses_what_it_cannot_learn_from(run, tmp_path, refused) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run"))
    (tmp_path / "in").write_text("red\ncat\n")
    (tmp_path / "empty").write_text("\n\n")
    asked = [run, "--input", tmp_path / "in"]
    assert "empty: no sentence of" in refused(calibrate_main, *asked, "--reference", tmp_path / "empty")
    said = refused(calibrate_main, *asked, "--target-language", "de")
    assert "--target-language: the texts of this model begin with no code" in said
    assert not list(run.glob("*.json"))[1:]  # nothing but its config
    (run / FILE).mkdir()
    said = refused(calibrate_main, *asked)
    assert f"{FILE} is damaged: Is a directory; delete it, and make it again" in said


def test_a_run_that_does_not_translate_learns_confidence_alone(tmp_path, refused) -> None:
    plain = small_translator()
    data = dataclasses.replace(plain.config.data, task="summaries")
    config = dataclasses.replace(plain.config, data=data)
    run = stored(Translator(config, plain.variables, plain.tokenizers), tmp_path / "run")
    (tmp_path / "in").write_text("red\ncat\n")
    asked = [run, "--input", tmp_path / "in"]
    said = refused(calibrate_main, *asked)
    assert "does not translate, so only the confidence of its words can be learned" in said
    asked += ["--reference", tmp_path / "in"]
    assert "--false-alarms: " in refused(calibrate_main, *asked, "--false-alarms", 0.1)


# The pages


def test_a_server_answers_with_them() -> None:
    service = translations()
    assert "word_confidences" not in service.about()["extras"]
    with asked(service) as client:
        answer = client.post("/translate", json={"text": "cat", "word_confidences": True})
        assert answer.status_code == 422
        assert "transformer calibrate" in answer.json()["error"]
        service.decoder.confidence = CONFIDENCE
        assert "word_confidences" in service.about()["extras"]
        answer = client.post("/translate", json={"text": "cat", "word_confidences": True})
        (expected,) = service.decoder.search(["cat"], n_best=1, word_confidences=True)
        assert answer.json()["outputs"][0]["hypotheses"] == [expected[0].to_json()]


@pytest.mark.thorough
def test_the_explorer_has_them(translator: Translator) -> None:
    (expected,) = translator.search(["red green"], word_confidences=True)
    page = explore(translator, ["red green"]).html
    data = json.loads(re.search(r'<script[^>]* id="data">(.*?)</script>', page, re.DOTALL)[1])
    found = data["sentences"][0]["hypotheses"][0]["confidences"]
    assert found == expected[0].to_json()["word_confidences"]
    assert '"confidences":null' in explore(small_translator(), ["red green"]).html
