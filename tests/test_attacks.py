"""Attacks by a stranger's files, shared folders and odd environments, each of which must fail."""

import fcntl
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from small_run import WORDS, changed, quiet
from small_translator import small_translator, stored

from transformer import Config, DecodingConfig, Run, Translator, UserError, checkpoint_bounds
from transformer.checkpoints import MANIFEST, read
from transformer.cli import guarded
from transformer.cli import output as output_module
from transformer.cli.decode import _translate_lines, parse_decode
from transformer.cli.output import LongOutput
from transformer.cli.train import _continued
from transformer.config import DataConfig
from transformer.config_json import from_json, to_json
from transformer.data import corpora
from transformer.data.corpora import open_corpus
from transformer.data.tokenizers import load_tokenizer
from transformer.decoding.translator import model_shapes
from transformer.files import parse_json, read_bytes
from transformer.interop.folders import import_marian
from transformer.report import write_report
from transformer.training import loop
from transformer.training.train import train

ROOT = Path(__file__).parent.parent
MARIAN = Path(__file__).parent / "data" / "marian"


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to decode with."""
    return stored(small_translator(), tmp_path_factory.mktemp("decoder") / "run")


def command(*words: object, shell: str = "", **options: object) -> subprocess.CompletedProcess:
    """A command of the repository in a separate process; `shell` follows it on a command line of bash."""
    quoted = " ".join(f"'{word}'" for word in (sys.executable, *words))
    return subprocess.run(
        ["bash", "-c", f"{quoted} {shell}"], cwd=ROOT, text=True, capture_output=True, timeout=240, **options
    )


# --- 1. code ---

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


def test_a_run_directory_does_not_say_where_text_is(
    poisoned: Path, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dataset in its own folder is not found, and the cache folder that it names is not created."""
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "mine"))
    config = Run(run_dir).config
    data = DataConfig(dataset="toy_translate/fr-en", tokenizer="whitespace", cache_dir=tmp_path)
    (run_dir / "config.json").write_text(to_json(replace(config, data=data)))
    given = _continued(["--run-dir", str(run_dir)], run_dir)
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


def test_given_again_the_text_is_read(run_dir: Path, config: Config) -> None:
    """Tokenizers need not be given again, since the run has copies."""
    stored = replace(Run(run_dir).config, data=replace(config.data, source_tokenizer=Path("/nowhere")))
    (run_dir / "config.json").write_text(to_json(stored))
    text = [
        word
        for split in ("train", "validation", "test")
        for side in ("source", "target")
        for word in (f"--data.{split}-{side}", str(getattr(config.data, f"{split}_{side}")))
    ]
    given = _continued(["--run-dir", str(run_dir), *text, "--training.steps", "14"], run_dir)
    assert given.config == changed(replace(stored, data=replace(stored.data, cache_dir=None)), steps=14)


# --- 2. links ---

LINKED = ["lock", "metrics.jsonl", "checkpoints", "tensorboard", "average", "damaged", "results.json"]


def linked(run_dir: Path, name: str, outside: Path) -> Path:
    """Replaces an entry of a run by a link to something outside, and returns the latter."""
    entry = run_dir / name
    outside.mkdir()
    target = outside / "target"
    if entry.is_dir():
        shutil.copytree(entry, target)
        shutil.rmtree(entry)
    else:
        target.write_text(entry.read_text() if entry.exists() else "precious\n")
        entry.unlink(missing_ok=True)
    entry.parent.mkdir(exist_ok=True)
    entry.symlink_to(target)
    return target


def contents(path: Path) -> dict[str, bytes]:
    files = path.rglob("*") if path.is_dir() else [path]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("name", [*LINKED, "checkpoints/8", "checkpoints/12/manifest.json", "new/deep/link"])
def test_continuing_a_run_never_follows_a_link(
    config: Config, run_dir: Path, tmp_path: Path, name: str
) -> None:
    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
    target = linked(run_dir, name, tmp_path / "outside")
    before = contents(target)
    with pytest.raises(UserError, match=f"{name} is a link: a run directory may contain only"):
        train(changed(config, steps=14, keep_last=1), run_dir, watch=quiet())
    assert contents(target) == before


def test_nor_a_pipe_or_a_device(config: Config, run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").unlink()
    os.mkfifo(run_dir / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics.jsonl is a pipe or a device: a run directory may"):
        train(changed(config, steps=14), run_dir, watch=quiet())


def test_a_run_may_itself_be_named_by_a_link(config: Config, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run_dir)
    train(changed(config, steps=14), tmp_path / "latest", watch=quiet())
    assert Run(run_dir).steps()[-1] == 14


def test_a_link_made_while_it_trains_is_not_written_through(run_dir: Path, tmp_path: Path) -> None:
    target = linked(run_dir, "metrics.jsonl", tmp_path / "outside")
    before = contents(target)
    with pytest.raises(OSError, match="symbolic link"):
        Run(run_dir).log({"kind": "start", "step": 1})
    assert contents(target) == before


def test_an_average_is_not_written_through_a_link(run_dir: Path, tmp_path: Path) -> None:
    target = linked(run_dir, "average", tmp_path / "outside")
    before = contents(target)
    done = command("-m", "transformer.average", run_dir)
    assert (done.returncode, contents(target)) == (2, before)
    assert "average is a link" in done.stderr


def test_a_report_replaces_a_link(run_dir: Path, tmp_path: Path) -> None:
    target = linked(run_dir, "report.html", tmp_path / "outside")
    before = contents(target)
    write_report(run_dir)
    assert contents(target) == before
    assert not (run_dir / "report.html").is_symlink()


def test_a_checkpoint_with_a_link_is_not_read(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    linked(run_dir, "checkpoints/1/model/_METADATA", tmp_path / "outside")
    with pytest.raises(UserError, match="_METADATA is a link: a checkpoint may contain only"):
        Translator.load(run_dir)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/1", "checkpoints/1/model"])
def test_nor_is_one_that_a_link_leads_to(decoder: Path, tmp_path: Path, name: str) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    linked(run_dir, name, tmp_path / "outside")
    with pytest.raises(UserError, match="link"):
        Translator.load(run_dir)


def test_folders_in_folders_in_folders(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    here = os.getcwd()
    try:
        os.chdir(run_dir / "checkpoints" / "1" / "model")
        for _ in range(1500):
            os.mkdir("e")
            os.chdir("e")
        with pytest.raises(UserError, match="nested folders"):
            Translator.load(run_dir)
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-r", run_dir], check=True)


# --- 4. memory before refusal ---

PEAK = """
import os, resource, sys
os.environ["JAX_PLATFORMS"] = "cpu"
from transformer import Translator, UserError
import jax; jax.numpy.ones(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Translator.load(sys.argv[1])
except UserError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def database(run_dir: Path) -> tensorstore.KvStore:
    (run_dir / "checkpoints" / "1" / MANIFEST).unlink(missing_ok=True)
    model = (run_dir / "checkpoints" / "1" / "model").absolute().as_uri()
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": model + "/"}).result()


def array_of(store: tensorstore.KvStore) -> str:
    keys = [key.decode() for key in store.list().result()]
    return min(key for key in keys if key.endswith("/.zarray") and "table" in key).removesuffix("/.zarray")


def change(store: tensorstore.KvStore, key: str, **values: object) -> None:
    about = json.loads(store.read(key).result().value)
    store.write(key, json.dumps({**about, **values}).encode()).result()


def zeros(size: int) -> bytes:
    """A zstd frame of `size` zeros, 4 bytes for each 128 KiB (RFC 8878: a block of kind 1 repeats)."""
    blocks = -(-size // 2**17)
    body = b"".join(
        (2**17 << 3 | 1 << 1 | (at == blocks - 1)).to_bytes(3, "little") + b"\0" for at in range(blocks)
    )
    return b"\x28\xb5\x2f\xfd" + bytes([0, 7 << 3]) + body


def larger_chunks(store: tensorstore.KvStore) -> None:
    change(store, f"{array_of(store)}/.zarray", chunks=[28_000, 28_000])


def larger_chunks_of_zeros(store: tensorstore.KvStore) -> None:
    larger_chunks(store)
    store.write(f"{array_of(store)}/0.0", zeros(4 * 28_000**2)).result()


def a_bomb(store: tensorstore.KvStore) -> None:
    store.write(f"{array_of(store)}/0.0", zeros(4 * 2**30)).result()


def two_frames(store: tensorstore.KvStore) -> None:
    name = f"{array_of(store)}/0.0"
    store.write(name, store.read(name).result().value + zeros(4 * 2**30)).result()


def another_compressor(store: tensorstore.KvStore) -> None:
    change(store, f"{array_of(store)}/.zarray", compressor={"id": "bz2", "level": 1})


def wide_numbers(store: tensorstore.KvStore) -> None:
    change(store, f"{array_of(store)}/.zarray", dtype="|S100000000")


def a_large_shape(store: tensorstore.KvStore) -> None:
    change(store, f"{array_of(store)}/.zarray", shape=[10**6, 10**6], chunks=[10**6, 10**6])


def no_object(store: tensorstore.KvStore) -> None:
    store.write(f"{array_of(store)}/.zarray", b"[" * 100_000).result()


def many_frames(store: tensorstore.KvStore) -> None:
    """Each of which would have to be walked to the end of the file."""
    chunk = array_of(store) + "/0"
    store.write(chunk, b"\x28\xb5\x2f\xfd\0\0" * 3000 + bytes(20 << 20)).result()


def another_key(store: tensorstore.KvStore) -> None:
    store.write(f"{array_of(store)}/zarr.json", b"{}").result()


def a_large_index(store: tensorstore.KvStore) -> None:
    """Values in the database's index."""
    spec = store.spec().to_json()
    folder = Path(spec["base"]["path"])
    shutil.rmtree(folder / "d")
    (folder / "manifest.ocdbt").unlink()
    config = {"max_inline_value_bytes": 2**20, "max_decoded_node_bytes": 2**31 - 1}
    store = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": folder.as_uri() + "/", "config": config}
    ).result()
    with tensorstore.Transaction() as transaction:
        for index in range(300):
            store.with_transaction(transaction)[f"a{index}/0"] = bytes(2**20)


BOMBS = {
    larger_chunks: "has chunks of [28000, 28000]",
    larger_chunks_of_zeros: "its files decompress to more than",
    a_bomb: "its files decompress to more than",
    two_frames: "its files decompress to more than",
    many_frames: "its files decompress to more than",
    another_compressor: "has an unsupported compressor or filter",
    wide_numbers: "has no sensible shape or type",
    a_large_shape: r"its arrays have 4,000,000,\d+,\d+ bytes, more than they should",
    no_object: "nested too deeply",
    another_key: "is not part of an array",
    a_large_index: "its files decompress to more than",
}


@pytest.mark.parametrize("attack", BOMBS, ids=lambda attack: attack.__name__)
def test_arrays_that_would_take_the_memory(
    decoder: Path, tmp_path: Path, attack: Callable[[tensorstore.KvStore], None]
) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    attack(database(run_dir))
    with pytest.raises(UserError, match=BOMBS[attack].replace("[", r"\[")):
        Translator.load(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("attack", BOMBS, ids=lambda attack: attack.__name__)
def test_no_memory_is_taken_first(
    decoder: Path, tmp_path: Path, attack: Callable[[tensorstore.KvStore], None]
) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    attack(database(run_dir))
    done = command("-c", PEAK, run_dir)
    message, peak = done.stdout.strip().split("\n")
    print(f"{attack.__name__}: {int(peak)} MiB")
    assert "is damaged or belongs to another model" in message
    assert int(peak) < 200


def test_files_of_a_checkpoint_that_are_too_large(decoder: Path, tmp_path: Path) -> None:
    """Sparse ones, which take no disk."""
    for name in ("_METADATA", "d/more"):
        run_dir = Path(shutil.copytree(decoder, tmp_path / name.replace("/", "-")))
        with open(run_dir / "checkpoints" / "1" / "model" / name, "ab") as file:
            file.truncate(2**40)
        with pytest.raises(UserError, match="more than its arrays need"):
            Translator.load(run_dir)


def test_the_check_passes_what_orbax_writes(tmp_path: Path) -> None:
    """Several chunks and number types, and zeros that compress a thousandfold."""
    random = np.random.default_rng(0)
    arrays = {
        "random": random.standard_normal((700, 900), np.float32),
        "zeros": np.zeros((3000, 1000), np.float32),
        "scalar": np.float32(3),
        "step": np.int32(7),
        "half": jax.numpy.ones((5, 3), jax.numpy.bfloat16),
        "empty": np.zeros((0, 4), np.float32),
    }
    arrays = {name: jax.numpy.asarray(value) for name, value in arrays.items() if name != "empty"}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "model", {"params": arrays})
    found = read(tmp_path / "model", {"params": arrays})
    for name, value in arrays.items():
        np.testing.assert_array_equal(np.asarray(found["params"][name]), np.asarray(value))


# --- 5. to 7. shared folders ---


def test_a_new_average_is_another_model(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted output is not continued after the average has been recomputed."""
    from transformer.decoding import translator as module
    from transformer.decoding.translator import model_shapes

    run = Run(shutil.copytree(finished, tmp_path / "run"))
    shapes = model_shapes(run.config)
    (tmp_path / "in").write_text("".join(f"{word} {other}\n" for word in WORDS for other in WORDS))
    monkeypatch.setattr(module, "WINDOW", 4)
    arguments = [
        run.path,
        "--checkpoint",
        "average",
        "--input",
        tmp_path / "in",
        "--output",
        tmp_path / "out",
    ]

    def decode(*more: object) -> None:
        _translate_lines(parse_decode([*map(str, [*arguments, *more])]))

    run.store_average(run.averaged(run.steps()[:1], shapes))
    ordinary, calls = Translator.search, iter(range(3))

    def search(self: Translator, *given: object, **options: object) -> object:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return ordinary(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "search", search)
        with pytest.raises(KeyboardInterrupt):
            decode("--resume")
    run.store_average(run.averaged(run.steps(), shapes))
    decode("--resume")
    expected = Translator.load(run.path, "average").translate((tmp_path / "in").read_text().splitlines())
    assert (tmp_path / "out").read_text().splitlines() == expected


def test_fingerprints_tell_models_apart() -> None:
    same = {small_translator().fingerprint() for _ in range(2)}
    others = {small_translator(seed=6).fingerprint(), small_translator(words=WORDS[::-1]).fingerprint()}
    assert (len(same), len(same | others)) == (1, 3)


def test_an_input_that_changes_while_it_is_translated(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("red\n")
    ordinary = Translator.search

    def search(self: Translator, *given: object, **options: object) -> object:
        (tmp_path / "in").write_text("blue\n")
        return ordinary(self, *given, **options)

    monkeypatch.setattr(Translator, "search", search)
    with pytest.raises(UserError, match="in changed while it was translated"):
        _translate_lines(
            parse_decode([str(decoder), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")])
        )
    assert os.listdir(tmp_path) == ["in"]


def test_a_text_that_is_replaced_while_it_is_stored(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text must not be stored under the hash of another."""
    data = config.data
    source = Path(shutil.copy(data.train_source, tmp_path / "train.in"))
    data = replace(data, train_source=source, cache_dir=tmp_path / "cache")
    ordinary = corpora.store.prepare

    def prepare(*arguments: object) -> object:
        source.write_text(source.read_text().replace("red", "green"))
        return ordinary(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(corpora.store, "prepare", prepare)
        with pytest.raises(UserError, match="text changed while it was read"):
            open_corpus(data)
    assert not list((tmp_path / "cache").rglob("*array_record*"))
    shutil.copy(config.data.train_source, source)
    expected = source.read_text().splitlines()
    assert [pair[0] for pair in open_corpus(data).splits["train"]] == expected


def test_a_pipe_as_training_text(config: Config, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"cannot read {path}: not a regular file"):
            open_corpus(replace(config.data, train_source=path))


def test_standard_input_as_training_text(config: Config) -> None:
    files = ["--data.train-source", "/dev/stdin", "--data.train-target", str(config.data.train_target)]
    files += ["--data.validation-tsv", str(config.data.train_target)]
    done = command("train.py", *files, shell="< <(yes)")
    assert (done.returncode, "cannot read /dev/stdin: not a regular file" in done.stderr) == (2, True)


def test_a_lock_that_was_waited_for_is_compared_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process opens the partial file; before it has the lock, the other one completes it and renames it."""
    path = tmp_path / "out"
    first = LongOutput(path, "job", resume=False)
    file = first.__enter__()
    file.write("finished\n")
    ordinary = fcntl.flock

    def flock(*arguments: object) -> None:
        monkeypatch.setattr(output_module.fcntl, "flock", ordinary)
        first.__exit__(None, None, None)
        ordinary(*arguments)

    monkeypatch.setattr(output_module.fcntl, "flock", flock)
    second = LongOutput(path, "job", resume=False)
    other = second.__enter__()
    assert path.read_text() == "finished\n"
    other.write("again\n")
    second.__exit__(None, None, None)
    assert path.read_text() == "again\n"
    assert os.listdir(tmp_path) == ["out"]


def test_the_lock_is_held_until_the_output_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = os.replace

    def replaced(partial: Path, path: Path) -> None:
        with open(partial) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ordinary(partial, path)

    monkeypatch.setattr(output_module.os, "replace", replaced)
    with LongOutput(tmp_path / "out", "job", resume=False) as file:
        file.write("line\n")
    assert (tmp_path / "out").read_text() == "line\n"


def test_a_partial_output_is_not_written_through_a_link(tmp_path: Path) -> None:
    long = LongOutput(tmp_path / "out", "job", resume=True)
    (tmp_path / "precious").write_text("mine\n")
    long._partial.symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="cannot write --output"), long:
        pass
    assert (tmp_path / "precious").read_text() == "mine\n"


# --- 8. to 11. numbers, JSON, vocabularies, metrics ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": (10**11,)}, "--decoding.buckets must be"),
        ({"rows": 10_000, "buckets": (8, 100_000)}, "times the longest of --decoding.buckets"),
        ({"max_length": 10**10}, "--decoding.max-length must be"),
        ({"seed": 2**31}, "--decoding.seed must be"),
    ],
)
def test_decoding_beyond_all_bounds(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DecodingConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length": 10**7},
        {"batch_tokens": 10**10},
        {"vocab_size": 10**9},
        {"built_in_size": 10**10},
        {"buckets": (10**11,)},
    ],
)
def test_data_beyond_all_bounds(changes: dict) -> None:
    (name,) = changes
    with pytest.raises(UserError, match=f"--data.{name.replace('_', '-')} must be at least"):
        DataConfig(**changes)


@pytest.mark.parametrize(
    "text",
    [
        '{"model": {"window": 100000000000}}',
        '{"model": {"num_layers": 10000000}}',
        '{"model": {"special": {"pad": 100000000000}}}',
        '{"model": {"special": {"pad": -5}}}',
        '{"training": {"steps": 1' + 30 * "0" + "}}",
        '{"optimizer": {"scale": 1' + 400 * "0" + "}}",
        '{"optimizer": {"warmup_steps": Infinity}}',
        '{"optimizer": {"peak": 1e999}}',
        '{"data": ' + '{"a":' * 100_000,
        "[" * 100_000,
        "null",
        '{"system": ["transformer"]}',
    ],
)
def test_configs_beyond_all_bounds(text: str) -> None:
    with pytest.raises(UserError):
        from_json(text)


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "1e400", "1" * 5000, "9" * 19, "[" * 10**5, "", "'", '"\\ud800"']
)
def test_json_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|nested|Expecting|lone surrogate"):
        parse_json(text)


def test_json_that_is() -> None:
    assert parse_json('[1, -2.5e3, 5e-324, 9223372036854775807, "x"]') == [1, -2500.0, 5e-324, 2**63 - 1, "x"]


ODD_JSON = [
    "[]",
    "null",
    "3",
    "{}{",
    "[" * 100_000,
    '{"a":' * 100_000,
    "",
    "\x00",
    '{"bleu": 1' + "0" * 400 + "}",
]


@pytest.mark.parametrize("text", ODD_JSON, ids=range(len(ODD_JSON)))
def test_odd_json_anywhere_in_a_run(run_dir: Path, text: str) -> None:
    checkpoint = run_dir / "checkpoints" / "12"
    (checkpoint / "metrics" / "metrics").write_text(text)
    assert Run(run_dir).best_step() != 12
    for name in (MANIFEST, "model/_METADATA", "model/_sharding", "model/array_metadatas/process_0"):
        ordinary = (checkpoint / name).read_bytes()
        (checkpoint / name).write_text(text)
        with pytest.raises(UserError, match="12/.* is damaged"):
            Translator.load(run_dir, 12)
        (checkpoint / name).write_bytes(ordinary)
        (checkpoint / MANIFEST).unlink(missing_ok=True)
    (run_dir / "results.json").write_text(text)
    write_report(run_dir)
    (run_dir / "metrics.jsonl").write_text(text + "\n")
    with pytest.raises(UserError, match="no metrics yet"):
        write_report(run_dir)


ODD_RECORDS = [
    {"kind": "start", "step": 0, "data": {"lengths": [1, 2]}},
    {"kind": "start", "step": 0, "data": {"lengths": {"source": 3, "target": {"8": "x"}, "both": {"8": -1}}}},
    {"kind": "start", "step": 0, "data": {"lengths": {"source": {}}}},
    {"kind": "start", "step": 0, "data": 7},
    {"kind": "training", "step": 10**18, "nll": 1.0},
    {"kind": "training", "step": 1, "nll": 5e-324},
    {"kind": "training", "step": 1, "nll": 1.7e308, "tokens_per_second": -1e308},
    {"kind": "training", "step": 0, "nll": 0},
    {"kind": "training", "step": True, "nll": 1},
    {"kind": "training", "step": 1.5},
    {"kind": "evaluation", "step": 1, "bleu": "x"},
    {"kind": "evaluation", "step": 1, "bleu": 1, "samples": [[1, 2, 3]]},
    {"kind": "evaluation", "step": 1, "bleu": 1e308, "nll": None, "samples": {"a": 1}},
    {"kind": ["start"], "step": 1},
    {"kind": "start", "step": 2**31 - 1, "date": {"a": []}},
]


@pytest.mark.parametrize("record", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_a_report_of_odd_metrics(run_dir: Path, record: dict) -> None:
    lines = ['{"kind": "start", "step": 0}', json.dumps(record)]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert write_report(run_dir).read_text().endswith("</html>\n")


def test_training_continues_beside_odd_metrics(config: Config, run_dir: Path) -> None:
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in ODD_RECORDS)
        file.write("[" * 10**5 + "\n" + ODD_JSON[-1] + "\n")
    train(changed(config, steps=14), run_dir, watch=quiet())
    assert Run(run_dir).steps()[-1] == 14


def test_a_tokenizer_of_another_size(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    for words in (WORDS[:-1], [*WORDS, "more"]):
        saved = json.loads((decoder / "source.model").read_text()) | {"words": words}
        (run_dir / "source.model").write_text(json.dumps(saved))
        with pytest.raises(UserError, match=r"ids but config.json expects 13: they do not belong"):
            Translator.load(run_dir)


def test_words_that_are_no_text(tmp_path: Path) -> None:
    for kind in ("word", "open-word", "whitespace"):
        saved = {"kind": kind, "special": {"pad": 0, "bos": 1, "eos": 2, "unk": 3}, "words": ["a", "\ud800"]}
        (tmp_path / "v").write_text(json.dumps(saved))
        with pytest.raises(UserError, match="neither a SentencePiece model nor a saved vocabulary"):
            load_tokenizer(tmp_path / "v")


# --- 12. to 17. environments ---


def test_a_signal_while_a_checkpoint_is_measured_is_no_damage(
    run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are mapped into memory just then."""
    before = contents(run_dir / "checkpoints")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_bounds, "_block_sizes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(changed(config, steps=20), run_dir, watch=quiet())
    assert contents(run_dir / "checkpoints") == before
    assert not (run_dir / "damaged").exists()


def test_a_signal_during_an_import_waits_for_its_end(tmp_path: Path) -> None:
    """As during the import of JAX, which would report it as its own error."""
    (tmp_path / "long.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "except BaseException as error:\n"
        "    raise ImportError('Encountered an error') from error\n"
    )
    program = (
        f"import sys, time; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from transformer.cli import guarded\n"
        "def command(_):\n"
        "    import long\n"
        "    time.sleep(60)\n"
        "raise SystemExit(guarded('program', command))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (130, "program: interrupted\n")


def test_a_full_device_as_standard_output(run_dir: Path) -> None:
    for module in ("transformer.report", "transformer.average"):
        done = command("-m", module, run_dir, shell="> /dev/full")
        assert done.returncode == 2
        program = module.rpartition(".")[2]
        assert done.stderr == f"transformer {program}: No space left on device: standard output, or a file\n"
    assert "</html>" in (run_dir / "report.html").read_text()
    assert (run_dir / "average").is_dir()
    done = command("train.py", "--help", shell="> /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_average_that_cannot_be_written_leaves_the_old_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(run_dir)
    variables = run.averaged(None, model_shapes(run.config))
    run.store_average(variables)
    before = contents(run_dir)

    def fail(self: object, path: Path, *_: object) -> None:
        (path.parent / (path.name + ".orbax-checkpoint-tmp")).mkdir()
        raise ValueError("RESOURCE_EXHAUSTED: no space left")

    monkeypatch.setattr(ocp.StandardCheckpointer, "save", fail)
    with pytest.raises(UserError, match="average: RESOURCE_EXHAUSTED: no space left"):
        run.store_average(variables)
    assert contents(run_dir) == before
    assert not [path for path in run_dir.iterdir() if path.name.startswith(".average")]


def test_what_is_refused_leaves_no_run_directory(config: Config, tmp_path: Path) -> None:
    """Otherwise the corrected command would find a run with other options."""
    short = replace(config, data=replace(config.data, max_length=2))
    broad = replace(config, decoding=replace(config.decoding, beam_size=500))
    for wrong, message in ((short, "raise it"), (broad, "more than half the vocabulary")):
        with pytest.raises(UserError, match=message):
            train(wrong, tmp_path / "run", watch=quiet())
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["decode.py", "x" * 300],
        ["decode.py", "RUN", "--input", "x" * 300],
        ["decode.py", "RUN", "--input", __file__, "--output", "x" * 300],
        ["decode.py", "RUN", "--checkpoint", "9" * 5000],
        ["-m", "transformer.average", "x" * 300],
        ["-m", "transformer.interop", "import", "x" * 300, "y"],
        ["train.py", "--run-dir", "x" * 300, "--init-from", "RUN"],
        ["-m", "transformer.report", b"\xff"],
        ["decode.py", b"\xff"],
    ],
    ids=range(9),
)
def test_odd_names(decoder: Path, words: list) -> None:
    words = [str(decoder) if word == "RUN" else word for word in words]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_out_of_memory_is_one_message(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 160 bytes.\nAnd more")

    monkeypatch.setattr(sys, "argv", ["decode.py"])
    assert guarded("decode.py", command) == 2
    assert capsys.readouterr().err.startswith("decode.py: out of memory: reduce the batch size")


def test_closed_standard_streams(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("red cat\n")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    for shell, arguments, status, message in (
        ("<&-", [], 2, "standard input is closed: name a file with --input"),
        (">&- < /dev/null", [], 2, "standard output is closed: name a file with --output"),
        ("2>&- <&-", [], 2, ""),
        ("<&- >&- 2>&-", files, 0, ""),
    ):
        done = command("decode.py", decoder, *arguments, shell=shell)
        assert (done.returncode, done.stdout) == (status, ""), (shell, done.stderr)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "out").read_text().count("\n") == 1


def test_a_reader_that_has_gone_does_not_cost_the_output(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("red cat\n" * 50)
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--reference", tmp_path / "in", "-v"]
    done = command("decode.py", decoder, *files, shell="2>&1 | head -c 1; exit ${PIPESTATUS[0]}")
    assert done.returncode == 0
    assert (tmp_path / "out").read_text().count("\n") == 50
    assert not list(tmp_path.glob(".out*"))
    done = command("decode.py", decoder, "--n-best", "99", shell="2> >(exec 0<&-; sleep 5)")
    assert done.returncode == 2


NOBODY = """
import os, sys
del os.environ["HOME"]
os.getuid = lambda: 54321
import pwd
def unknown(*arguments): raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
sys.argv = sys.argv[1:]
from transformer.cli import decode_main, train_main
sys.exit((decode_main if "decode" in sys.argv[0] else train_main)())
"""


def test_a_user_without_home_or_name(decoder: Path, tmp_path: Path) -> None:
    """As Kubernetes runs containers: a random user id."""
    environment = {k: v for k, v in os.environ.items() if k not in ("TRANSFORMER_CACHE", "TFDS_DATA_DIR")}
    (tmp_path / "in").write_text("red cat\n")
    done = command("-c", NOBODY, "decode.py", decoder, "--input", tmp_path / "in", env=environment)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    done = command("-c", NOBODY, "train.py", env=environment)
    assert done.returncode == 2
    assert "no home directory; set TRANSFORMER_CACHE" in done.stderr
    done = command("-c", NOBODY, "train.py", "--data.dataset", "wmt14_translate/de-en", env=environment)
    assert done.returncode == 2
    assert "no home directory: give --data.cache-dir" in done.stderr
    assert not (ROOT / "~").exists()


@pytest.mark.parametrize("name", ["config.json", "source.model", "checkpoints/1/manifest.json"])
@pytest.mark.parametrize("to", ["/dev/zero", "pipe", "/dev/null", "folder"])
def test_devices_in_place_of_files(decoder: Path, tmp_path: Path, name: str, to: str) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (run_dir / name).unlink()
    (run_dir / name).symlink_to(to if to.startswith("/") else tmp_path / to)
    with pytest.raises(UserError):
        Translator.load(run_dir)


def test_a_log_that_is_too_large_is_not_lost(config: Config, run_dir: Path) -> None:
    with open(run_dir / "metrics.jsonl", "ab") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="cannot read .*metrics.jsonl: larger than 256 MiB"):
        train(changed(config, steps=14), run_dir, watch=quiet())
    assert (run_dir / "metrics.jsonl").stat().st_size == 2**40


def test_a_language_is_no_path() -> None:
    for name in ("../x", "a/b", "", ".", "en\x1b"):
        with pytest.raises(UserError, match="--data.target-language must be a code"):
            DataConfig(target_language=name)


def test_a_partial_output_that_somebody_else_wrote(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("red\nblue\n")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--reference", tmp_path / "in"]
    arguments = parse_decode([*map(str, [decoder, *files]), "--format", "json", "--resume"])
    ordinary = LongOutput._open
    for line in (b"[]\n", b"\xff\n", b"{}\n", b'{"hypotheses": []}\n'):

        def opened(self: LongOutput, line: bytes = line) -> object:
            self._partial.write_bytes(line)
            return ordinary(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LongOutput, "_open", opened)
            with pytest.raises(UserError, match="is damaged: run the command without --resume"):
                _translate_lines(arguments)


def test_devices_as_metrics(run_dir: Path) -> None:
    for name in ("metrics.jsonl", "results.json", "corpus"):
        (run_dir / name).unlink()
        (run_dir / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="cannot read .*metrics.jsonl: not a regular file"):
        write_report(run_dir)
    with pytest.raises(UserError, match="the training text has changed"):
        Run(run_dir).check_corpus("text")


def test_files_that_are_too_large(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than 256 MiB"):
        read_bytes(tmp_path / "large")
    with pytest.raises(UserError, match="line 1: longer than 64 MiB"):
        list(corpora.read_lines(tmp_path / "large"))


def test_control_characters_do_not_reach_the_terminal(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    (run_dir / "config.json").write_text(json.dumps({"\x1b[31m\x07evil": 1}))
    done = command("decode.py", run_dir, shell="< /dev/null")
    assert done.returncode == 2
    assert "\\x1b[31m\\x07evil" in done.stderr


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("vocab.json", {"<unk>": True}),
        ("vocab.json", {"<unk>": 10**400}),
        ("vocab.json", {"\ud800": 59}),
        ("config.json", {"encoder_layers": 10**7}),
        ("config.json", {"decoder_layers": 10**7}),
        ("config.json", {"vocab_size": 10**400}),
        ("config.json", {"max_length": float("inf"), "num_beams": float("inf")}),
        ("config.json", {"pad_token_id": -1}),
        ("config.json", {"d_model": True}),
        ("config.json", {"dropout": 10**400}),
    ],
)
def test_a_refused_import_leaves_nothing(tmp_path: Path, file: str, changes: dict) -> None:
    folder = Path(shutil.copytree(MARIAN, tmp_path / "marian"))
    about = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(about | changes))
    begun = time.process_time()
    with pytest.raises(UserError):
        import_marian(folder, tmp_path / "run")
    assert time.process_time() - begun < 20
    assert os.listdir(tmp_path) == ["marian"]


def test_an_import_refused_while_it_is_stored_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "store_model", refuse)
        with pytest.raises(UserError, match="no"):
            import_marian(MARIAN, tmp_path / "run")
    assert os.listdir(tmp_path) == []
    import_marian(MARIAN, tmp_path / "run")


def in_child(queue: "multiprocessing.Queue[str]", work: Callable[[], object]) -> None:
    try:
        queue.put(f"worked: {work()}")
    except UserError as error:
        queue.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_is_told(decoder: Path) -> None:
    translator = Translator.load(decoder)
    assert len(translator.translate(["red"])) == 1
    context = multiprocessing.get_context("fork")
    for work in (
        lambda: translator.translate(["red"]),
        lambda: translator.score(["red"], ["red"]),
        lambda: Translator.load(decoder),
        lambda: translator.warm_up(),
    ):
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue, work))
        child.start()
        assert "forked from one that used JAX" in queue.get(timeout=60)
        child.join(60)
    assert len(translator.translate(["red"])) == 1


def test_a_clock_that_jumps_is_not_a_full_disk(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ordinary = time.time, loop.Loop._keep

    def keep(self: loop.Loop, stop: int) -> None:
        ordinary(self, stop)
        if self.step == 8:  # its checkpoint is being written
            monkeypatch.setattr(time, "time", lambda: now() + 30 * 365 * 86400)

    monkeypatch.setattr(loop.Loop, "_keep", keep)
    with pytest.raises(UserError, match=r"timed out .*or was the clock changed\?") as caught:
        train(config, tmp_path / "run", watch=quiet())
    assert "full" not in str(caught.value)
    monkeypatch.undo()
    train(config, tmp_path / "run", watch=quiet())
    assert Run(tmp_path / "run").steps()[-1] == 12
