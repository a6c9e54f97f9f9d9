"""Speech synthesis: a run, its commands, its report and the explorer."""

import dataclasses
import io
import json
import os
import re
import shutil
import struct
import wave
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_run import drawn_run, quiet
from toy_runs import synthesis_config

from transformer import PRESETS, Run, Synthesizer, UserError, train
from transformer.commands.decode import decode_main
from transformer.data.signals import audio
from transformer.data.sources.recordings import Recording
from transformer.explorer import explore_sounds
from transformer.explorer.attention import forced_attention
from transformer.runs.exhibits import read_exhibits
from transformer.runs.report import write_report
from transformer.systems.registry import find_system
from transformer.systems.synthesis.system import synthesis_objective
from transformer.systems.synthesis.task import TextToSpeech, Utterance
from transformer.systems.synthesis.writer import Utterances
from transformer.trainer.evaluator import Evaluator
from transformer.trainer.profile import StopRequest
from transformer.training.sharding import layout_of

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run of random parameters."""
    folder = tmp_path_factory.mktemp("synthesis")
    return drawn_run(synthesis_config(folder, "one", samples=2), folder / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    return Run(train(synthesis_config(folder, "one", samples=2), folder / "run", watch=quiet()))


def test_texts_are_spoken(run):
    synthesizer = Synthesizer.load(run.path)
    both = synthesizer.utterances(["one", "two"], max_length=40)
    for said in both:
        assert said.features.shape[1] == 8
        assert said.seconds == len(said.features) / 100
        assert len(said.wave) == max(0, len(said.features) - 1) * audio.HOP
        assert np.abs(said.wave).max() <= 1
    sound = synthesizer.speak("one", max_length=40)
    np.testing.assert_allclose(sound, both[0].wave, atol=1e-3)
    assert len(synthesizer.speak(["one"], max_length=40)) == 1
    with pytest.raises(UserError, match="something that the training texts have not, in 'ünx': leave"):
        synthesizer.speak("one ünx two ünx")


def test_recordings_are_written_beside_their_list(run, decode, tmp_path, caplog):
    (tmp_path / "in").write_text("one\n\ntwo\n")
    output = tmp_path / "list.tsv"
    assert decode(run.path, "--input", tmp_path / "in", "--output", output, "--max-length", 20)[0] == 0
    assert output.read_text() == "list-0001.wav\tone\nlist-0002.wav\t\nlist-0003.wav\ttwo\n"
    about = [soundfile.info(tmp_path / f"list-000{number}.wav") for number in (1, 2, 3)]
    assert {each.samplerate for each in about} == {audio.RATE}
    assert about[1].frames == 1_600  # silence
    assert "line 2 is empty" in caplog.text


@pytest.mark.slow
def test_recordings_of_others_are_not_replaced(run, decode, tmp_path, refused):
    """A job that is stopped, resumed, and done again replaces its own; another job refuses them."""
    (tmp_path / "in").write_text("one\ntwo\nsix\n")
    output, theirs = tmp_path / "list.tsv", tmp_path / "list-0002.wav"
    arguments = [run.path, "--input", tmp_path / "in", "--output", output, "--max-length", 20]
    soundfile.write(theirs, np.zeros(9), audio.RATE)
    before = theirs.read_bytes()
    message = f"{theirs} is there already, and not of this job: remove it, or name another --output"
    for _ in range(2):
        assert message in refused(decode_main, *arguments)
    assert (theirs.read_bytes(), len(list(tmp_path.iterdir()))) == (before, 2)
    theirs.unlink()
    theirs.symlink_to("nowhere")
    assert decode(*arguments)[0] == 2
    assert theirs.is_symlink()
    theirs.unlink()
    (tmp_path / "list-0004.wav").write_bytes(before)  # of which there is no line
    (tmp_path / "another-0001.wav").write_bytes(before)
    ordinary = Utterances._write

    def stopped(self, path, number, said):
        ordinary(self, path, number, said)
        if number == 2:  # after the recording, and before its line
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Utterances, "_write", stopped)
        assert decode(*arguments)[0] == 130
    assert theirs.exists()
    assert decode(*arguments, "--resume")[0] == 0
    assert output.read_text() == "list-0001.wav\tone\nlist-0002.wav\ttwo\nlist-0003.wav\tsix\n"
    assert decode(*arguments)[0] == 0
    assert "list-0001.wav is there already" in refused(decode_main, *arguments, "--length-scale", 2)
    assert (tmp_path / "list-0004.wav").read_bytes() == before


def test_recordings_of_a_pipe_are_not_those_of_an_earlier_job(run, decode, tmp_path, refused):
    """What came through it before is not known."""
    arguments = run.path, "--output", tmp_path / "list.tsv", "--max-length", 20
    assert decode(*arguments, stdin=b"one\n")[0] == 0
    shown = refused(decode_main, *arguments, stdin=b"one\n")
    assert "list-0001.wav is there already, and input from a pipe cannot be compared with" in shown
    assert "give --input FILE, or name another --output" in shown


def test_recordings_are_written_beside_the_file_that_a_link_names(run, decode, tmp_path):
    (tmp_path / "in").write_text("one\n")
    (tmp_path / "there").mkdir()
    (tmp_path / "link.tsv").symlink_to("there/list.tsv")
    options = ["--input", tmp_path / "in", "--max-length", 20]
    assert decode(run.path, *options, "--output", tmp_path / "link.tsv")[0] == 0
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"list.tsv", "list-0001.wav"}


def test_sound_that_is_not_finite_is_refused_with_its_line(run, tmp_path, monkeypatch, refused):
    features = np.full((9, 8), 200.0, np.float32)
    monkeypatch.setattr(TextToSpeech, "outputs", lambda *_: [Utterance("one", features)])
    (tmp_path / "in").write_text("one\n")
    said = refused(decode_main, run.path, "--input", tmp_path / "in", "--output", tmp_path / "list.tsv")
    assert "line 1: the sound of 'one' is not finite" in said
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--output FILE is missing"),
        (["--output", "OUT", "--format", "json"], "one recording for each"),
        (["--output", "OUT", "--stream"], "writes one recording for each text"),
        (["--output", "OUT", "--reference", "IN"], "writes one recording for each text"),
        (["--output", "/dev/null"], "must be a file: recordings are written beside it"),
    ],
)
def test_options_of_text_are_refused(run, tmp_path, arguments, message, refused):
    (tmp_path / "in").write_text("one\n")
    names = {"OUT": tmp_path / "out", "IN": tmp_path / "in"}
    given = [names.get(each, each) for each in arguments]
    assert message in refused(decode_main, run.path, "--input", tmp_path / "in", *given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [b"two\nlines.tsv", b"a\ttab.tsv", b"\xff.tsv"])
def test_a_list_that_could_not_be_read_is_not_written(run, tmp_path, name, refused):
    (tmp_path / "in").write_text("one\n")
    said = refused(
        decode_main, run.path, "--input", tmp_path / "in", "--output", tmp_path / os.fsdecode(name)
    )
    assert "choose a name in UTF-8, without tabs and ends of lines" in said
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_an_unknown_letter_is_named_with_its_line(run, tmp_path, monkeypatch, refused):
    """Before a recording is made, and before the model is loaded."""
    monkeypatch.setattr(Synthesizer, "load", None)
    (tmp_path / "in").write_text("one\n\nü\n")
    said = refused(decode_main, run.path, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert "line 3: the text 'ü'" in said


def test_sound_needs_the_scale_of_the_corpus(tmp_path):
    config = synthesis_config(tmp_path, "one")
    wrong = dataclasses.replace(config, data=dataclasses.replace(config.data, normalisation="recording"))
    with pytest.raises(UserError, match="--data.normalisation recording"):
        train(wrong, tmp_path / "run", watch=quiet())
    wrong = dataclasses.replace(config, model=dataclasses.replace(config.model, bands=9))
    with pytest.raises(UserError, match="--model.bands 9"):
        train(wrong, tmp_path / "run", watch=quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_run_scores_its_features(trained):
    run = trained
    (record, *_) = run.log.records("evaluation")
    assert record["measure"]["name"] == "mel_error"
    assert json.loads((run.path / "scale.json").read_text())["mean"]
    assert PRESETS["synthesis"].data.speaker == "one"


@pytest.mark.thorough
def test_the_report_plays_the_first_texts_of_the_validation(trained):
    run = trained
    step, exhibits = read_exhibits(run.path)
    assert step == run.checkpoints.best()
    said = [each["title"] for each in exhibits]
    records = list(run.task.open_corpus(run.config).splits["validation"])
    assert said == [record.text for record in records[:2]]
    for record, each in zip(records, exhibits, strict=False):
        assert [sound["caption"].split(",")[0] for sound in each["sounds"]] == ["synthetic", "recording"]
        with wave.open(io.BytesIO(b64decode(each["sounds"][1]["wav"]))) as file:
            assert file.getnframes() == (len(record.features) - 1) * audio.HOP
        _, attention = each["pictures"]
        reduction = run.config.model.reduction
        steps = -(-len(record.features) // reduction)
        assert attention["y"]["extent"] == pytest.approx(steps * reduction / 100)
        assert attention["x"]["labels"][-1] == "</s>"
        width, height = struct.unpack(">II", b64decode(attention["png"])[16:24])
        assert (width, height) == (len(attention["x"]["labels"]), steps)
    page = (run.path / "report.html").read_text()
    assert page.count("<audio ") == 4
    assert all(f"<h3>{text}</h3>" in page for text in said)


def test_attention_given_the_frames_does_not_depend_on_padding(run):
    synthesizer = Synthesizer.load(run.path)
    (record, *_) = run.task.open_corpus(run.config).splits["validation"]
    (example,) = run.task.examples([record])
    found = forced_attention(synthesizer, example)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    source, target = (jnp.asarray(example[name])[None] for name in ("source", "target"))
    alignment = jax.jit(synthesizer.system.alignment, static_argnums=0)
    alone = alignment(synthesizer.model, synthesizer.variables, {"source": source}, target)
    np.testing.assert_allclose(found, alone[0], atol=1e-5)


def test_a_text_that_cannot_be_spoken_is_not_in_the_report(run):
    frames = np.zeros((9, 8), np.float32)
    records = [Recording(text, frames, text) for text in ("ü", "", "one", "one" * 20, "two", "six")]
    assert [each.text for each in run.task.exhibited(records, 2)] == ["one", "two"]
    long = Recording("long", np.zeros((161, 8), np.float32), "one")
    assert run.task.exhibited([long], 2) == []


@pytest.mark.thorough
def test_a_finished_run_without_exhibits_gets_them_when_it_is_tested_again(trained, tmp_path):
    run = trained
    copy = Path(shutil.copytree(run.path, tmp_path / "run"))
    (copy / "exhibits.json").unlink()
    assert "<audio" not in write_report(copy).read_text()  # of the files alone
    train(run.config, copy, watch=quiet())
    assert read_exhibits(copy) == read_exhibits(run.path)
    assert (copy / "report.html").read_text().count("<audio ") == 4


def test_a_request_to_stop_ends_the_exhibits(run):
    data = SimpleNamespace(task=run.task, corpus=run.task.open_corpus(run.config))
    system, layout = find_system("synthesis"), layout_of(run.config.mesh)
    evaluator = Evaluator(run.config, system, synthesis_objective, data, layout)
    variables, request = Synthesizer.load(run.path).variables, StopRequest()
    request.received = 15
    assert evaluator.exhibits(variables, request) == []


@pytest.mark.slow
def test_exhibits_that_fail_do_not_cost_the_run(tmp_path, monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(TextToSpeech, "exhibit", fails)
    train(synthesis_config(tmp_path, "one", samples=1), tmp_path / "run", watch=quiet())
    assert "the report has no examples: RuntimeError: no room" in caplog.text
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.endswith("</html>\n")
    assert "<audio" not in page


@pytest.mark.slow
def test_the_explorer_shows_the_steps_that_attend_to_each_character(run, decode, tmp_path, refused):
    (tmp_path / "in").write_text("one\n\nsix\n")
    page, options = tmp_path / "page.html", ("--max-length", 30, "--prenet-dropout", 0)
    assert decode(run.path, "--input", tmp_path / "in", "--explore", page, *options)[0] == 0
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert data["stride"] == run.config.model.reduction / 100
    assert [each["title"] for each in data["records"]] == ["one", "six"]
    synthesizer = Synthesizer.load(run.path)
    (said,) = synthesizer.utterances(["one"], max_length=30, prenet_dropout=0.0)
    (output,) = data["records"][0]["outputs"]
    steps = -(-len(said.features) // run.config.model.reduction)
    weights = np.array(output["attention"]) / data["unit"]
    assert weights.shape == (len(output["tokens"]), steps)
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-3)
    with wave.open(io.BytesIO(b64decode(output["wav"]))) as file:
        assert file.getnframes() == len(said.wave)
    (tmp_path / "in").write_text("one\nü\n")
    said = refused(decode_main, run.path, "--input", tmp_path / "in", "--explore", tmp_path / "no.html")
    assert "in, line 2: the text 'ü'" in said
    assert not (tmp_path / "no.html").exists()


@pytest.mark.slow
def test_the_explorer_shows_an_utterance_without_sound(run, monkeypatch):
    empty = Utterance("one", np.zeros((0, 8), np.float32))
    monkeypatch.setattr(TextToSpeech, "outputs", lambda *_: [empty])
    page = explore_sounds(Synthesizer.load(run.path), [run.task.record("one")], max_length=8)
    assert '"spans":[],"seconds":0.0' in page.html
    with pytest.raises(UserError, match="nothing to explore"):
        explore_sounds(Synthesizer.load(run.path), [])
