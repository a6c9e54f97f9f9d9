"""Files from strangers that name code or text: none of it is imported or read."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from run_command import command
from small_run import changed, quiet
from test_serving_systems import one_run

import transformer
from transformer import Config, Run, UserError
from transformer.cli.command_line import TrainLine
from transformer.commands.decode import decode_main
from transformer.commands.decode_files import decode_files_main
from transformer.commands.train import _continued
from transformer.config.corpus import DataConfig
from transformer.data.sources.corpora import open_corpus
from transformer.runs.config_json import to_json
from transformer.trainer.train import train

PACKAGE = Path(transformer.__file__).parent
EVIL = "open({!r}, 'w').close()\nclass Feature: pass\n"


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared TFDS dataset whose feature class is in a module beside it; importing that leaves a mark."""
    folder = tmp_path / "tfds" / "toy_translate" / "fr-en" / "1.0.0"
    folder.mkdir(parents=True)
    (tmp_path / "evil.py").write_text(EVIL.format(str(tmp_path / "executed")))
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "evil.Feature", "jsonFeature": {}}))
    about = {"name": "toy_translate", "configName": "fr-en", "version": "1.0.0", "fileFormat": "array_record"}
    (folder / "dataset_info.json").write_text(json.dumps(about))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


PLAIN = {
    "pythonClassName": "tensorflow_datasets.core.features.translation_feature.Translation",
    "translation": {"languages": ["en", "fr"]},
}


@pytest.mark.parametrize("where", ["features", "info", "both"])
def test_a_prepared_set_names_code_that_is_not_imported(poisoned: Path, tmp_path: Path, where: str) -> None:
    if where != "features":
        evil = {"pythonClassName": "evil.Feature", "jsonFeature": {}}
        about = json.loads((poisoned / "dataset_info.json").read_text())
        (poisoned / "dataset_info.json").write_text(json.dumps({**about, "features": evil}))
    if where == "info":
        (poisoned / "features.json").write_text(json.dumps(PLAIN))
    with pytest.raises(UserError, match="is not that of a translation dataset"):
        open_corpus(DataConfig(dataset="toy_translate/fr-en", cache_dir=tmp_path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "name",
    [
        "toy_translate/fr-en,data_dir=/tmp",
        "toy_translate/fr-en/a=1",
        "huggingface:evil",
        "kaggle:evil/a",
        "../run/toy_translate",
        "toy_translate/../x",
        "/etc",
        "",
    ],
)
def test_a_dataset_is_a_plain_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such TFDS dataset"):
        open_corpus(DataConfig(dataset=name, cache_dir=tmp_path))


@pytest.mark.slow
def test_a_run_directory_does_not_say_where_text_is(
    poisoned: Path, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dataset in its own folder is not found, and the cache folder that it names is not created."""
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "mine"))
    config = Run(run_dir).config
    data = DataConfig(dataset="toy_translate/fr-en", tokenizer="whitespace", cache_dir=tmp_path)
    (run_dir / "config.json").write_text(to_json(replace(config, data=data)))
    given = _continued(TrainLine.of(["--run-dir", str(run_dir)]), run_dir)
    assert given.config.data.cache_dir is None
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "mine" / "tfds"))
    with pytest.raises(UserError, match="no such TFDS dataset"):
        train(given.config, run_dir, watch=quiet())
    data = replace(config.data, cache_dir=tmp_path / "elsewhere")
    (run_dir / "config.json").write_text(to_json(replace(config, data=data)))
    done = command("train.py", "--run-dir", run_dir)
    assert done.returncode == 2
    assert "give --data.test-source, --data.test-target, --data.train-source" in done.stderr
    assert f"--data.train-source {config.data.train_source}" in done.stderr
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert not list((tmp_path / "mine").glob("corpora/*"))


@pytest.mark.by_default("captioning")
@pytest.mark.parametrize("name", ["captioning", "detection"])
def test_lines_do_not_open_what_a_run_names(
    name: str, call, decode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test:0` is of built-in drawings only, and no file that the config names is read or written."""
    pytest.importorskip("PIL")
    run, trap = one_run(name, tmp_path), tmp_path / "trap"
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "mine"))
    (tmp_path / "in").write_text("validation:0\n")
    stored = json.loads((run / "config.json").read_text())
    stored["data"] |= {"cache_dir": str(trap / "cache"), "built_in_size": 20}
    (run / "config.json").write_text(json.dumps(stored))
    assert decode(run, "--input", tmp_path / "in")[0] == 0
    assert not trap.exists()
    trap.mkdir()
    (trap / "list").write_text("SECRET\tx\n")
    for split in ("train", "validation", "test"):
        stored["data"][split] = str(trap / "list")
    (run / "config.json").write_text(json.dumps(stored))
    for main, options in (
        (decode_main, ()),
        (decode_main, ("--explore", tmp_path / "page.html")),
        (decode_files_main, ("--output", tmp_path / "out")),
    ):
        _, out, said = call(main, run, "--input", tmp_path / "in", *options)
        refusals = tmp_path / "out" / "errors.jsonl"
        said += refusals.read_text() if main is decode_files_main else ""
        assert "validation:0: name PNG files, since paths stored in a run directory are not opened" in said
        assert "SECRET" not in out + said
    assert [path.name for path in trap.iterdir()] == ["list"]


def test_who_opens_a_corpus() -> None:
    """Training and distillation open what the command line names; calibration and pictures, what has no path.
    Before another file is named here, look at whether a run's config could lead it to a path."""
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    opening = {name for name, text in files.items() if re.search(r"(?<!def )\bopen_corpus\(", text)}
    tasks = {"tasks/texts/text_to_text.py"}  # where a task is asked for its corpus
    trusting = {"trainer/train.py", "translator/distill.py", "testing.py"}
    assert opening == tasks | trusting | {"commands/calibrate.py", "tasks/media/pictures.py"}
    for name in ("commands/calibrate.py", "tasks/media/pictures.py"):
        assert re.search(r"config = with_named_corpus\([\s\S]+\bopen_corpus\(config\)", files[name])


def test_given_again_the_text_is_read(run_dir: Path, config: Config) -> None:
    """Tokenizers need not be given again, since the run has copies. Options that need text, such as those of
    shards, do not refuse a stored config without it."""
    needs_text = {"filter": ("copies",), "noise": ("upper=0.1",), "shard_pairs": 100}
    data = replace(config.data, source_tokenizer=Path("/nowhere"), **needs_text)
    stored = replace(Run(run_dir).config, data=data)
    (run_dir / "config.json").write_text(to_json(stored))
    text = [
        word
        for split in ("train", "validation", "test")
        for side in ("source", "target")
        for word in (f"--data.{split}-{side}", str(getattr(config.data, f"{split}_{side}")))
    ]
    given = _continued(TrainLine.of(["--run-dir", str(run_dir), *text, "--training.steps", "14"]), run_dir)
    assert given.config == changed(replace(stored, data=replace(stored.data, cache_dir=None)), steps=14)
