"""The run that an adapter changes: found again, and compared."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.config.methods import AdapterConfig
from transformer.model.parameters import Params
from transformer.runtime.errors import UserError
from transformer.runtime.files import address


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


_named: ContextVar[tuple[Path | str, ...]] = ContextVar("bases", default=())


@contextlib.contextmanager
def named_bases(*runs: Path | str | None) -> Iterator[None]:
    """Lets adapters find the models that they change among these runs, too. None: no run."""
    token = _named.set((*_named.get(), *(run for run in runs if run is not None)))
    try:
        yield
    finally:
        _named.reset(token)


def bases(stored: Path | str, adapter: str) -> list[Path | str]:
    """Where the base of an adapter may be: the runs that the caller has named, first those with the name of
    its folder, and then the run of that name in the folder that the adapter is in. The path that the adapter
    stores is opened nowhere else: an adapter may come from anyone.

    Args:
      stored: the path or address in its config.
      adapter: the path or address of its run, as the caller has named it.
    """
    name = Path(stored).name
    named = sorted(_named.get(), key=lambda run: Path(run).name != name)
    where = address(adapter)
    if name in ("", ".."):
        return [*named]
    if where is None:
        return [*named, Path(os.path.abspath(adapter)).parent / name]
    parent = Path(where).parent  # of an address, the parts after the scheme and the host
    return [*named, parent / name] if len(parent.parts) > 1 else [*named]


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
