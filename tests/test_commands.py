"""train.py and decode.py as users run them: lines in, lines out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_command import on_devices

from transformer import Run
from transformer.commands.decode import decode_main
from transformer.commands.main import main
from transformer.commands.models import average_main

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_options_are_those_of_the_run_and_not_of_the_judge(untrained_run, call, tmp_path):
    shutil.copytree(untrained_run, tmp_path / "judge")
    config = json.loads((untrained_run / "config.json").read_text())
    config["decoding"]["method"] = "sample"
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config))
    outputs = [
        call(decode_main, *words, "--format", "scores", stdin=b"ein Haus\n\n")
        for words in (
            [untrained_run, "--rescore", tmp_path / "judge"],
            ["--rescore", tmp_path / "judge", untrained_run],
        )
    ]
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][1].splitlines()[1] == "0.0000\t"  # empty, so certain
    status, _, errors = call(
        decode_main, untrained_run, "--rescore", untrained_run, "--n-best", "9", stdin=b"x\n"
    )
    assert status == 2
    assert "--n-best 9: must be at least 1 and at most 2" in errors


@pytest.mark.by_default("")
@pytest.mark.parametrize(
    "text",
    ["ein Haus\n\nder See\n", "ein Haus\nohne Ende", "", "\n\n", "  \n日本語 🙂 e\u0301\n\u2028x\r\n"],
)
def test_one_line_in_one_line_out(untrained_run, call, text):
    status, out, _ = call(decode_main, untrained_run, stdin=text.encode())
    assert status == 0
    assert out.count("\n") == len(text.removesuffix("\n").split("\n")) if text else out == ""
    for line, translation in zip(text.split("\n"), out.split("\n"), strict=False):
        assert line.strip() or translation == ""


def test_files_and_scores(untrained_run, call, tmp_path):
    (tmp_path / "in").write_text("ein Haus\nder See\n")
    (tmp_path / "good").write_text("the house\nthe lake\n")
    status, _, err = call(
        decode_main,
        untrained_run,
        "--input",
        tmp_path / "in",
        "--output",
        tmp_path / "out",
        "--reference",
        tmp_path / "good",
    )
    assert status == 0
    assert "2 lines in" in err
    assert str(tmp_path / "out") in err
    assert "BLEU = " in err
    assert "chrF2 = " in err
    assert err.count("version:") == 2
    assert (tmp_path / "out").read_text().count("\n") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"in", "good", "out"}


def test_formats(untrained_run, call):
    stdin = b"ein Haus\n\n"
    _, scores, _ = call(decode_main, untrained_run, "--format", "scores", "--n-best", "2", stdin=stdin)
    lines = scores.splitlines()
    assert len(lines) == 4  # two for each, for the empty one too
    assert float(lines[0].split("\t")[0]) >= float(lines[1].split("\t")[0])
    _, text, _ = call(decode_main, untrained_run, "--format", "json", "--alignments", stdin=stdin)
    about = [json.loads(line) for line in text.splitlines()]
    assert [(line["line"], line["source"]) for line in about] == [(1, "ein Haus"), (2, "")]
    first, empty = (line["hypotheses"] for line in about)
    assert len(first[0]["alignment"]) == len(first[0]["tokens"]) + 1
    assert len(first[0]["alignment"][0]) == len(about[0]["source_tokens"]) + 1
    assert "".join(about[0]["source_tokens"]).replace("▁", " ").strip() == "ein Haus"
    assert empty[0]["text"] == ""
    assert about[1]["source_tokens"] == []
    long = b"ein Haus am See das Haus ist rot der See ist tief ein roter Hund\n"
    _, text, _ = call(decode_main, untrained_run, "--format=json", "--alignments", stdin=long)
    cut = json.loads(text)
    assert len(cut["source_tokens"]) + 1 == len(cut["hypotheses"][0]["alignment"][0]) <= 16


@pytest.mark.thorough
def test_checkpoints_and_search_options(untrained_run, call):
    def out(*options):
        status, text, err = call(decode_main, untrained_run, *options, stdin=b"das Haus ist rot\n" * 3)
        assert status == 0, err
        return text

    assert out() == out("--checkpoint", "best") == out("--checkpoint", "1") != out("--checkpoint", "last")
    assert out("--method", "greedy") == out("--beam-size", "1", "--length-penalty", "0")
    assert out("--int8", "--format", "scores") != out("--format", "scores")
    assert out("--method", "sample", "--seed", "1") == out("--method", "sample", "--seed", "1")
    drawn = out("--method", "sample", "--samples", "1").splitlines()
    assert len(set(drawn)) > 1  # identical lines have different samples


def test_average_command(untrained_run, call):
    status, out, _ = call(average_main, untrained_run, "--last", "2")
    assert status == 0
    assert "Averaged steps 1, 2" in out
    run = Run(untrained_run)

    table = {
        checkpoint: np.asarray(run.variables(checkpoint)["params"]["source_embedding"]["table"])
        for checkpoint in (1, 2, "average")
    }
    assert np.allclose(table["average"], (table[1] + table[2]) / 2, rtol=0, atol=1e-8)
    assert call(average_main, untrained_run, "--steps", "1", "9")[0] == 2


def test_overlong_input_is_cut_with_a_warning(untrained_run, call, caplog):
    status, out, _ = call(decode_main, untrained_run, stdin=b"Haus\n" + b"Haus " * 40 + b"\n")
    assert status == 0
    assert out.count("\n") == 2
    assert "line 2: truncated from" in caplog.text


def test_the_scripts_at_the_top_run():
    for script in ("train.py", "decode.py"):
        ended = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_two_devices_translate_like_one(untrained_run, call):
    """Full batches, whose rows are sharded, and a few sentences, whose rows cannot be."""
    for lines in (3, 80):
        text = "".join(f"{'w ' * (1 + index % 7)}\n" for index in range(lines))
        status, alone, errors = call(decode_main, untrained_run, stdin=text.encode())
        assert status == 0, errors
        words = [sys.executable, ROOT / "decode.py", untrained_run]
        ended = subprocess.run(words, input=text, capture_output=True, text=True, env=on_devices(2))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == alone
        assert alone.count("\n") == lines


@pytest.mark.parametrize("words", [["calibrate"], ["shortlist", "--source", "x", "--target", "y"]])
def test_a_folder_that_is_read_only_is_refused_before_the_work(words, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(os, "access", lambda *_: False)
    errors = refused(main, words[0], tmp_path, *words[1:])
    assert "is read-only, and the result is written there" in " ".join(errors.split())
