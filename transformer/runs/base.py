"""The run that an adapter changes: found again, and compared."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.config.methods import AdapterConfig
from transformer.model.parameters import Params
from transformer.runtime.errors import UserError


def hash_of(params: Params) -> str:
    """A hash of the names, shapes, types and values of parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(params)

    def one(named: tuple[Any, Any]) -> bytes:
        path, leaf = named
        array = np.ascontiguousarray(leaf)
        about = f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}"
        digest = hashlib.blake2b(about.encode(), digest_size=16)
        digest.update(array.tobytes())
        return digest.digest()

    with ThreadPoolExecutor() as threads:  # hashing does not hold the interpreter's lock
        digests = list(threads.map(one, leaves))
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


def places(named: Path | str, adapter: Path) -> list[Path | str]:
    """Where the base of an adapter may be: at the path that the adapter names, or in the folder that the
    adapter is in, if both were moved."""
    return [named, adapter.parent / os.path.basename(named)]


def another_base(name: str, adapter: AdapterConfig) -> UserError:
    """What to raise if a model is not the one that an adapter changes. Arguments as those of `check_base`."""
    return UserError(
        f"{name} was trained on another model than this one (hash {adapter.base_hash}, checkpoint "
        f"{adapter.base_step} of its --init-from): give that model, unchanged"
    )


def check_base(name: str, adapter: AdapterConfig, params: Params) -> Params:
    """The parameters, if they are those that an adapter changes.

    Args:
      name: of the adapter's run.
      adapter: its options.
      params: of the base.

    Raises:
      UserError: they are not.
    """
    if hash_of(params) != adapter.base_hash:
        raise another_base(name, adapter)
    return params
