"""What a report says of recognised texts: speakers, confusions, texts beside their references; and texts as
error rates compare them."""

import dataclasses
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from invented_sound import write_digits
from small_run import quiet
from test_exhibits import Elements
from toy_runs import speech_config

from transformer import PRESETS, Run, UserError, train
from transformer.commands.decode import decode_main
from transformer.config.records import RecordingsConfig
from transformer.data.sources.recordings import Recording, open_recordings
from transformer.runs.exhibits import OVERVIEW, exhibit_as_json, read_exhibits, write_exhibits
from transformer.runs.report.exhibits import overview_of
from transformer.systems.speech.error_rates import WORST, by_speaker, confusions, worst
from transformer.systems.speech.task import SpeechToText
from transformer.tasks.exhibit import Comparison, ReportSample
from transformer.tasks.metrics.error_rates import aligned, normalised
from transformer.tasks.task import Evaluation

pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")

SAID = ["one two three", "four", "five six", "", "nine nine"]
HEARD = ["one too three", "four", "five", "oh", "nine no nine"]
SPEAKERS = ["a", "a", "b", "b", ""]


def distance(a, b):
    """The edit distance of two sequences."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def test_an_example_that_was_counted_by_hand():
    """One of four words of a is wrong, half of them of whom nobody knows, and as many of b as were said."""
    table = by_speaker(HEARD, SAID, SPEAKERS, "word")
    assert table.rows == (
        ("b", "2", "2", "100.00", f"{100 * 6 / 8:.2f}", "100.00"),  # " six" and oh
        ("unknown", "1", "2", "50.00", f"{100 * 3 / 9:.2f}", "100.00"),  # " no"
        ("a", "2", "4", "25.00", f"{100 * 1 / 17:.2f}", "50.00"),
    )
    (found,) = confusions(HEARD, SAID, "word")
    assert found.rows == (("two", "too", "1"),)
    assert "1 in all, and 1 deleted, 2 inserted" in found.caption
    assert confusions(SAID, SAID, "word") == []
    first, second, third, last = worst(HEARD, SAID, ["0", "1", "2", "3", "4"], "word")
    assert [each.caption[0] for each in (first, second, third, last)] == ["3", "2", "4", "0"]
    assert first == Comparison("3: 1 error, 0 words said", (("", "oh"),))
    assert second.pairs == (("five", "five"), ("six", ""))
    assert third.pairs == (("nine", "nine"), ("", "no"), ("nine", "nine"))
    assert last.pairs == (("one", "one"), ("two", "too"), ("three", "three"))


@pytest.mark.parametrize("unit", ["word", "character"])
def test_alignments_have_the_texts_and_as_many_errors_as_their_distance(unit):
    chance = random.Random(0)
    texts = [[" ".join(chance.choices("abc", k=chance.randint(0, 9))) for _ in range(60)] for _ in range(2)]
    parts = str.split if unit == "word" else list
    seen = Counter()
    for heard, said, pairs in zip(*texts, aligned(*texts, unit), strict=True):
        assert [side for side, _ in pairs if side] == parts(said)
        assert [side for _, side in pairs if side] == parts(heard)
        assert sum(a != b for a, b in pairs) == distance(parts(said), parts(heard))
        seen.update((a, b) for a, b in pairs if a and b and a != b)
    (found,) = confusions(*texts, unit)
    expected = sorted(seen.items(), key=lambda item: (-item[1], item[0]))[: len(found.rows)]
    assert [(a, b, int(count)) for a, b, count in found.rows] == [(*pair, count) for pair, count in expected]
    assert len(worst(*texts, ["x"] * 60, unit)) == WORST


@pytest.mark.parametrize(
    ("text", "basic"),
    [
        ("Don't stop -- it’s \"fine\", 'he' said: 3.5%!", "don't stop it's fine he said 3 5"),
        ("Straße № ５, Ｑ", "straße no 5 q"),
        ("नमस्ते, दुनिया।", "नमस्ते दुनिया"),
        ("  ", ""),
    ],
)
def test_texts_without_case_and_punctuation(text, basic):
    assert normalised(text, "basic") == basic == normalised(basic, "basic")
    assert normalised(text, "none") == text


def test_english_is_normalised_as_whisper_does_it():
    pytest.importorskip("whisper_normalizer", reason="pip install '.[speech]'")
    text = "Mr. Smith's 1,000 colours cost twenty-one dollars, um, won't they? [noise]"
    assert normalised(text, "english") == "mister smith is 1000 colors cost $21 will not they"


def task_of(**options):
    config = PRESETS["speech"]
    training = dataclasses.replace(config.training, **options)
    return SpeechToText(dataclasses.replace(config, training=training), None)


def test_error_rates_compare_normalised_texts():
    records = [Recording("a", np.zeros((2, 80), np.float32), "Yes, one!", speaker="x")]
    evaluation = Evaluation(records, ["yes two"], {})
    plain, basic = task_of(), task_of(text_normalisation="basic")
    values = {
        name: [score_of(evaluation).value for score_of in task.measures().values()]
        for name, task in (("plain", plain), ("basic", basic))
    }
    assert values["plain"] == [100, pytest.approx(100 * 6 / 9), 100]
    assert values["basic"] == [50, pytest.approx(100 * 3 / 7), 100]
    score = next(iter(basic.measures().values()))(evaluation)
    assert score.signature.endswith("|words:2|normalised:basic")
    assert score.detail.endswith(", texts normalised (basic)")
    assert "normalised" not in next(iter(plain.measures().values()))(evaluation).signature
    speakers, found = basic.overview(evaluation)
    assert speakers.rows[0][:4] == ("x", "1", "2", "50.00")
    assert found.rows == (("one", "two", "1"),)
    assert basic.comparisons(evaluation)[0].pairs == (("yes", "yes"), ("one", "two"))
    letters = task_of(error_rate="characters").comparisons(evaluation)[0]
    assert letters.pairs[0] == ("Y", "y")


def test_comparisons_are_stored_and_shown(tmp_path):
    hostile = "</span><script>"
    comparison = Comparison(hostile, ((hostile, hostile), ("b", "c"), ("d", ""), ("", "e")))
    stored = exhibit_as_json(ReportSample("title", {}, comparisons=(comparison,)))
    write_exhibits(tmp_path, 1, [stored], OVERVIEW)
    seen = Elements(overview_of(tmp_path))
    assert "script" not in dict(seen.seen)
    assert seen.text.count(hostile) == 3
    kinds = [attributes["class"] for _, attributes in seen.seen if "pair " in attributes.get("class", "")]
    assert kinds == ["pair same", "pair substituted", "pair deleted", "pair inserted"]
    stored = json.loads(json.dumps(stored))
    for spoilt in ({"pairs": [[1, "a"]]}, {"pairs": [["a"]]}, {"pairs": None}, {"caption": 1}):
        comparisons = [{**stored["comparisons"][0], **spoilt}]
        write_exhibits(tmp_path, 1, [{**stored, "comparisons": comparisons}], OVERVIEW)
        assert read_exhibits(tmp_path, OVERVIEW) == (0, [])


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    texts = enumerate(write_digits(folder, 12))
    lines = [f"{index}.wav\t{text.title()}\t{'anna' if index % 3 else ''}\n" for index, text in texts]
    (folder / "list.tsv").write_text("".join(lines))
    return folder / "list.tsv"


def test_speakers_of_a_manifest(manifest, tmp_path):
    data = RecordingsConfig(train=manifest, bands=8, cache_dir=tmp_path)
    corpus = open_recordings(data)
    speakers = {each.name: each.speaker for split in corpus.splits.values() for each in split}
    assert speakers == {f"{index}.wav": "anna" if index % 3 else "" for index in range(12)}
    without = manifest.with_name("without.tsv")
    lines = (line.rpartition("\t")[0] for line in manifest.read_text().splitlines())
    without.write_text("\n".join(lines))
    other = open_recordings(dataclasses.replace(data, train=without))
    assert other.folder != corpus.folder
    assert {each.speaker for each in other.splits["train"]} == {""}
    without.write_text(manifest.read_text().replace("anna", "anna\tx"))
    with pytest.raises(
        UserError, match="line 2: must be a file name, a tab .* perhaps a tab and the speaker"
    ):
        open_recordings(dataclasses.replace(data, train=without))


@pytest.mark.slow
def test_the_report_of_a_run_and_decode_name_speakers(manifest, tmp_path, monkeypatch, decode, refused):
    """Seven seconds: nothing else trains on recordings with speakers."""
    config = speech_config(tmp_path, "one")
    data = dataclasses.replace(config.data, train=manifest, validation=manifest)
    training = dataclasses.replace(config.training, text_normalisation="basic")
    run = Run(
        train(dataclasses.replace(config, data=data, training=training), tmp_path / "run", watch=quiet())
    )
    _, (exhibit,) = read_exhibits(run.path, OVERVIEW)
    speakers, *_ = exhibit["tables"]
    assert {row[0]: row[1] for row in speakers["rows"]} == {"anna": "8", "unknown": "4"}
    assert exhibit["comparisons"]
    assert '<p class="pairs">' in (run.path / "report.html").read_text()

    status, out, err = decode(run.path, "--input", manifest, "--max-length", 4, "--format", "json")
    assert status == 0
    assert json.loads(out.splitlines()[1])["speaker"] == "anna"
    assert "anna: word error rate = " in err
    assert "unknown speaker: word error rate = " in err
    assert err.count("texts normalised (basic)") == 5
    status, out, err = decode(
        run.path, "--input", manifest, "--max-length", 4, "--text-normalisation", "none"
    )
    assert (status, err.count("error rate = "), err.count("normalised")) == (0, 5, 0)
    status, out, err = decode(
        run.path, "--input", manifest.with_name("1.wav"), "--text-normalisation", "none"
    )
    assert status == 2
    assert "--text-normalisation: there are no texts to compare with" in err
    monkeypatch.setitem(__import__("sys").modules, "whisper_normalizer", None)
    err = refused(decode_main, run.path, "--input", manifest, "--text-normalisation", "english")
    assert "error rates needs whisper_normalizer: pip install '.[speech]'" in err
