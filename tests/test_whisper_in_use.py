"""A run of Whisper is used like any other: from the command line, in int8, on a page, fine-tuned."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers
from configs import CONFIGS
from invented_sound import sound

from transformer import PRESETS, Run, UserError
from transformer.cli.decode_arguments import DecodeArguments
from transformer.commands.decode import decode_main
from transformer.commands.train import train_main
from transformer.config.decoding import BeamConfig
from transformer.config.options import position_limits
from transformer.interop.pretrained import import_model
from transformer.runs.config_json import to_json
from transformer.serve.services.limits import ALLOWED, Limits
from transformer.serve.services.service import service_of
from transformer.systems.registry import REGISTRY, find_system
from transformer.systems.speech.api import Transcriber
from transformer.systems.speech.task import SpeechToText
from transformer.systems.speech.writer import start_of
from transformer.tasks.outputs import Lines

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
DATA = Path(__file__).parent / "data" / "whisper"
OPTIONS = {"language": "de", "task": "translate", "timestamps": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The run, a recording and one of more than 30 seconds."""
    folder = tmp_path_factory.mktemp("whisper")
    import_model(DATA, folder / "run", "en")
    soundfile.write(folder / "short.wav", sound(0), 16_000)
    soundfile.write(folder / "long.wav", np.resize(sound(1), 16_000 * 31), 16_000)
    return folder


def test_a_server_prepares_an_imported_model(folder, monkeypatch):
    """Whose outputs begin with tokens, before there is a recording, and may have times."""
    run = folder / "run"
    kind = service_of(run)
    service = kind("ears", kind.loads.load(run), ALLOWED, Limits())
    starts = list[tuple[int, ...] | None]()
    prepare = service.decoder._preparation

    def prepared(records, *options):
        starts.extend(record.start for record in records.values() or [Mock(start=None)])
        return prepare(records, *options)

    monkeypatch.setattr(service.decoder, "_preparation", prepared)
    assert any(service.preparation().stages)
    with_times = service.decoder.task.start(timestamps=True)
    assert set(starts) == {None, with_times}
    assert starts.count(None) == starts.count(with_times)


@pytest.mark.thorough
def test_the_command_has_the_options_of_the_api(folder, decode):
    limits = {"rows": 1, "max_length": 24}
    command = [folder / "run", "--input", folder / "short.wav", "--rows", 1, "--max-length", 24]
    command += ["--cut", "pauses"]  # without the rules of windows, as `search`
    words = ["--language", "de", "--task", "translate", "--timestamps", "--format", "json"]
    status, out, _ = decode(*command, *words)
    assert status == 0
    (found, *_) = json.loads(out)["hypotheses"]
    transcriber = Transcriber.load(folder / "run")
    ((expected, *_),) = transcriber.search([folder / "short.wav"], **OPTIONS, **limits)
    assert found["tokens"] == list(expected.tokens)
    assert found["tokens"][:2] == ["<|de|>", "<|translate|>"]
    assert found["segments"] == [segment.to_dict() for segment in expected.segments]
    assert found["segments"]
    ((usual, *_),) = transcriber.search([folder / "short.wav"], **limits)
    _, out, _ = decode(*command)
    assert out == usual.text.replace("\n", " ") + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--language", "fx"], "--language 'fx': this model does not know it"),
        (["--task", "sing"], "--task 'sing': this model does not know it"),
        (["--timestamps"], "--timestamps needs --format json"),
        (["--timestamps", "--explore", "page.html"], "--timestamps is for lines"),
    ],
)
def test_mistakes_are_named(folder, words, message, refused):
    assert message in refused(decode_main, folder / "run", "--input", folder / "short.wav", *words)


@pytest.mark.parametrize("option", OPTIONS)
def test_other_runs_refuse_the_options(tmp_path, option, refused):
    of_systems = {config.system: config for config in CONFIGS.values()}
    assert of_systems.keys() == REGISTRY.keys()
    value = OPTIONS[option]
    words = [f"--{option}", *[value] * isinstance(value, str)]
    decoded = {name for name in of_systems if issubclass(find_system(name).task, Lines)}
    for system in decoded - {"speech"}:
        config = of_systems[system]
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=300))
        (tmp_path / "config.json").write_text(to_json(config))
        said = refused(decode_main, tmp_path, *words)
        assert f"--{option}: " in said
        assert "leave it out" in said
    task = SpeechToText.without_corpus(PRESETS["speech"])
    task.codes = None
    asked = DecodeArguments(tmp_path, (), BeamConfig(), **{option: value})
    with pytest.raises(UserError, match=f"--{option}: it is for Whisper, and this is another model; leave"):
        start_of(task, asked)


@pytest.mark.thorough
def test_a_search_truncates_long_recordings_with_the_true_reason(folder, caplog):
    Transcriber.load(folder / "run").search([folder / "long.wav"], rows=1, max_length=4)
    assert "a recording of 31.00 s: this model hears 30 s at once, and the rest is not" in caplog.text
    assert "buckets" not in caplog.text


@pytest.mark.slow
def test_int8_weights_give_nearly_the_same_scores(folder):
    limits = {"rows": 1, "max_length": 24, "beam_size": 1, "stop": "present"}
    wave = [folder / "short.wav"]
    exact, rounded = (
        Transcriber.load(folder / "run", int8=int8).search(wave, **limits)[0][0] for int8 in (False, True)
    )
    assert exact.score != rounded.score
    assert rounded.score == pytest.approx(exact.score, abs=0.1)


@pytest.mark.slow
def test_the_page_shows_what_is_heard(folder, decode, tmp_path):
    words = ["--language", "de", "--rows", 1, "--max-length", 6]
    page = tmp_path / "page.html"
    status, out, _ = decode(folder / "run", "--input", folder / "short.wav", "--explore", page, *words)
    assert status == 0
    assert "1 output of 1 line" in out
    text = page.read_text()
    assert "|de|" in text
    weights = re.search(r'"attention":(\[\[.*?\]\])', text)
    assert weights
    heard = math.ceil(soundfile.info(folder / "short.wav").duration / 0.02)
    assert {len(row) for row in json.loads(weights[1])} == {heard}  # without the padding


def test_its_positions_limit_recordings_and_texts(folder):
    config = Run(folder / "run").config
    assert {name: limit for _, name, limit in position_limits(config.model, config.data)} == {
        "max_text": 32,
        "max_length": 3000,
    }


def test_it_is_trained_as_it_was_before(folder, tmp_path):
    """Each text begins with a space, as in the training of its publisher, and nothing is dropped."""
    task = Run(folder / "run").task
    recording = task.record(str(folder / "short.wav"))
    (example,) = task.examples([dataclasses.replace(recording, text="ein hund")])
    text = tokenizers.Tokenizer.from_str(task.tokenizer.model).encode(" ein hund", add_special_tokens=False)
    assert example["target"] == [*task.start(), *text.ids, task.special.eos]
    copied = shutil.copytree(DATA, tmp_path / "whisper")
    about = json.loads((copied / "config.json").read_text())
    assert about.pop("dropout") == 0
    (copied / "config.json").write_text(json.dumps(about))
    assert import_model(copied, tmp_path / "run", "en").config.model.dropout == 0


@pytest.mark.slow
def test_it_is_fine_tuned(folder, call):
    """On recordings as the model hears them, with a report."""
    (folder / "files.tsv").write_text("short.wav\tein hund\n" * 8)
    data = ["--data.train", folder / "files.tsv", "--data.validation", folder / "files.tsv"]
    limits = ["--decoding.max-length", 6, "--decoding.rows", 2, "--data.batch-tokens", 6000]
    steps = ["--training.steps", 2, "--training.evaluate-every", 2]
    words = ["--init-from", folder / "run", "--run-dir", folder / "tuned", *data, *limits, *steps]
    status, _, errors = call(train_main, *words)
    assert status == 0, errors
    assert "short.wav" in (folder / "tuned" / "report.html").read_text()
    ((best, *_),) = Transcriber.load(folder / "tuned").search([folder / "short.wav"], max_length=6)
    assert best.tokens[:2] == ("<|en|>", "<|transcribe|>")
