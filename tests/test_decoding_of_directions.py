"""Translations and scores of a model for several directions."""

import dataclasses
import json
import logging
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from small_run import changed, drawn_run, quiet
from two_directions import config_of, reversed_words, sentences, write

from transformer import Translator
from transformer.commands.calibrate import calibrate_main
from transformer.commands.decode import decode_main
from transformer.commands.models import distill_main
from transformer.commands.tables import shortlist_main
from transformer.commands.train import train_main
from transformer.data.store import DirectedPair
from transformer.runtime.errors import UserError
from transformer.trainer.train import train


def large_config(folder):
    config = config_of(folder, train=1000)
    config = changed(config, steps=600, evaluate_every=300, label_smoothing=0.0)
    model = dataclasses.replace(config.model, d_model=32, d_ff=64, num_layers=2, dropout=0.0)
    optimizer = dataclasses.replace(config.optimizer, peak=5e-3, warmup_steps=50)
    return dataclasses.replace(config, model=model, optimizer=optimizer)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run of random parameters."""
    folder = tmp_path_factory.mktemp("drawn")
    return drawn_run(config_of(folder), folder / "run").path


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that was trained until it copies and reverses."""
    folder = tmp_path_factory.mktemp("learned")
    return train(large_config(folder), folder / "run", watch=quiet())


@pytest.mark.slow
def test_one_model_learns_two_directions(learned):
    translator = Translator.load(learned)
    report = (learned / "report.html").read_text()
    assert report.count("x to back") > 3  # in the table of scores, and a line of a chart
    results = json.loads((learned / "results.json").read_text())
    assert set(results["bleu"]["parts"]) == {"x to same", "x to back"}
    assert min(results["bleu"]["parts"].values()) > 90
    assert results["bleu"]["value"] == pytest.approx(sum(results["bleu"]["parts"].values()) / 2)
    line = "red dog sings"
    assert translator.translate(line, target_language="same") == line  # all have the same source language
    assert translator.translate(line, target_language="back") == reversed_words(line)
    with pytest.raises(UserError, match="give --target-language, such as back, same"):
        translator.translate(line)


def test_a_batch_of_all_directions_decodes_as_each_alone(drawn):
    translator = Translator.load(drawn)
    lines = sentences(5, 6)
    languages = ["same", "back", "same", "back", "back", "same"]
    alone = [
        translator.search([line], target_language=language)[0]
        for line, language in zip(lines, languages, strict=True)
    ]
    records = [DirectedPair(line, "", "x", language) for line, language in zip(lines, languages, strict=True)]
    numbered = enumerate(records, start=1)
    together = list(translator.outputs(numbered, translator.settings(None, {}), None))
    for hypotheses, expected in zip(together, alone, strict=True):
        assert [h.ids for h in hypotheses] == [h.ids for h in expected]
        np.testing.assert_allclose([h.score for h in hypotheses], [h.score for h in expected], atol=1e-5)
    assert len(translator._services) == 1


@pytest.mark.slow
def test_languages_share_their_programs(drawn, caplog):
    translator = Translator.load(drawn)
    translator.warm_up()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        translator.translate(["red dog"], target_language="same")
        translator.translate(["red dog"], target_language="back")
    assert not [message for message in caplog.messages if "ompiling" in message]


@pytest.mark.slow
def test_lines_name_their_languages(learned, tmp_path, decode):
    columns, objects = tmp_path / "lines.tsv", tmp_path / "lines.jsonl"
    columns.write_text("red dog\t\t\tx\tback\nred dog\t\t\t\tsame\nred cat runs\truns\t\t\tback\n")
    requests = [
        {"source": "red dog", "source_language": "x", "target_language": "back"},
        {"source": "red dog", "target_language": "same"},
        {"source": "red cat runs", "prefix": "runs", "target_language": "back"},
    ]
    objects.write_text("".join(f"{json.dumps(request)}\n" for request in requests))
    expected = "dog red\nred dog\nruns cat red\n"
    assert decode(learned, "--input", columns, "--tsv")[:2] == (0, expected)
    assert decode(learned, "--input", objects, "--jsonl")[:2] == (0, expected)
    _, written, _ = decode(learned, "--input", objects, "--jsonl", "--format", "json")
    results = list(map(json.loads, written.splitlines()))
    assert [result["target_language"] for result in results] == ["back", "same", "back"]
    assert [result["source_tokens"][0] for result in results] == ["__x__"] * 3
    assert [result["hypotheses"][0]["tokens"][0] for result in results] == [
        "__back__",
        "__same__",
        "__back__",
    ]


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("a\t\t\tx\tbakc", ["--tsv"], "line 1: --target-language bakc: this model has no such language"),
        ("a\t\t\t\t", ["--tsv"], "give --target-language, such as back, same"),
        ("a\tb\tc\td\te\tf", ["--tsv"], "line 1: 6 columns; --tsv reads"),
        ("a", ["--jsonl"], "line 1: --jsonl reads a JSON object on each line"),
        ('{"text": "a"}', ["--jsonl"], "line 1: source is missing: there is only 'text'"),
        ('{"source": "a", "prefx": "b"}', ["--jsonl"], "line 1: there is no 'prefx': did you mean prefix"),
        ('{"source": {}}', ["--jsonl"], "line 1: source must be text, not {}"),
        ('{"source": "a", "terms": "b"}', ["--jsonl"], "line 1: terms must be a list of words"),
        ('{"source": "a", "terms": 5}', ["--jsonl"], "line 1: terms must be a list of words"),
        ("a", ["--jsonl", "--tsv"], "leave one of them out"),
    ],
)
def test_bad_lines_are_named(drawn, tmp_path, line, options, message, refused):
    path = tmp_path / "lines"
    path.write_text(f"{line}\n")
    errors = refused(decode_main, drawn, "--input", path, *options)
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors


def test_limits_are_learned_of_a_direction(drawn, tmp_path, call, refused):
    run = shutil.copytree(drawn, tmp_path / "run")
    text = tmp_path / "text"
    text.write_text("red dog\n" * 12)
    status, printed, _ = call(calibrate_main, run, "--input", text, "--target-language", "back")
    assert status == 0
    assert "limits of 12 translations" in printed
    assert printed.splitlines()[-1].endswith(" --target-language back")
    errors = refused(calibrate_main, run, "--input", text)
    assert "give --target-language, such as back" in " ".join(errors.split())


SIZES = [f"--model.{name}" for name in ("num-layers=1", "d-model=16", "d-ff=16", "num-heads=2")]
SHORT = ["--training.steps=4", "--training.evaluate-every=4", "--data.cache-dir=cache"]
SMALL = ["--data.vocab-size=285", "--data.batch-tokens=600", "--data.max-length=60", "--data.buckets=60"]


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path, monkeypatch, capfd):
    """As printed, with small models, and what the end of a training suggests."""
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
    section = re.search(r"## Several directions\n(.*?)\n## ", page, re.DOTALL)[1]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    commands = "".join(blocks).replace("\\\n", " ").splitlines()
    monkeypatch.chdir(tmp_path)
    for language in ("de", "fr"):
        write(tmp_path, f"train.{language}", 60, 0, ["en", language])
    write(tmp_path, "val", 6, 1, ["en", "de", "fr"])
    queue = list(commands)
    while queue:
        command = queue.pop(0)
        text, _, last = command.rpartition(" | ")
        _, program, *options = shlex.split(last)
        if program == "train.py":
            small = (
                ["--data.vocab-size=360", "--data.built-in-size=300"] if "quickstart" in options else SMALL
            )
            main, words = train_main, [program, *options, *SIZES, *SHORT, *small]
        else:
            Path("lines").write_bytes(subprocess.run(["sh", "-c", text], capture_output=True).stdout)
            main, words = decode_main, [program, *options, "--input", "lines"]
        monkeypatch.setattr("sys.argv", words)
        assert main() == 0, (command, capfd.readouterr().err)
        out = capfd.readouterr().out
        assert out.strip()
        queue += re.findall("^Try: (echo .*)", out, re.MULTILINE)
    assert len(commands) == 6


def test_commands_for_one_direction_refuse_several(drawn, tmp_path, refused):
    (tmp_path / "text").write_text("red dog\n")
    text = tmp_path / "text"
    for main, options, message in (
        (shortlist_main, ["--source", text, "--target", text], "a shortlist is for one direction"),
        (distill_main, [tmp_path / "out"], "a distillation is of one"),
    ):
        errors = refused(main, drawn, *options)
        assert message in " ".join(errors.split())
        assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()
