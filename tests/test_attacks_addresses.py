"""Strings in run directories that look like paths or addresses: nothing is looked for, nothing is reached."""

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from run_command import command

from transformer import Config, Run, UserError
from transformer.cli.decode_arguments import parse_decode, positional
from transformer.commands.main import COMMANDS, main
from transformer.commands.train import _initialised_from
from transformer.config.decoding import BeamConfig
from transformer.config.searches import methods_of
from transformer.data import remote
from transformer.data.sources.pictures import read_manifest
from transformer.data.sources.recordings import listed_columns, read_recording_list
from transformer.data.sources.source import listed
from transformer.data.sources.text_files import matching
from transformer.runs.config_json import to_json
from transformer.systems.nonautoregressive.options import NonAutoregressiveConfig
from transformer.systems.presets import PRESETS
from transformer.systems.registry import REGISTRY, options_of
from transformer.tasks.media.pictures import listed_file

WITH_PHRASES = [name for name in REGISTRY if issubclass(options_of(name).decoding, BeamConfig)]


STRINGS = {
    "a text of training, validation or test": """data.dataset data.train data.train_source data.train_target
        data.train_tsv data.validation data.validation_source data.validation_target data.validation_tsv
        data.test data.test_source data.test_target data.test_tsv""",
    "a file or folder that a run begins with": """data.add_tokens data.cache_dir data.exchange
        data.source_tokenizer data.target_tokenizer model.teacher training.init_encoder_from""",
    "its last part names a folder beside an adapter": "training.init_from",
    "names of columns, fields and languages": """data.add_language data.audio_feature data.directions
        data.group data.inputs data.separator data.source_language data.target data.target_language
        data.text_feature""",
    "rules": "data.filter data.noise",
    "names of parameters": "adapter.pattern model.fixed optimizer.groups training.freeze",
    "a hash": "adapter.base_hash",
    "phrases": "decoding.forbidden",
    "names of corpora, in the names of files that the command line gives": "data.default_tag data.mix",
    "one of the systems that are installed": "system",
}
"""Every string that the config of a run may hold beside those of a fixed list, by what it stands for. Those
of the first two kinds are opened only if the command line of a training names them, the others never."""


def strings_of(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The names of a config's strings and paths, and their types."""
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = get_type_hints(kind)[item.name]
        if dataclasses.is_dataclass(hint):
            yield from strings_of(hint, f"{prefix}{item.name}.")  # type: ignore[arg-type]
        elif {str, Path} & set(get_args(hint) or (hint,)):
            yield prefix + item.name, hint


def test_every_string_of_a_run_is_known() -> None:
    found = {name for name, _ in strings_of(Config)}
    for system in REGISTRY:
        types = options_of(system)
        searches = methods_of(types.decoding).values()
        for section, kinds in ("model", [types.model]), ("data", [types.data]), ("decoding", searches):
            found |= {name for kind in kinds for name, _ in strings_of(kind, f"{section}.")}
    assert found == {name for names in STRINGS.values() for name in names.split()}


def test_no_string_of_a_run_is_opened(decoder: Path, tmp_path: Path, reached: list[str]) -> None:
    """A run whose every string is an address, or a folder that exists: it is opened, or refused."""
    trap = tmp_path / "trap" / "strings"
    trap.mkdir(parents=True)
    (trap / "config.json").write_text("{}")
    stored = json.loads((decoder / "config.json").read_text())
    opened: list[str] = []
    is_on = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on and event in ("open", "os.listdir", "os.scandir", "socket.connect"):
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    kinds = Run(decoder).config
    names = [
        (section.name, name, hint)
        for section in dataclasses.fields(kinds)
        if dataclasses.is_dataclass(getattr(kinds, section.name))
        for name, hint in strings_of(type(getattr(kinds, section.name)))
    ]
    assert len(names) > 20
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    for value in ("webhdfs://127.0.0.1:8990/x/config", str(trap)):
        for section, name, hint in names:
            config = json.loads(json.dumps(stored))
            config[section][name] = [value] if get_origin(hint) is tuple else value
            (run_dir / "config.json").write_text(json.dumps(config))
            with contextlib.suppress(UserError):
                assert Run(run_dir).task
                parse_decode([str(run_dir)])
    is_on = False
    assert opened
    assert reached == []
    assert [path for path in opened if "trap" in path or "8990" in path] == []


COMMAND_LINES = {
    "train": ["--run-dir", "RUN"],
    "decode": ["RUN", "--input", "LINES", "--output", "OUT"],
    "decode-files": ["RUN", "--input", "LINES", "--output", "OUT"],
    "align": ["RUN", "--input", "LINES", "--output", "OUT"],
    "score": ["RUN", "--source", "LINES", "--target", "LINES", "--output", "OUT"],
    "average": ["RUN"],
    "distill": ["RUN", "OUT"],
    "import": ["RUN", "OUT"],
    "export": ["RUN", "OUT"],
    "shortlist": ["RUN", "--source", "LINES", "--target", "LINES"],
    "calibrate": ["RUN"],
    "ngram": ["RUN", "--input", "LINES", "--output", "OUT"],
    "serve": ["RUN"],
    "report": ["RUN"],
}
"""What each command that takes a run is given: nothing of a path that the run names."""


def test_all_commands_are_known() -> None:
    assert {*COMMAND_LINES, "doctor"} == {*COMMANDS}  # which takes none


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_no_command_opens_a_path_that_a_run_names(
    name: str, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text files, a cache, models to begin with: each is there, and could be read or written."""
    trap = tmp_path / "trap"
    trap.mkdir()
    for file in "train", "other":
        (trap / file).write_text("red\ngreen\nblue\n" * 10)
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    config = Run(run_dir).config
    texts = {"train_source": trap / "train", "train_target": trap / "other"}
    data = replace(config.data, **texts, cache_dir=trap / "cache", source_tokenizer=trap / "train")
    training = replace(config.training, init_encoder_from=trap)
    (run_dir / "config.json").write_text(to_json(replace(config, data=data, training=training)))
    lines = tmp_path / "lines"
    lines.write_text("red\ngreen\n")
    opened: list[str] = []
    is_on = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on and event in ("open", "os.listdir", "os.scandir", "os.mkdir") and arguments[0] is not None:
            opened.append(str(arguments[0]))

    named = {"RUN": str(run_dir), "LINES": str(lines), "OUT": str(tmp_path / "out")}
    words = [named.get(word, word) for word in COMMAND_LINES[name]]
    monkeypatch.setattr("sys.argv", ["transformer", name, *words])
    monkeypatch.setattr("transformer.serve.server.serve", lambda *_: None)
    monkeypatch.setattr("os._exit", lambda status: None)
    sys.addaudithook(hook)
    status = main()
    is_on = False
    assert status in (0, 2)
    assert any(path.startswith(str(run_dir)) for path in opened)
    assert [path for path in opened if str(trap) in path] == []
    assert sorted(path.name for path in trap.iterdir()) == ["other", "train"]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were asked for."""
    addresses: list[str] = []

    def opened(where: str) -> None:
        addresses.append(where)
        raise UserError(f"{where} was asked for")

    monkeypatch.setattr(remote, "opened", opened)
    return addresses


def config_of(system: str) -> Config:
    types = options_of(system)
    teacher = {"teacher": Path("ftp://127.0.0.1:2121/teacher")} if system == "nonautoregressive" else {}
    model = types.model(vocab_size=13, **teacher)
    return Config(system=system, model=model, decoding=types.decoding(), data=types.data())


@pytest.mark.parametrize("system", WITH_PHRASES)
def test_phrases_of_a_run_are_no_addresses_and_no_paths(
    system: str, tmp_path: Path, reached: list[str]
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    phrases = ("ftp://127.0.0.1:2121/secret", "cat:", "foo://b", "ä" * 200, str(run_dir))
    config = config_of(system)
    config = replace(config, decoding=replace(config.decoding, forbidden=phrases))
    (run_dir / "config.json").write_text(to_json(config))
    assert parse_decode([str(run_dir), "--n-best", "1"]).decoding.forbidden == phrases
    assert reached == []


def test_nor_are_those_of_the_command_line(decoder: Path, reached: list[str]) -> None:
    phrases = ["cat:", "foo://b", "ftp://127.0.0.1:2121/secret", "ä" * 200]
    given = parse_decode([str(decoder), "--forbidden", *phrases])
    assert (given.run_dir, given.decoding.forbidden) == (decoder, tuple(phrases))
    assert reached == []
    with pytest.raises(UserError, match="--forbidden takes all words after it: name the run"):
        parse_decode([str(decoder), "--forbidden", "red", str(decoder)])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("RUN --forbidden a b", "RUN"),
        ("--beam-size 4 RUN", "RUN"),
        ("--beam_size=4 RUN MORE --int8", "RUN MORE"),
        ("--int8 --no-times RUN", "RUN"),
        ("--rescore OTHER --pronunciation SPOKEN --input gs://b/text RUN", "RUN"),
        ("--forbidden a RUN", ""),
        ("--forbidden=a RUN", "RUN"),
        ("--no-repeat-ngram 3 --seed -1 RUN", "RUN"),
        ("--hosts.processes 2 --data.buckets 8 16 --data.max-length 8 -v RUN", "RUN"),
    ],
)
def test_only_words_that_name_a_run_are_looked_for(words: str, expected: str) -> None:
    assert list(positional(words.split())) == expected.split()


def test_a_run_to_begin_with_names_no_teacher(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(to_json(config_of("nonautoregressive")))
    parent = Run(tmp_path).config.model
    assert isinstance(parent, NonAutoregressiveConfig)
    assert parent.teacher
    begun = _initialised_from(str(tmp_path), PRESETS["quickstart"], network=True)
    assert begun.model == replace(parent, teacher=None)


@pytest.mark.slow
def test_control_characters_of_a_run_do_not_reach_the_terminal(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    config = json.loads((run_dir / "config.json").read_text())
    config["decoding"]["forbidden"] = ["\x1b]0;evil\x07", "[/red]", "%(x)d"]
    (run_dir / "config.json").write_text(json.dumps(config))
    for words in (["decode.py", run_dir, "--help"], ["decode.py", run_dir, "--forbiden", "x"]):
        done = command(*words)
        assert "evil" in done.stdout + done.stderr
        assert not {"\x1b", "\x07"} & set(done.stdout + done.stderr)


MANIFESTS = {
    "recordings": (read_recording_list, "list.tsv", "{}\tone"),
    "captions": (partial(read_manifest, annotation="captions"), "list.tsv", "{}\tone"),
    "boxes": (partial(read_manifest, annotation="boxes"), "list.jsonl", '{{"picture": "{}", "boxes": []}}'),
}
LISTS = {
    "a line of recordings": lambda name, manifest: listed_columns(name, manifest, 1),
    "a line of pictures": lambda name, manifest: listed_file(name, manifest, 1),
    **{
        kind: lambda name, manifest, read=read, at=at, line=line: (
            manifest.with_name(at).write_text(line.format(name) + "\n"),
            read(manifest.with_name(at)),
        )
        for kind, (read, at, line) in MANIFESTS.items()
    },
}
"""What reads the names of files from a file."""


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("name", ["webhdfs://127.0.0.1:8990/x.wav", "./http://a/x.png", "GS:/bucket/x.wav"])
@pytest.mark.parametrize("is_relative", [True, False])
def test_a_list_names_no_addresses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reached: list[str],
    kind: str,
    name: str,
    is_relative: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = Path("list.tsv") if is_relative else tmp_path / "list.tsv"
    with pytest.raises(UserError, match="line 1: .* is an address, and a list names files|no such file"):
        LISTS[kind](name, manifest)
    assert reached == []


@pytest.mark.parametrize("name", ["/etc/hostname", "../other/x.wav", "a/../../x.wav", "s3://bucket/x.wav"])
def test_a_list_at_an_address_names_files_beneath_it(reached: list[str], name: str) -> None:
    with pytest.raises(UserError, match="line 3: .* must be a file within gs://bucket/lists|is an address"):
        listed(name, Path("gs://bucket/lists/a.tsv"), 3, "recording")
    assert reached == []
    with pytest.raises(UserError, match="was asked for"):
        listed("clips/x.wav", Path("gs://bucket/lists/a.tsv"), 3, "recording")
    assert reached == ["gs://bucket/lists/clips/x.wav"]


def test_a_folder_that_is_named_as_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "http:").mkdir()
    (tmp_path / "http:" / "a.en").write_text("a\n")
    (found,) = matching(Path("*/*.en"), "--data.train-source")
    assert remote.fetched(found).read_text() == "a\n"
