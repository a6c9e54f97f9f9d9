"""Compiled programs are cached for the next process, in the folder of the user's choice."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, sys
import jax, jax.numpy as jnp
logging.basicConfig(stream=sys.stdout)
from transformer.runtime import compilation
compilation.WORTH_KEEPING = 0.0
print(compilation.keep_programs())
jax.monitoring.register_event_listener(lambda event, **_: print(event))
jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((3, 5)))
"""
HIT = "/jax/compilation_cache/cache_hits"


ENTRY = "*-cache"


def run(program: str = PROGRAM, **environment: str) -> list[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))
    }
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**kept, **environment},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_second_process_finds_the_programs_of_the_first(tmp_path: Path) -> None:
    first = run(TRANSFORMER_CACHE=str(tmp_path))
    assert Path(first[0]).is_relative_to(tmp_path / "compiled")
    assert HIT not in first
    assert any(Path(first[0]).iterdir())
    assert HIT in run(TRANSFORMER_CACHE=str(tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["TRANSFORMER_COMPILED", "JAX_COMPILATION_CACHE_DIR"])
def test_the_folder_is_the_users_choice(tmp_path: Path, name: str) -> None:
    there = Path(run(**{name: str(tmp_path / "chosen")})[0])
    assert there.is_relative_to(tmp_path / "chosen")


@pytest.mark.thorough
def test_a_damaged_program_is_compiled_and_stored_anew(tmp_path: Path) -> None:
    """As after a kill while JAX wrote it. JAX's warning would be an error here."""
    folder = Path(run(TRANSFORMER_COMPILED=str(tmp_path))[0])
    whole = {path: path.stat().st_size for path in folder.glob(ENTRY)}
    assert len(whole) > 1
    for size, path in zip(itertools.cycle((0, 100)), whole):
        os.truncate(path, size)
    assert HIT not in run(TRANSFORMER_COMPILED=str(tmp_path))
    assert {path for path in folder.glob(ENTRY) if path.stat().st_size > 100} == set(whole)
    assert HIT in run(TRANSFORMER_COMPILED=str(tmp_path))


@pytest.mark.thorough
def test_a_full_disk_leaves_no_part_of_a_program(tmp_path: Path) -> None:
    limited = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""
    folder, *said = run(limited + PROGRAM + "jax.jit(jnp.cos)(1.0)\n", TRANSFORMER_COMPILED=str(tmp_path))
    assert list(Path(folder).iterdir()) == []
    assert sum("compiled programs are not cached: File too large" in line for line in said) == 1


def test_an_entry_has_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src.compilation_cache import compress_executable

    from transformer.runtime.program_store import LRUCache, WholeEntries

    store, seen = WholeEntries(str(tmp_path), max_size=-1), []
    write = LRUCache.put

    def put(self: LRUCache, key: str, value: bytes) -> None:
        write(self, key, value)
        seen.append((key, store.get("key")))

    monkeypatch.setattr(LRUCache, "put", put)
    entry = compress_executable(b"program")
    store.put("key", entry)
    assert store.get("key") == entry
    assert [before for _, before in seen] == [None]
    store.put("key", b"another")  # the first stays
    assert store.get("key") == entry
    assert [path.name for path in tmp_path.iterdir()] == ["key-cache"]


@pytest.mark.thorough
def test_it_can_be_turned_off(tmp_path: Path) -> None:
    said = run(TRANSFORMER_COMPILED="off", TRANSFORMER_CACHE=str(tmp_path))
    assert said[0] == "None"
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_home_costs_nothing_but_time() -> None:
    assert run(TRANSFORMER_CACHE="/proc/none")[0] == "None"


@pytest.mark.slow
def test_a_folder_asked_for_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said, path, *_ = run(TRANSFORMER_COMPILED=str(tmp_path / "file"))
    assert said.endswith("programs are not cached: Not a directory")
    assert path == "None"
