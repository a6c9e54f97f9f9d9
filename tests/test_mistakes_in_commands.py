"""Bad input of train.py and decode.py gives one message and status 2."""

from pathlib import Path

import pytest

from transformer.cli.output_file import RUN_FILES
from transformer.commands.decode import decode_main
from transformer.commands.given_outputs import align_main
from transformer.commands.models import report_main
from transformer.commands.tables import ngram_main
from transformer.commands.train import train_main

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """The folder of prepared corpora, shared by all tests here."""
    return tmp_path_factory.mktemp("cache")


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
        (["RUN"], b"RIFF\xa4\0\0\0WAVEfmt ", "standard input is an audio file, and lines are read"),
        (
            ["RUN", "--n-best", "3"],
            b"x\n",
            "--n-best 3: must be at least 1 and at most 2, which this search keeps",
        ),
        (["RUN", "--n-best", "-3"], b"x\n", "--n-best -3: must be at least 1 and at most 2"),
        (["RUN", "--beam-size", "0"], b"", "--beam-size must be from 1"),
        (["RUN", "--method", "sample", "--temperature", "0"], b"", "--temperature must be from 0.001"),
        (["RUN", "--alignments"], b"x\n", "--alignments needs --format json"),
        (["RUN", "--bleu-tokenize", "char"], b"x\n", "--bleu-tokenize needs --reference"),
        (["RUN", "--output", "."], b"x\n", "--output . is a folder: name a file"),
        (["RUN", "--output", "x" * 241], b"x\n", "a name of a file may have 240 bytes"),
        (["RUN", "--explore", "é" * 121], b"x\n", "a name of a file may have 240 bytes"),
        (["RUN", "--method=sample", "--temperature", "nan"], b"x\n", "--temperature must be a finite number"),
        (["RUN", "--temperature", "0.5"], b"x\n", "--temperature is an option of sample and mbr, and this"),
        (["RUN", "--extra-length", "99999999999"], b"x\n", "--extra-length must be from 0"),
        (["RUN", "--beam-size", "200"], b"x\n", "--beam-size 200 is more than half the vocabulary"),
        (["RUN", "--beam-sise", "3"], b"", "beam-sise"),
        (["RUN", "--seed", "3"], b"x\n", "--seed: nothing is drawn in this search; leave it out"),
        (
            ["RUN", "--length-penalty=0", "--penalty", "power"],
            b"x\n",
            "--penalty: there is no length penalty",
        ),
        (["RUN", "--method=mbr", "--length-penalty", "2"], b"x\n", "--length-penalty: method mbr compares"),
        (
            ["RUN", "--choices", "a", "b", "--temperature-of-choices", "2"],
            b"x\n",
            "--temperature-of-choices needs --format scores or json",
        ),
        (["RUN", __file__], b"", "is a file, not a run: to translate it, give RUN --input"),
        ([], b"", "Missing from transformer decode"),
    ],
)
def test_decode_says_what_is_wrong(untrained_run, call, tmp_path, monkeypatch, arguments, stdin, message):
    monkeypatch.chdir(tmp_path)
    arguments = [untrained_run if word == "RUN" else word for word in arguments]
    status, out, err = call(decode_main, *arguments, stdin=stdin)
    assert status == 2
    assert message in " ".join((out + err).split())
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_references_that_do_not_fit(untrained_run, call, tmp_path, refused):
    (tmp_path / "in").write_text("a\nb\n")
    (tmp_path / "reference").write_text("a\n")
    arguments = (untrained_run, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert "in has 2 lines but" in refused(decode_main, *arguments, "--reference", tmp_path / "reference")
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "reference").write_text("a\nb\n")
    err = refused(decode_main, *arguments, "--reference", tmp_path / "reference")
    assert f"in has 1 line but {tmp_path}/reference has 2" in err
    assert not (tmp_path / "out").exists()
    status, _, err = call(decode_main, *arguments)
    assert status == 0
    assert "1 line in " in err


@pytest.mark.parametrize("option", ["--input", "--reference", "--glossary", "--lm", "--bias", "--document"])
def test_a_file_that_is_read_is_not_replaced(untrained_run, tmp_path, option, refused):
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "named").write_text("a\n")
    words = [] if option in ("--input", "--document") else ["--input", tmp_path / "in"]
    for output in ("--output", "--flags") if option == "--document" else ("--output",):
        asked = [*words, option, tmp_path / "named", output, tmp_path / "named"]
        assert f"is the file of {option}, which would be lost" in refused(decode_main, untrained_run, *asked)
    assert (tmp_path / "named").read_text() == "a\n"


def test_a_file_of_a_run_is_not_replaced(untrained_run, tmp_path, refused):
    before = {path: path.read_bytes() for path in untrained_run.iterdir() if path.is_file()}
    assert {path.name for path in before} <= RUN_FILES
    run, page = untrained_run, untrained_run / "config.json"
    for main, words in (
        (decode_main, [run, "--output", page]),
        (decode_main, [run, "--explore", page]),
        (ngram_main, [run, "--input", tmp_path / "in", "--output", page]),
        (align_main, [run, "--input", tmp_path / "in", "--output", page]),
        (report_main, [run, run, "--output", page]),
    ):
        assert "config.json is a file of a run, which would be lost" in refused(main, *words)
    assert "its name is that of a picture" in refused(decode_main, run, "--output", tmp_path / "x.png")
    for name in "x.gz", "x.Parquet":
        assert "its name is that of a compressed file" in refused(
            decode_main, run, "--output", tmp_path / name
        )
    assert before == {path: path.read_bytes() for path in run.iterdir() if path.is_file()}


@pytest.mark.thorough("arguments21---data.vocab-size 90000 is more than")
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
        (["--decoding.seed", "3"], "--decoding.seed: nothing is drawn in this search; leave it out"),
        *(
            (words.split(), f"{words.split()[0]}: no score of this task reads it; leave it out")
            for words in (
                "--training.error-rate words",
                "--training.text-normalisation basic",
                "--training.bleu-tokenize 13a --data.task labels",
                "--training.bleu-tokenize 13a --system tagging",
            )
        ),
        *(
            (words.split(), f"{words.split()[-2]}: it has no effect without --{needed}")
            for words, needed in (
                ("--optimizer.scale 2", "optimizer.schedule paper"),
                (
                    "--optimizer.schedule paper --optimizer.peak 1",
                    "optimizer.schedule inverse_sqrt or",
                ),
                ("--optimizer.decay 0.5", "optimizer.schedule exponential or plateau"),
                ("--optimizer.algorithm adam --optimizer.matrix-scale 2", "optimizer.algorithm muon"),
                ("--optimizer.algorithm adafactor --optimizer.beta1 0", "optimizer.algorithm adam or muon"),
                ("--model.max-positions 9", "model.positions learned"),
                ("--model.encoder-stack.position-buckets 9", "model.positions buckets"),
                ("--model.location-width 3", "model.cross-mechanism location"),
                ("--scheduled.updates 9", "scheduled.share, which is 0"),
                ("--adapter.base-step 9", "adapter.rank, which is 0"),
            )
        ),
    ],
)
def test_train_says_what_is_wrong(call, cache, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMER_CACHE", str(cache))
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN/config.json").touch()
    arguments = [*arguments, "--data.built-in-size", "500"] if "90000" not in arguments else arguments
    status, out, err = call(train_main, *arguments)
    assert status == 2
    assert message in " ".join((out + err).replace("│", " ").split())
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
