"""train.py and decode.py as users run them: lines in, lines out; bad input gives one message and status 2."""

import contextlib
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from run_command import on_devices

from transformer import (
    BeamConfig,
    Config,
    DataConfig,
    Run,
    Transformer,
    TransformerConfig,
)
from transformer.cli.decode import decode_main
from transformer.cli.models import average_main
from transformer.cli.train import train_main
from transformer.data.features.tokenizers import train_tokenizer
from transformer.tasks.translation import Translation
from transformer.training.step import TrainState

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A run with two checkpoints of random parameters, since learning is not tested here."""
    import jax

    lines = ["ein Haus am See", "das Haus ist rot", "der See ist tief", "ein roter Hund"]
    tokenizer = train_tokenizer(lines, "bpe", 300)
    model = TransformerConfig(tokenizer.vocab_size, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    config = Config(
        model=model,
        data=DataConfig(max_length=16, batch_tokens=64),
        decoding=BeamConfig(beam_size=2, rows=8, buckets=(8, 16), extra_length=3),
    )
    task = Translation(config, (tokenizer, tokenizer))
    run = Run.create(tmp_path_factory.mktemp("runs") / "run", config, task, "corpus")
    for step, score in ((1, 20.0), (2, 10.0)):
        ids = jnp.ones((1, 2), jnp.int32)
        params = Transformer(model).init(jax.random.key(step), ids, ids)["params"]
        run.checkpoints.save(TrainState(jnp.asarray(step), params, {}, {}, None), {"bleu": score})
    run.checkpoints.finish_saving()
    return run.path


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """The folder of prepared corpora, shared by all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def command(monkeypatch, capfd):
    """Runs a command in this process: (exit status, standard output, standard error)."""

    def call(main, *arguments, stdin: bytes = b""):
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main()
        except SystemExit as stop:  # raised by tyro for --help and bad options
            status = stop.code
        return (status, *capfd.readouterr())

    return call


@pytest.mark.slow
def test_a_pipe_is_not_read_twice(run_dir, command, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").write_text("kept\n")
    for option in ("--input", "--reference"):
        status, _, errors = command(
            decode_main, run_dir, option, tmp_path / "pipe", "--output", tmp_path / "out"
        )
        assert status == 2
        assert f"{option} {tmp_path / 'pipe'} can be read only once" in errors
    assert (tmp_path / "out").read_text() == "kept\n"


@pytest.mark.by_default("--output")
@pytest.mark.parametrize("option", ["--output", "--explore"])
def test_a_full_disk(run_dir, command, option):
    status, _, errors = command(decode_main, run_dir, option, "/dev/full", stdin=b"ein Haus\n")
    assert status == 2
    assert f"cannot write {option} /dev/full: No space left on device" in errors


def test_the_options_are_those_of_the_run_and_not_of_the_judge(run_dir, command, tmp_path):
    shutil.copytree(run_dir, tmp_path / "judge")
    config = json.loads((run_dir / "config.json").read_text())
    config["decoding"]["method"] = "sample"
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config))
    outputs = [
        command(decode_main, *words, "--format", "scores", stdin=b"ein Haus\n\n")
        for words in ([run_dir, "--rescore", tmp_path / "judge"], ["--rescore", tmp_path / "judge", run_dir])
    ]
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][1].splitlines()[1] == "0.0000\t"  # empty, so certain
    status, _, errors = command(decode_main, run_dir, "--rescore", run_dir, "--n-best", "9", stdin=b"x\n")
    assert status == 2
    assert "--n-best 9: must be at least 1 and at most 2" in errors


@pytest.mark.by_default("")
@pytest.mark.parametrize(
    "text",
    ["ein Haus\n\nder See\n", "ein Haus\nohne Ende", "", "\n\n", "  \n日本語 🙂 e\u0301\n\u2028x\r\n"],
)
def test_one_line_in_one_line_out(run_dir, command, text):
    status, out, _ = command(decode_main, run_dir, stdin=text.encode())
    assert status == 0
    assert out.count("\n") == len(text.removesuffix("\n").split("\n")) if text else out == ""
    for line, translation in zip(text.split("\n"), out.split("\n"), strict=False):
        assert line.strip() or translation == ""


def test_files_and_scores(run_dir, command, tmp_path):
    (tmp_path / "in").write_text("ein Haus\nder See\n")
    (tmp_path / "good").write_text("the house\nthe lake\n")
    status, _, err = command(
        decode_main,
        run_dir,
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


def test_formats(run_dir, command):
    stdin = b"ein Haus\n\n"
    _, scores, _ = command(decode_main, run_dir, "--format", "scores", "--n-best", "2", stdin=stdin)
    lines = scores.splitlines()
    assert len(lines) == 4  # two for each, for the empty one too
    assert float(lines[0].split("\t")[0]) >= float(lines[1].split("\t")[0])
    _, text, _ = command(decode_main, run_dir, "--format", "json", "--alignments", stdin=stdin)
    about = [json.loads(line) for line in text.splitlines()]
    assert [(line["line"], line["source"]) for line in about] == [(1, "ein Haus"), (2, "")]
    first, empty = (line["hypotheses"] for line in about)
    assert len(first[0]["alignment"]) == len(first[0]["tokens"]) + 1
    assert len(first[0]["alignment"][0]) == len(about[0]["source_tokens"]) + 1
    assert "".join(about[0]["source_tokens"]).replace("▁", " ").strip() == "ein Haus"
    assert empty[0]["text"] == ""
    assert about[1]["source_tokens"] == []
    long = b"ein Haus am See das Haus ist rot der See ist tief ein roter Hund\n"
    _, text, _ = command(decode_main, run_dir, "--format=json", "--alignments", stdin=long)
    cut = json.loads(text)
    assert len(cut["source_tokens"]) + 1 == len(cut["hypotheses"][0]["alignment"][0]) <= 16


def test_checkpoints_and_search_options(run_dir, command):
    def out(*options):
        status, text, err = command(decode_main, run_dir, *options, stdin=b"das Haus ist rot\n" * 3)
        assert status == 0, err
        return text

    assert out() == out("--checkpoint", "best") == out("--checkpoint", "1") != out("--checkpoint", "last")
    assert out("--method", "greedy") == out("--beam-size", "1", "--length-penalty", "0")
    assert out("--int8", "--format", "scores") != out("--format", "scores")
    assert out("--method", "sample", "--seed", "1") == out("--method", "sample", "--seed", "1")
    drawn = out("--method", "sample", "--samples", "1").splitlines()
    assert len(set(drawn)) > 1  # identical lines have different samples


def test_average_command(run_dir, command):
    status, out, _ = command(average_main, run_dir, "--last", "2")
    assert status == 0
    assert "Averaged steps 1, 2" in out
    run = Run(run_dir)

    table = {
        checkpoint: np.asarray(run.variables(checkpoint)["params"]["source_embedding"]["table"])
        for checkpoint in (1, 2, "average")
    }
    assert np.allclose(table["average"], (table[1] + table[2]) / 2, rtol=0, atol=1e-8)
    assert command(average_main, run_dir, "--steps", "1", "9")[0] == 2


def test_devices_are_written_to_and_links_followed(run_dir, command, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True)
    assert command(decode_main, run_dir, "--output", tmp_path / "pipe", stdin=b"der See\n")[0] == 0
    assert reader.communicate()[0].count("\n") == 1
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert command(decode_main, run_dir, "--output", tmp_path / "link", stdin=b"\n")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "\n"


def test_overlong_input_is_cut_with_a_warning(run_dir, command, caplog):
    status, out, _ = command(decode_main, run_dir, stdin=b"Haus\n" + b"Haus " * 40 + b"\n")
    assert status == 0
    assert out.count("\n") == 2
    assert "line 2: truncated from" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["nowhere"], b"", "nowhere: no such run directory"),
        (
            ["RUN", "--checkpoint", "9"],
            b"",
            "has no checkpoint '9': choose best, last, average, or one of 1, 2",
        ),
        (["RUN", "--input", "missing.txt"], b"", "cannot read missing.txt: No such file"),
        (["RUN", "--output", "no/folder/out"], b"x\n", "cannot write --output no/folder/out"),
        (["RUN"], b"fine\nnot \xff fine\n", "standard input, line 2: not UTF-8 (byte 5)"),
        (
            ["RUN", "--n-best", "3"],
            b"x\n",
            "--n-best 3: must be at least 1 and at most 2, which this search keeps",
        ),
        (["RUN", "--beam-size", "0"], b"", "--beam-size must be from 1"),
        (["RUN", "--method", "sample", "--temperature", "0"], b"", "--temperature must be from 0.001"),
        (["RUN", "--alignments"], b"x\n", "--alignments needs --format json"),
        (["RUN", "--bleu-tokenize", "char"], b"x\n", "--bleu-tokenize needs --reference"),
        (["RUN", "--output", "."], b"x\n", "--output . is a folder: name a file"),
        (["RUN", "--output", "x" * 241], b"x\n", "a name of a file may have 240 bytes"),
        (["RUN", "--explore", "é" * 121], b"x\n", "a name of a file may have 240 bytes"),
        (["RUN", "--method=sample", "--temperature", "nan"], b"x\n", "--temperature must be from 0.001"),
        (["RUN", "--temperature", "0.5"], b"x\n", "--temperature is an option of sample and mbr, and this"),
        (["RUN", "--extra-length", "99999999999"], b"x\n", "--extra-length must be from 0"),
        (["RUN", "--beam-size", "200"], b"x\n", "--beam-size 200 is more than half the vocabulary"),
        (["RUN", "--beam-sise", "3"], b"", "beam-sise"),
        (["RUN", __file__], b"", "is a file, not a run: to translate it, give RUN --input"),
        ([], b"", "Missing from transformer decode"),
    ],
)
def test_decode_says_what_is_wrong(run_dir, command, tmp_path, monkeypatch, arguments, stdin, message):
    monkeypatch.chdir(tmp_path)
    arguments = [run_dir if word == "RUN" else word for word in arguments]
    status, out, err = command(decode_main, *arguments, stdin=stdin)
    assert status == 2
    assert message in " ".join((out + err).split())
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_references_that_do_not_fit(run_dir, command, tmp_path):
    (tmp_path / "in").write_text("a\nb\n")
    (tmp_path / "reference").write_text("a\n")
    arguments = (run_dir, "--input", tmp_path / "in", "--output", tmp_path / "out")
    status, _, err = command(decode_main, *arguments, "--reference", tmp_path / "reference")
    assert status == 2
    assert "in has 2 lines but" in err
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "reference").write_text("a\nb\n")
    status, _, err = command(decode_main, *arguments, "--reference", tmp_path / "reference")
    assert status == 2
    assert f"in has 1 line but {tmp_path}/reference has 2" in err
    assert not (tmp_path / "out").exists()
    status, _, err = command(decode_main, *arguments)
    assert status == 0
    assert "1 line in " in err


def test_a_file_is_not_translated_into_itself(run_dir, command, tmp_path):
    (tmp_path / "in").write_text("a\n")
    status, _, err = command(decode_main, run_dir, "--input", tmp_path / "in", "--output", tmp_path / "in")
    assert status == 2
    assert "is the file of --input, which would be lost" in err
    assert (tmp_path / "in").read_text() == "a\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bse"], "no preset 'bse': did you mean base?"),
        (["tiny", "rdrop"], "'rdrop' after 'tiny': give one preset, and --variant NAME or other options"),
        (["RUN"], "is a run, not a preset: to resume it, give --run-dir"),
        (["tiny-rdrop"], "no preset 'tiny-rdrop': use transformer train tiny --variant rdrop"),
        (["tiny-recurrent-dot"], "use transformer train tiny-recurrent --variant dot"),
        (["A-heads-4"], "use transformer train PRESET --variant A-heads-4"),
        (["tiny", "--variant=rdorp"], "no variant 'rdorp': did you mean rdrop?"),
        (["--variant"], "--variant needs a name, such as --variant rdrop; see --list-presets"),
        (
            ["tiny-recurrent", "--variant", "additive"],
            "variant additive: it changes --model.cross-mechanism, which system recurrent does not have",
        ),
        (["speech", "--variant", "fat"], "variant fat: it is for system transformer, not for speech"),
        (["tiny", "--variant", "fat", "--variant", "dot"], "variant dot: it is for system recurrent, not"),
        (["shakespeare", "--variant", "linear"], "variant linear: --model.mechanism linear: it cannot"),
        (["--variant", "rdrop", "--variant", "scheduled"], "leave one of them out"),
        (["tiny", "--variant", "risk"], "variant risk needs --init-from RUN"),
        (["--model.num-headz", "3"], "num-headz"),
        (["--model.d-model", "130"], "--model.d-model 130 is not divisible by --model.num-heads 4"),
        (["--model.dropout", "1"], "--model.dropout must be in [0, 1)"),
        (
            ["--data.batch-tokens", "20"],
            "--data.batch-tokens 20 cannot hold one row of --data.max-length 40",
        ),
        (["--data.dataset", "nonsense"], "--data.dataset nonsense: no such TFDS dataset"),
        (["--data.train-source", "a.en"], "--data.train-target is missing"),
        (["--data.no-joint-vocabulary"], "needs --model.share-embeddings target"),
        (
            ["--data.vocab-size", "90000", "--data.built-in-size", "500"],
            "--data.vocab-size 90000 is more than",
        ),
        (["--data.source-tokenizer", "x.model"], "x.model"),
        (["--system", "perceptron"], "--system perceptron: unknown; there are transformer"),
        (["--training.steps", "0"], "--training.steps must be from 1"),
        (["--training.epochs", "0"], "--training.epochs 0: must be positive"),
        (["--training.epochs=2", "--training.steps", "9"], "are both the length of training: leave one"),
        (["--training.seed", "-1"], "--training.seed must be from 0"),
        (["--optimizer.peak", "nan"], "--optimizer.peak must be a finite number"),
        (["--run-dir", "/dev/null/x"], "cannot create /dev/null/x"),
        (["--optimizer.clip-norm", "-1"], "--optimizer.clip-norm must be positive"),
    ],
)
def test_train_says_what_is_wrong(command, cache, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMER_CACHE", str(cache))
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN/config.json").touch()
    arguments = [*arguments, "--data.built-in-size", "500"] if "90000" not in arguments else arguments
    status, out, err = command(train_main, *arguments)
    assert status == 2
    assert message in " ".join((out + err).replace("│", " ").split())
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_the_scripts_at_the_top_run():
    for script in ("train.py", "decode.py"):
        ended = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_line_in_a_slow_pipe_is_answered_at_once(run_dir):
    """Before any other line, or the end of the input, has arrived."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "decode.py", run_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    for line in ("der See\n", "ein Haus\n", "\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline().endswith("\n")
    rest, said = process.communicate("das Haus\nder Hund")
    assert rest.count("\n") == 2
    assert process.returncode == 0, said


@pytest.mark.slow
def test_a_typed_line_is_answered_at_once(run_dir):
    """On a terminal: a hint, and nothing between the translations."""
    ours, theirs = pty.openpty()
    with (
        subprocess.Popen(
            [sys.executable, ROOT / "decode.py", run_dir, "--method", "greedy"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process,
        open(ours, "rb", buffering=0) as terminal,
    ):
        os.close(theirs)
        said = b""

        def until(what: bytes) -> None:
            nonlocal said
            while what not in said:
                said += terminal.read(1)

        until(b"Ctrl-D to end\r\n")
        hint, said = said, b""
        assert hint == b"one line at a time; Ctrl-D to end\r\n"
        for _ in range(2):
            os.write(ours, b"der See\n")
            until(b"der See\r\n")  # the echo of the terminal
            echo, said = said, b""
            until(b"\n")
            assert b"\x1b" not in echo + said  # no bar is drawn
            answer, said = said, b""
        os.write(ours, b"\x04")
        assert process.wait() == 0
        with contextlib.suppress(OSError):  # the terminal has ended
            assert not terminal.read()
        assert answer


@pytest.mark.slow
def test_two_devices_translate_like_one(run_dir, command):
    """Full batches, whose rows are sharded, and a few sentences, whose rows cannot be."""
    for lines in (3, 80):
        text = "".join(f"{'w ' * (1 + index % 7)}\n" for index in range(lines))
        status, alone, errors = command(decode_main, run_dir, stdin=text.encode())
        assert status == 0, errors
        words = [sys.executable, ROOT / "decode.py", run_dir]
        ended = subprocess.run(words, input=text, capture_output=True, text=True, env=on_devices(2))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == alone
        assert alone.count("\n") == lines


def test_a_closed_pipe_is_no_error(run_dir):
    program = f"{sys.executable} {ROOT / 'decode.py'} {run_dir} | head -1"
    ended = subprocess.run(
        program, shell=True, input="der See\n" * 200, capture_output=True, text=True, env=os.environ
    )
    assert "Traceback" not in ended.stderr
