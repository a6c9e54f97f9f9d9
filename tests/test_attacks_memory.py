"""Checkpoints that claim more memory than they hold: refused before it is allocated."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from run_command import command

from transformer import Translator, UserError
from transformer.runs.sealed import MANIFEST, read

PEAK = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
from transformer import Translator, UserError
sys.path.append(sys.argv[2])
from benchmarks.measure import peak_memory_of_host
import jax; jax.numpy.ones(3)
before = peak_memory_of_host()
try:
    Translator.load(sys.argv[1])
except UserError as error:
    print(error)
print((peak_memory_of_host() - before) // 2**20)
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


def an_odd_fill_value(store: tensorstore.KvStore) -> None:
    change(store, f"{array_of(store)}/.zarray", fill_value="x")


def integers(store: tensorstore.KvStore) -> None:
    """Of the same width, which would be read as weights."""
    change(store, f"{array_of(store)}/.zarray", dtype="<i4")


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
    an_odd_fill_value: "its _METADATA and its arrays do not belong together",
    integers: "is of type int32 in the checkpoint, not float32",
    no_object: "nested too deeply",
    another_key: "is not part of an array",
    a_large_index: "its files decompress to more than",
}


@pytest.mark.by_default("a_bomb")
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
    done = command("-c", PEAK, run_dir, Path(__file__).parents[1])
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
