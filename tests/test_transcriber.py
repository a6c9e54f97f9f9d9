"""A recogniser of speech that was trained: its report, `Transcriber`, and the commands on recordings."""

import dataclasses
import io
import json
import os
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from invented_sound import write_digits
from run_command import command
from small_run import drawn_run, quiet
from toy_runs import speech_config

from transformer import PRESETS, Config, Run, Transcriber, UserError, train
from transformer.cli.output_file import RUN_FILES
from transformer.commands.decode import decode_main
from transformer.data.signals import audio
from transformer.data.signals.waveforms import read_audio
from transformer.data.sources.recordings import digits
from transformer.runs.exhibits import read_exhibits
from transformer.systems.speech.task import SpeechToText
from transformer.tasks.media.timing import spans

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")


def scaled_config(folder: Path) -> Config:
    config = speech_config(folder, "one", samples=2)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, normalisation="corpus"))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run of random parameters."""
    folder = tmp_path_factory.mktemp("speech")
    return drawn_run(scaled_config(folder), folder / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    return Run(train(scaled_config(folder), folder / "run", watch=quiet()))


@pytest.fixture(scope="module")
def spoken_files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    lines = [f"{index}.wav\t{text}\n" for index, text in enumerate(write_digits(folder, 5))]
    (folder / "list.tsv").write_text("".join(lines))
    return folder


@pytest.mark.thorough
def test_a_run_keeps_the_scale_and_scores_words(trained):
    run = trained
    scores = run.log.records("evaluation")
    assert all(record["measure"]["name"] == "word_error_rate" for record in scores)
    assert run.task.scale.mean.shape == (8,)
    assert json.loads((run.path / "scale.json").read_text())["mean"] == run.task.scale.mean.tolist()
    assert {path.name for path in run.path.iterdir() if path.is_file()} <= RUN_FILES


@pytest.mark.thorough
def test_the_report_plays_the_first_recordings_of_the_validation(trained):
    run = trained
    _, exhibits = read_exhibits(run.path)
    records = list(run.task.open_corpus(run.config).splits["validation"])[:2]
    assert [each["title"] for each in exhibits] == [record.name for record in records]
    assert [each["texts"]["said"] for each in exhibits] == [record.text for record in records]
    samples = [record["samples"] for record in run.log.records("evaluation") if record["best"]]
    heard = {name: text for name, _, text in samples[-1]}
    assert all(
        heard.get(each["title"], each["texts"]["heard"]) == each["texts"]["heard"] for each in exhibits
    )
    for record, each in zip(records, exhibits, strict=True):
        _, attention = each["pictures"]
        assert len(attention["y"]["labels"]) == len(run.task.tokenizer.encode(record.text)) + 1
        assert attention["x"]["extent"] == pytest.approx(-(-len(record.features) // 4) * 0.04)
    page = (run.path / "report.html").read_text()
    assert page.count("<audio ") == 2
    assert page.count("<image ") == 4
    assert "recording, resynthesised from its features (Griffin-Lim)" in page


def test_the_scale_of_a_damaged_run_is_refused(run, tmp_path):
    config = run.config
    (tmp_path / "text.model").write_bytes((run.path / "text.model").read_bytes())
    eight = [1.0] * 8
    damaged = [
        {"mean": [1e300, *eight[1:]], "deviation": eight},
        {"mean": [-89.0, *eight[1:]], "deviation": eight},
        {"mean": eight, "deviation": [1e300, *eight[1:]]},
        {"mean": eight, "deviation": [1e-30, *eight[1:]]},
        {"mean": eight, "deviation": [-1.0, *eight[1:]]},
        {"mean": eight[1:], "deviation": eight},
        {"mean": eight},
    ]
    for content in ("{}", '{"mean": [1], "deviation": [1]}', "no", *map(json.dumps, damaged)):
        (tmp_path / "scale.json").write_text(content)
        with pytest.raises(UserError, match=r"scale.json"):
            SpeechToText.load(config, tmp_path)
    (tmp_path / "scale.json").write_text(json.dumps({"mean": eight, "deviation": eight}))
    assert SpeechToText.load(config, tmp_path).scale.mean.dtype == np.float32


@pytest.mark.slow
def test_recordings_and_waveforms_are_transcribed(run, spoken_files):
    transcriber = Transcriber.load(run.path)
    paths = sorted(spoken_files.glob("*.wav"))
    found = transcriber.transcribe(paths)
    assert len(found) == 5
    assert transcriber.transcribe(str(paths[2])) == found[2]
    assert transcriber.transcribe(read_audio(paths[2])) == found[2]
    (several,) = transcriber.search(
        paths[:1], method="beam", beam_size=3, max_length=5, times=True, alignments=True
    )
    assert len(several) == 3
    length = len(audio.features_of(read_audio(paths[0])))
    for each in several:
        assert [word.text for word in each.words] == each.text.split()
        assert all(0 <= word.start < word.end <= length / 100 + 0.04 for word in each.words)
        assert each.alignment.shape == (len(each.ids), -(-length // 4))
        np.testing.assert_allclose(each.alignment.sum(axis=1), 1, atol=1e-5)
    whole = np.round(32767 * read_audio(paths[2])).astype(np.int16)
    (plain,), (scaled,) = (transcriber.search([x]) for x in (paths[2], whole))
    assert (scaled[0].text, scaled[0].score) == (plain[0].text, pytest.approx(plain[0].score, abs=1e-2))
    for bad in (np.zeros((2, 3)), np.zeros(0), np.array([np.nan]), np.full(9, 1e30)):
        with pytest.raises(UserError, match="a waveform must have"):
            transcriber.transcribe(bad)
    with pytest.raises(UserError, match="no such file"):
        transcriber.transcribe(spoken_files / "none.wav")


def test_arrays_of_jax_are_transcribed_and_other_objects_named(run, spoken_files, monkeypatch):
    transcriber, path = Transcriber.load(run.path), spoken_files / "2.wav"
    wave = read_audio(path)
    expected = transcriber.transcribe(wave)
    assert transcriber.transcribe(jnp.asarray(wave)) == expected
    assert transcriber.transcribe([jnp.asarray(wave), path]) == [expected] * 2
    rounded = jnp.asarray(wave, jnp.bfloat16)
    assert transcriber.transcribe(rounded) == transcriber.transcribe(np.asarray(rounded, np.float32))
    content = path.read_bytes()
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is for users
    for bad in (
        wave.tolist(),
        (wave, 16_000),
        content,
        [content],
        memoryview(content),
        io.BytesIO(content),
        None,
    ):
        with pytest.raises(
            UserError, match="cannot hear (float|int|bytes|memoryview|BytesIO|NoneType): give"
        ):
            transcriber.transcribe(bad)


@pytest.mark.slow
def test_what_a_recording_holds_is_written_for_each_line(run, spoken_files, decode):
    output = spoken_files / "out.jsonl"
    arguments = [run.path, "--input", spoken_files / "list.tsv"]
    status, _, shown = decode(
        *arguments, "--max-length", 5, "--format", "json", "--times", "--output", output
    )
    assert status == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["recording"] for line in lines] == [f"{index}.wav" for index in range(5)]
    assert lines[0]["text"] == digits(2, 0, 1)[0][0]
    for line in lines:
        for best in line["hypotheses"]:
            assert [word["word"] for word in best["words"]] == best["text"].split()
    assert "word error rate = " in shown
    assert "character error rate = " in shown
    assert "sentence error rate = " in shown
    status, out, _ = decode(run.path, "--input", spoken_files / "3.wav", "--max-length", 5)
    assert (status, out) == (0, lines[3]["hypotheses"][0]["text"] + "\n")


@pytest.mark.thorough
def test_the_error_rate_that_decides_is_printed_first(run, spoken_files, decode, tmp_path):
    copy = Path(shutil.copytree(run.path, tmp_path / "run"))
    for criterion, first in (("words", "word"), ("characters", "character")):
        written = json.loads((copy / "config.json").read_text())
        written["training"]["error_rate"] = criterion
        (copy / "config.json").write_text(json.dumps(written))
        _, _, err = decode(copy, "--input", spoken_files / "list.tsv", "--max-length", 5)
        shown = re.findall(r"(\w+) error rate = ", err)
        assert (shown[0], sorted(shown)) == (first, ["character", "sentence", "word"])


def test_references_of_recordings_are_texts_alone(run, spoken_files, refused):
    listing = spoken_files / "list.tsv"
    said = refused(decode_main, run.path, "--input", listing, "--reference", listing)
    assert f"--reference {listing}, line 1: must be a text without a tab" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stream"], "--stream reads one recording, or standard input"),
        (["--tsv"], "--tsv: .* hears recordings"),
        (["--source-language", "en"], "--source-language: the language of recordings is --language; leave"),
        (["--target-language", "en"], "--target-language: Whisper .* only, with --task translate; leave"),
        (["--times"], "--times needs --format json"),
        (["--length-scale", "2"], "--length-scale: it is for nonautoregressive, synthesis, nonauto"),
        (["--iterations=2"], "--iterations: it is for nonautoregressive; leave it out"),
        (["--alignments"], "--alignments needs --format json"),
        (["--rescore", "RUN"], "hears recordings"),
    ],
)
def test_options_for_sentences_are_refused(run, spoken_files, arguments, message, refused):
    given = [run.path if each == "RUN" else each for each in arguments]
    assert re.search(message, refused(decode_main, run.path, "--input", spoken_files / "list.tsv", *given))


def test_a_pipe_that_is_no_list_is_not_to_be_standard_input(run, tmp_path, refused):
    os.mkfifo(tmp_path / "pipe.wav")
    for words in ([], ["--stream"]):
        said = refused(decode_main, run.path, "--input", tmp_path / "pipe.wav", *words)
        assert "pipe.wav can be read only once: give a file" in said


@pytest.mark.slow
def test_the_most_alike_and_what_is_not_for_recordings(run, spoken_files):
    transcriber, paths = Transcriber.load(run.path), sorted(spoken_files.glob("*.wav"))[:2]
    found = transcriber.search(paths, method="mbr", samples=4, max_length=4)
    assert all(several[0].score >= several[-1].score for several in found)
    with pytest.raises(UserError, match="--decoding.coverage-penalty"):
        transcriber.search(paths, method="beam", coverage_penalty=0.2)
    kept = Transcriber.load(run.path, int8=True)
    assert len(kept.transcribe(paths, max_length=4)) == 2


def test_a_wrong_line_is_named_before_a_recording_is_heard(
    run, spoken_files, decode, caplog, monkeypatch, refused
):
    listing = spoken_files / "bad.tsv"
    with monkeypatch.context() as patch:
        patch.setattr(Transcriber, "load", None)
        for line, message in {
            "none.wav": "none.wav: no such file",
            "": "must begin with the name of a recording",
            "0.wav\tone\ta\tb": "must be a file name, and perhaps a tab and the text",
        }.items():
            listing.write_text(f"0.wav\n{line}\n")
            assert re.search(
                f"bad.tsv, line 2: .*{message}", refused(decode_main, run.path, "--input", listing)
            )
    listing.write_text("0.wav\tone\n1.wav\n")
    assert decode(run.path, "--input", listing)[0] == 0
    assert "no error rates: no text in 1 of 2 lines of" in caplog.text
    listing.write_text("0.wav\tone\n1.wav\t\n")
    status, out, err = decode(run.path, "--input", listing, "--format", "json")
    assert status == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["one", ""]
    assert ", of 1)" in err
    (spoken_files / "noise.wav").write_text("noise")
    assert "line 1" not in refused(decode_main, run.path, "--input", spoken_files / "noise.wav")
    listing.write_text("0.wav\tone\ttwo\tthree\n")
    said = refused(decode_main, run.path, "--input", listing)
    assert "line 1: must be a file name, and perhaps a tab" in said
    shutil.copy(spoken_files / "0.wav", spoken_files / "sound")
    said = refused(decode_main, run.path, "--input", spoken_files / "sound")
    assert "the name of a recording must end in .wav or .flac or .ogg or .mp3" in said
    listing.write_text("FORM.wav\n")  # as AIFF begins, and yet a list
    assert "bad.tsv, line 1" in refused(decode_main, run.path, "--input", listing)
    said = refused(
        decode_main, run.path, "--input", spoken_files / "0.wav", "--output", spoken_files / "1.wav"
    )
    assert "1.wav: text is written to it" in said
    assert read_audio(spoken_files / "1.wav").any()


def test_a_long_recording_of_a_list_is_whole(run, decode, tmp_path, caplog):
    soundfile.write(tmp_path / "long.wav", np.zeros(100 * audio.RATE), audio.RATE)
    (tmp_path / "list").write_text("long.wav\n")
    assert decode(run.path, "--input", tmp_path / "list")[0] == 0
    assert "truncated" not in caplog.text
    Transcriber.load(run.path).search([tmp_path / "long.wav"])
    assert re.search(r"a recording of 100.01 s is truncated to .* s: raise buckets", caplog.text)
    task = SpeechToText.without_corpus(PRESETS["speech"])
    expected = "a recording of 600.01 s is truncated to 600.00 s: raise buckets"
    assert task.shortened("source", 60_001, 60_000) == expected


def test_mp3_files_are_recordings(run, spoken_files, decode, tmp_path, refused):
    wave = read_audio(spoken_files / "0.wav")
    heard = []
    for rate in (8_000, 16_000, 44_100):  # which begin differently
        path = tmp_path / f"{rate}.mp3"
        soundfile.write(path, audio.resampled(wave, audio.RATE, rate), rate, format="MP3")
        heard.append(decode(run.path, "--input", path, "--max-length", 5)[:2])
        path = path.rename(tmp_path / "sound")
        said = refused(decode_main, run.path, "--input", path)
        assert "the name of a recording must end in .wav or .flac or .ogg or .mp3" in said
    path = tmp_path / "sound.wav"
    soundfile.write(path, wave, audio.RATE)
    assert heard[1] == decode(run.path, "--input", path, "--max-length", 5)[:2]


@pytest.mark.thorough
@pytest.mark.by_default("tab\\there.wav")
@pytest.mark.parametrize("name", [b"\xff\xfe.wav", b"tab\there.wav", b"two\nlines.wav"])
def test_names_of_any_bytes_are_heard(run, spoken_files, decode, tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    shutil.copy(spoken_files / "0.wav", path)
    assert Transcriber.load(run.path).transcribe(path, max_length=5) is not None
    status, out, err = decode(run.path, "--input", path, "--max-length", 5, "--format", "json")
    assert status == 0
    assert json.loads(out)["recording"] == name.decode(errors="surrogateescape").replace(
        "\udcff", "?"
    ).replace("\udcfe", "?")
    assert "error rate" not in err
    assert decode(run.path, "--input", path, "--explore", tmp_path / "page.html", "--max-length", 5)[0] == 0
    assert data_of(tmp_path / "page.html")["records"]


@pytest.mark.slow
def test_warnings_do_not_obey_names(run, spoken_files, tmp_path):
    """A terminal would obey control characters in a manifest from elsewhere."""
    wave = read_audio(spoken_files / "0.wav")
    soundfile.write(tmp_path / "\033[2Ja.wav", np.stack([wave, -wave], axis=1), audio.RATE)
    (tmp_path / "list.tsv").write_text("\033[2Ja.wav\n")
    done = command("decode.py", run.path, "--input", tmp_path / "list.tsv")
    assert done.returncode == 0
    assert "its channels cancel out" in done.stderr
    assert "\033" not in done.stderr


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])


@pytest.mark.slow
def test_the_explorer_shows_the_attention_of_what_is_heard(run, spoken_files, decode):
    page, options = spoken_files / "page.html", ("--method", "beam", "--beam-size", 2, "--max-length", 4)
    arguments = [run.path, "--input", spoken_files / "list.tsv", "--explore", page, *options]
    assert "10 outputs of all 5 lines" in decode(*arguments)[1]
    data = data_of(page)
    assert data["stride"] == 0.04
    transcriber, path = Transcriber.load(run.path), spoken_files / "0.wav"
    (expected,) = transcriber.search([path], method="beam", beam_size=2, max_length=4, alignments=True)
    frames = len(audio.features_of(read_audio(path)))
    for each, other in zip(data["records"][0]["outputs"], expected, strict=True):
        assert each["text"] == other.text
        assert len(each["tokens"]) == len(each["spans"]) == len(other.ids)
        np.testing.assert_allclose(np.array(each["attention"]) / data["unit"], other.alignment, atol=1e-3)
        assert each["seconds"] == frames / 100
        assert each["spans"] == [list(span) for span in spans(other.alignment)]
    assert decode(run.path, "--input", path, "--explore", page, "--n-best", 1)[0] == 0  # one recording
    assert [len(each["outputs"]) for each in data_of(page)["records"]] == [1]


@pytest.mark.by_default("none.wav-options3---times is for lines")
@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ("none.wav", [], "line 1: none.wav: no such file"),
        ("\n \n", [], "nothing to explore: the input has no line"),
        ("none.wav", ["--tsv"], "--tsv: "),
        ("none.wav", ["--times"], "--times is for lines"),
    ],
)
def test_the_explorer_refuses_with_one_sentence(run, tmp_path, monkeypatch, lines, options, message, refused):
    monkeypatch.chdir(tmp_path)
    Path("list.tsv").write_text(lines)
    said = refused(decode_main, run.path, "--input", "list.tsv", "--explore", "page.html", *options)
    assert message in said
    assert not Path("page.html").exists()
