"""Many files are decoded as decode.py decodes each, also if the job or a worker is interrupted."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invented_sound import write_digits
from run_command import on_devices
from small_run import WORDS
from test_serving_systems import one_run

from transformer import UserError
from transformer.commands.decode_files import Worker, decode_files_main
from transformer.commands.file_shards import input_files
from transformer.commands.translations import Translations
from transformer.systems.registry import REGISTRY

ROOT = Path(__file__).parent.parent


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files of 0 to 14 lines, one of them in a folder, one packed."""
    monkeypatch.chdir(tmp_path)
    names = ["in/part-0.en", "in/more/part-1.en", "in/part-2.en.gz", "in/part-3.en"]
    for number, name in enumerate(names):
        lines = [f"{WORDS[i % 9]} {WORDS[(i + number) % 7]}" if i % 5 else "" for i in range(14)]
        text = "".join(line + "\n" for line in lines) if number < 3 else ""
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return [Path(name) for name in names]


def files_in(folder: Path) -> dict[str, str]:
    """What is in the files of a folder that are not hidden."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".decoding" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def numbers_of(text: str) -> list[tuple[int, str]]:
    """The number and the best text of each line of JSON."""
    objects = map(json.loads, text.splitlines())
    return [(each["line"], each["hypotheses"][0]["text"]) for each in objects]


@pytest.fixture
def run(call, decoder, texts):
    """`run(*options)`: decodes the files of `texts` into the folder `out`."""

    def command(*options: object, pattern: str = "in/**/*.en*") -> tuple[object, str, str]:
        always = "--shard-lines", 4, "--output", "out"
        return call(decode_files_main, decoder, "--input", pattern, *always, *options)

    return command


def test_each_file_is_decoded_as_by_decode_py(run, call, decode, decoder, texts):
    options = "--method", "sample", "--format", "json"  # samples depend on the number of the line
    status, _, errors = run(*options)
    assert status == 0, errors
    assert "42 lines of 4 files in" in errors
    assert "written to out\n" in errors
    outputs = files_in(Path("out"))
    assert outputs.keys() == {"part-0.en", "more/part-1.en", "part-2.en", "part-3.en"}
    for path in texts:
        status, whole, _ = decode(decoder, "--input", path, *options)
        name = str(path.relative_to("in")).removesuffix(".gz")
        assert numbers_of(outputs[name]) == numbers_of(whole)


def test_the_same_command_continues(run, monkeypatch, texts):
    decode, firsts, until = Worker.decode, [], [5]

    def interrupted(self, shard):
        if len(firsts) in until:
            raise KeyboardInterrupt
        firsts.append((shard.name, shard.first))
        return decode(self, shard)

    monkeypatch.setattr(Worker, "decode", interrupted)
    status, _, errors = run()
    assert (status, "the same command continues" in errors) == (130, True), errors
    assert len(files_in(Path("out"))) == 1
    status, _, errors = run("--beam-size", 1)
    assert (status, "made with other options" in errors) == (2, True), errors
    monkeypatch.setattr(
        Worker, "decode", lambda self, shard: firsts.append((shard.name, shard.first)) or decode(self, shard)
    )
    status, _, errors = run("--shard-lines", 4)
    assert (status, "continuing: 18 of 42 lines" in errors) == (0, True), errors
    assert len(firsts) == len(set(firsts)) == 12
    assert not any(Path("out/.decoding/parts").rglob("*-*"))
    broken = files_in(Path("out"))
    assert run("--output", "again")[0] == 0
    assert files_in(Path("again")) == broken
    Path("in/new.en").write_text("ein Haus\n")
    assert run()[0] == 0  # of which only the new file is decoded
    assert firsts[-1:] == [("new.en", 1)]
    texts[0].write_text("ein See\n")
    status, _, errors = run()
    assert (status, "in/part-0.en has changed since it was decoded" in errors) == (2, True), errors
    Path("out/.decoding/job.json").write_text('{"job": "", "files": 5}')
    status, _, errors = run()
    assert (status, "job.json is damaged: its files must be an object; remove" in errors) == (2, True), errors


def test_a_wrong_line_has_an_empty_output_and_a_reason(run, monkeypatch):
    lines = [b"ein Haus", b"a\tb\tc\td\te\tf", b"\xff", b"der See", b"the trap", b"Haus"]
    Path("in/wrong.en").write_bytes(b"\n".join(lines))
    ordinary = Translations.of

    def of(self, numbered):  # what is found when the lines are searched
        numbered = list(numbered)
        if any("trap" in line for _, line in numbered):
            raise UserError("line 5: it is a trap")
        return ordinary(self, numbered)

    monkeypatch.setattr(Translations, "of", of)
    status, _, errors = run("--tsv", pattern="in/wrong.en")
    assert (status, "6 lines of 1 file" in errors) == (0, True), errors
    assert "of which 3 have no output: out/errors.jsonl says why" in errors
    outputs = files_in(Path("out"))
    assert [bool(line) for line in outputs["wrong.en"].splitlines()] == [n in (1, 4, 6) for n in range(1, 7)]
    with Path("out/errors.jsonl").open("a") as file:
        file.write('{"line": "x"}\n{"file": "wrong.en", "line": null}\n')
    assert run("--tsv", pattern="in/wrong.en")[0] == 0
    assert files_in(Path("out")) == outputs
    listed = [json.loads(line) for line in outputs["errors.jsonl"].splitlines()]
    assert [(each["file"], each["line"]) for each in listed] == [("wrong.en", n) for n in (2, 3, 5)]
    assert [each["error"] for each in listed[1:]] == ["not UTF-8, or longer than 64 MiB", "it is a trap"]
    status, _, errors = run("--jsonl", "--output", "other", pattern="in/part-0.en")
    assert (status, "part-0.en, lines 1 to 4: --jsonl reads a JSON object" in errors) == (2, True), errors


def test_ids_of_json_lines_are_copied(run):
    Path("in/ids.json").write_text('{"id": "a7", "source": "ein Haus"}\n{"source": "der See"}\n{"id": 3}\n')
    assert run("--jsonl", "--format", "json", pattern="in/ids.json")[0] == 0
    objects = [json.loads(line) for line in files_in(Path("out"))["ids.json"].splitlines()]
    assert [each.get("id") for each in objects] == ["a7", None, 3]


def test_rows_of_parquet(run):
    from pyarrow import array, parquet, table

    rows = {"id": [7, 8, 9], "source": ["ein Haus", None, "der See"], "other": ["a", "b", "c"]}
    parquet.write_table(table(rows), "in/rows.parquet")
    assert run("--column", "source", pattern="in/rows.parquet")[0] == 0
    assert [bool(line) for line in files_in(Path("out"))["rows.txt"].splitlines()] == [True, False, True]
    assert run("--jsonl", "--format", "json", "--output", "rows", pattern="in/rows.parquet")[0] == 0
    objects = [json.loads(line) for line in files_in(Path("rows"))["rows.jsonl"].splitlines()]
    assert [each["id"] for each in objects] == [7, 8, 9]
    broken = array([b"Haus", b"\xff", b"See", b"\xff"]).cast("string", safe=False)
    parquet.write_table(table({"text": broken}), "in/broken.parquet")
    status, _, errors = run("--column", "text", "--output", "more", pattern="in/broken.parquet")
    assert (status, "of which 2 have no output" in errors) == (0, True), errors
    assert [bool(line) for line in files_in(Path("more"))["broken.txt"].splitlines()] == [
        True,
        False,
        True,
        False,
    ]
    for options, message in (
        ([], "--column names the one with text"),
        (["--column", "no"], "rows.parquet, row 1: --column no must be text"),
        (["--column", "id"], "row 1: --column id must be text"),
    ):
        status, _, errors = run(*options, "--output", "none", pattern="in/rows.parquet")
        assert (status, message in errors) == (2, True), errors
    parquet.write_table(table({"source": [b"Haus", b"See"]}), "in/bytes.parquet")
    status, _, errors = run("--jsonl", "--output", "bytes", pattern="in/bytes.parquet")
    assert (status, "of which 2 have no output" in errors) == (0, True), errors
    assert "source must be text" in files_in(Path("bytes"))["errors.jsonl"]


def test_parquet_that_says_it_has_more_rows(run):
    """A number of rows in a file's footer is no size of what is allocated, nor the bound of a loop."""
    from pyarrow import parquet, table

    rows, more = 7777, 7777 * 10**11
    parquet.write_table(table({"source": ["ein Haus"] * rows}), "in/rows.parquet")
    content = Path("in/rows.parquet").read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:-8]
    for count in (1, -1):  # of the file; of its parts too
        long = footer.replace(b"\x16" + varint(2 * rows), b"\x16" + varint(2 * more), count)
        size = len(long).to_bytes(4, "little")
        Path("in/rows.parquet").write_bytes(content[:start] + long + size + b"PAR1")
        status, _, errors = run("--column", "source", pattern="in/rows.parquet")
        assert (status, errors.count("\n")) == (2, 1), errors
        assert f"in/rows.parquet is damaged: it says that it has {more:,} rows, and has 7,777" in errors


def varint(number: int) -> bytes:
    """As Thrift writes it: seven bits a byte, and whether more follow."""
    return bytes([number % 128 + 128]) + varint(number // 128) if number > 127 else bytes([number])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reference", "x"], "--reference: decode-files has no use for it"),
        (["--stream"], "--stream"),
        (["--output", "in"], "--output in: other files are there; name a new folder"),
        (["--output", "gs://bucket/x"], "--output"),
        (["--input", "none-*"], "--input none-*: no file has such a name"),
        (["--engine", "ray"], "--engine ray needs ray: pip install '.[cluster]'"),
    ],
)
def test_what_is_refused(run, options, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    status, _, errors = run(*options)
    assert (status, message in errors) == (2, True), errors


@pytest.mark.by_default("captioning")
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_system_that_decodes_lines(name, call, decode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the run's corpus is prepared
    run, listed = one_run(name, tmp_path), tmp_path / "in"
    lines = ["A dog runs.", "", "Two men talk."]
    if name == "language-model":
        lines = ["45", "", "none of these is a character of the text"]
    if name in ("captioning", "detection"):
        pytest.importorskip("PIL")
        lines = ["test:1", "none.png", "test:0"]
    if name == "speech":
        pytest.importorskip("soundfile")
        write_digits(tmp_path, 1)
        lines = ["0.wav", "none.wav"]
    listed.write_text("".join(line + "\n" for line in lines))
    status, _, errors = call(
        decode_files_main, run, "--input", listed, "--output", tmp_path / "out", "--shard-lines", 2
    )
    if status:  # whose outputs are no text, or that have none
        assert re.search(
            "beside its output: decode.py has it|has no outputs that decode.py can write", errors
        )
        return
    outputs = (tmp_path / "out" / "in").read_text().splitlines()
    wrong = [number for number, line in enumerate(lines) if line.startswith("none")]
    verb = "has" if len(wrong) == 1 else "have"
    assert (f"of which {len(wrong)} {verb} no output" in errors) == bool(wrong), errors
    listed.write_text("".join(line + "\n" for line in lines if not line.startswith("none")))
    status, written, errors = decode(run, "--input", listed)
    assert status == 0, errors
    expected = written.splitlines()
    for number in wrong:
        expected.insert(number, "")
    assert outputs == expected


def test_outputs_are_named_by_what_follows_the_fixed_folders(texts):
    assert input_files(Path("in/part-0.en")).keys() == {"part-0.en"}
    assert input_files(Path("in/*/*.en")).keys() == {"more/part-1.en"}
    assert input_files(Path(f"file://{Path.cwd()}/in/**/part-[01].en")).keys() == {
        "part-0.en",
        "more/part-1.en",
    }
    Path("in/part-2.en").write_text("")
    with pytest.raises(UserError, match="another output is named part-2.en"):
        input_files(Path("in/*"))
    Path("in/more.gz").write_bytes(gzip.compress(b"red\n"))
    with pytest.raises(UserError, match="in/more/part-1.en: another output is named more"):
        input_files(Path("in/**/[mp]*[1z]*"))


@pytest.mark.slow
def test_a_worker_that_is_killed(decoder, tmp_path, decode):
    """Two workers of a cluster, one of which is killed while it decodes."""
    pytest.importorskip("ray")
    (tmp_path / "in").mkdir()
    for name in "ab":
        lines = (f"{WORDS[i % 9]} {WORDS[i % 7]} {WORDS[i % 5]}\n" for i in range(150))
        (tmp_path / "in" / name).write_text("".join(lines))
    command = [
        sys.executable,
        "-m",
        "transformer",
        "decode-files",
        decoder,
        "--input",
        "in/*",
        "--output",
        "out",
    ]
    options = ["--engine", "ray", "--workers", 2, "--cores", 1, "--shard-lines", 10]
    mark = f"OF_THIS_TEST={os.getpid()}"
    environment = {**on_devices(1), "PYTHONPATH": str(ROOT), "OF_THIS_TEST": str(os.getpid())}
    with subprocess.Popen(
        list(map(str, command + options)), cwd=tmp_path, env=environment, stdout=-3, stderr=-1, text=True
    ) as process:
        while not any((tmp_path / "out").rglob("*-*")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        actors = [path for path in Path("/proc").glob("[0-9]*") if is_actor(path, mark)]
        assert len(actors) == 2
        os.kill(int(actors[0].name), signal.SIGKILL)
        errors = process.communicate(timeout=120)[1]
    assert (process.returncode, "300 lines of 2 files" in errors) == (0, True), errors
    for name in "ab":
        expected = decode(decoder, "--input", tmp_path / "in" / name)[1]
        assert (tmp_path / "out" / name).read_text() == expected


def is_actor(process: Path, mark: str) -> bool:
    """Whether a process of /proc is an actor that was started in an environment with this mark."""
    try:
        title = (process / "cmdline").read_bytes()
        return title.startswith(b"ray::Worker") and mark.encode() in (process / "environ").read_bytes()
    except OSError:
        return False
