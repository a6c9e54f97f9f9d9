"""Compiled programs are cached for the next process, in the folder of the user's choice."""

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


def run(**environment: str) -> list[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**kept, **environment}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_second_process_finds_the_programs_of_the_first(tmp_path: Path) -> None:
    first = run(TRANSFORMER_CACHE=str(tmp_path))
    assert Path(first[0]).is_relative_to(tmp_path / "compiled")
    assert HIT not in first
    assert any(Path(first[0]).iterdir())
    assert HIT in run(TRANSFORMER_CACHE=str(tmp_path))


@pytest.mark.parametrize("name", ["TRANSFORMER_COMPILED", "JAX_COMPILATION_CACHE_DIR"])
def test_the_folder_is_the_users_choice(tmp_path: Path, name: str) -> None:
    there = Path(run(**{name: str(tmp_path / "chosen")})[0])
    assert there.is_relative_to(tmp_path / "chosen")


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    said = run(TRANSFORMER_COMPILED="off", TRANSFORMER_CACHE=str(tmp_path))
    assert said[0] == "None"
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_home_costs_nothing_but_time() -> None:
    assert run(TRANSFORMER_CACHE="/proc/none")[0] == "None"


def test_a_folder_asked_for_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said, path, *_ = run(TRANSFORMER_COMPILED=str(tmp_path / "file"))
    assert said.endswith("programs are not cached: Not a directory")
    assert path == "None"
