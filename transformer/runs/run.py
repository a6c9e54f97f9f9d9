"""The run directory: everything that training writes, self-contained and movable; and the run that an adapter
changes.

    config.json          the resolved config
    corpus               the name of the prepared corpus, which changes with its content
    source.model ...     what the task stores: for translation the tokenizers of source and target
    checkpoints/<step>/  Orbax: `model` (for decoding; of an adapter only its changes) and `training` (for
                         resuming); manifest.json, written last, has the hashes of all files
    average/             an averaged `model`, if requested
    metrics.jsonl        the log, one JSON object per line; tensorboard/ has the same for TensorBoard
    log.txt              what the terminal showed, with times; each start appends to it
    results.json         test scores with their signatures
    imported.json        fields of an imported folder that the import did not use, for an export
    exhibits.json        what the report shows of a few validation records, such as sounds and pictures
    overview.json        tables and comparisons of the outputs for a whole split, for the report, if the task
                         has them
    report.html          all of this as a page
    lock                 held during training

It contains no pickles. It may be at a remote address such as gs://bucket/run (`transformer.runs.stores`).
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config.methods import AdapterConfig
from transformer.config.options import Config
from transformer.config.ranges import typed
from transformer.data.remote import has
from transformer.model.parameters import Params, Variables
from transformer.runs.checkpoints import Checkpoints, not_written
from transformer.runs.config_json import from_json, is_earlier_name, may_be_earlier_name, to_json
from transformer.runs.log import Log
from transformer.runs.stores import store_type
from transformer.runtime.errors import UserError
from transformer.runtime.files import (
    Json,
    MiB,
    address,
    check_name,
    display_path,
    failing,
    forbid_links,
    is_name,
    read_stored,
    read_text,
    write_whole,
)
from transformer.runtime.hosts import on_local_devices
from transformer.runtime.invocation import command
from transformer.systems.parameters import as_computed, declared_parameters, model_shapes
from transformer.systems.registry import system_of
from transformer.systems.system import System
from transformer.tasks.task import Task
from transformer.training.parametrisation import parametrisation_of
from transformer.training.step import Parametrised

# The run that an adapter changes: found again, and compared.


def bytes_of(array: Any) -> memoryview:
    """The bytes of an array. They are not copied if they lie one after the other in this machine's memory."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def hash_of(params: Params) -> str:
    """A hash of the names, shapes, types and values of parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(params)

    def one(named: tuple[Any, Any]) -> bytes:
        path, leaf = named
        array = np.ascontiguousarray(leaf)
        header = f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}"
        digest = hashlib.blake2b(header.encode(), digest_size=16)
        digest.update(bytes_of(array))
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


log = logging.getLogger("transformer")

KEPT = "imported.json"


class Run:
    """An open run directory.

    Args:
      path: a directory that `create` made, or its remote address.
      writes: to train in it: then a copy of a remote one belongs to this process alone.

    Raises:
      UserError: it is missing, or not a run directory.

    Attributes:
      store: where the directory is.
      path: the folder on this machine: of a remote run, the copy.
      name: the run, as the user names it.
    """

    @typed
    def __init__(self, path: Path | str, writes: bool = False) -> None:
        if not os.fspath(path) or not is_name(path):
            raise UserError(f"{os.fspath(path)!a}: must be the path of a run directory")
        check_name(Path(path))
        self.store = store_type(path)(path, writes)
        self.name = self.store.name
        self.path = self.store.folder
        if not os.path.isdir(self.path):  # also if the name is too long
            raise UserError(f"{self.name}: no such run directory")
        try:
            text = read_text(self.path / "config.json", MiB)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.name} is not a run directory: it has no readable config.json") from error
        try:
            self.config = from_json(text)
        except UserError as error:
            if '"model_type"' in text:
                how = command("import", self.name, "RUN")
                raise UserError(
                    f"{self.name} is a pretrained model, not a run directory: import it first with {how}"
                ) from error
            raise UserError(f"{self.name}/config.json: {error}") from error
        if self.config.model.vocab_size < 1:
            raise UserError(f"{self.name}/config.json: model.vocab_size is missing")

    @classmethod
    @typed
    def create(
        cls,
        path: Path | str,
        config: Config,
        task: Task,
        corpus: str | None = None,
        variables: Variables | None = None,
        unused: Mapping[str, Json] = MappingProxyType({}),
    ) -> "Run":
        """Creates a run directory, complete or not at all.

        Args:
          path: the new directory.
          config: of the run.
          task: what it learned from the corpus is stored.
          corpus: the name of the prepared corpus. None: the model is imported.
          variables: of an imported model, saved as the checkpoint of step 0.
          unused: of an imported model, as `Run.kept`.

        Raises:
          UserError: the path exists already, or cannot be written; the config is invalid.
        """
        check_name(Path(path))
        cls.check_free(path)
        store = store_type(path)(path, writes=True)
        with failing(f"cannot create {store.name}"), store.created() as partial:
            task.save(partial)
            if corpus:
                write_whole(partial / "corpus", corpus + "\n")
            if unused:
                write_whole(partial / KEPT, json.dumps(unused, ensure_ascii=False, indent=1) + "\n")
            write_whole(partial / "config.json", to_json(config))
            run = cls(partial)  # refuses what could not be opened again
            if variables is not None:
                run.checkpoints.store_model(0, variables)
        return cls(path)

    @staticmethod
    @typed
    def check_free(path: Path | str) -> None:
        """Raises UserError if a run directory cannot be created."""
        check_name(Path(path))
        store_type(path).check_free(path)

    def check_resumable(self) -> None:
        """Raises UserError if this model was imported."""
        if not (self.path / "corpus").exists() and self.checkpoints.steps():
            raise UserError(
                f"{self.name} holds a model that was not trained here: to train it further, give "
                f"--init-from {self.name} and another --run-dir"
            )

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Locks the run directory for training. The lock ends with the process, however it ends. A remote one
        is taken over from another process.

        Raises:
          UserError: another process trains here; the directory contains a link, which could lead outside, or
            cannot be written.
        """
        forbid_links(self.path, "a run directory may contain")
        with self.store.claimed():
            try:
                yield
            except BrokenPipeError:
                raise
            except OSError as error:
                raise not_written(self.name, error) from error

    @typed
    def check_corpus(self, corpus: str) -> None:
        """Raises UserError if this is not the corpus that the run was started with. A built-in one may have
        its earlier name. Where that cannot be compared, a warning says so."""
        try:
            began_with = read_text(self.path / "corpus", MiB).strip()
        except (OSError, UnicodeDecodeError):
            began_with = ""
        if began_with == corpus or is_earlier_name(began_with, corpus):
            return
        if may_be_earlier_name(began_with, corpus):
            log.warning(
                "%s: this run began before built-in corpora had versions; its text cannot be compared, and "
                "is taken to be that of version 1",
                self.name,
            )
        else:
            raise UserError(
                f"{self.name}: the training data has changed since this run was started; restore the old "
                "data, or start another run with another --run-dir"
            )

    @functools.cached_property
    def kept(self) -> dict[str, Json]:
        """What the JSON files of an imported folder say and the import did not use, by their names.

        Raises:
          UserError: the file is damaged.
        """
        return read_stored(self.path / KEPT, _fields_of_files, largest=16 * MiB) or {}

    @functools.cached_property
    def system(self) -> System:
        """The system of its config.

        Raises:
          UserError: the package that brings it is not installed.
        """
        return system_of(self.config)

    @functools.cached_property
    def task(self) -> Task:
        """The task, with what it learned from the corpus.

        Raises:
          UserError: a file is missing or damaged.
        """
        with self.store.named():
            return self.system.task.load(self.config, self.path)

    @functools.cached_property
    def shapes(self) -> Variables:
        """The shapes of its model's variables."""
        return model_shapes(self.system, self.config)

    @functools.cached_property
    def parametrisation(self) -> Parametrised:
        """How the parameters of its model follow from what is trained."""
        declared = declared_parameters(self.system, self.config)
        return parametrisation_of(self.config, self.shapes["params"], declared)

    @typed
    def variables(
        self, checkpoint: str | int, base: Params | None = None, computed: bool = False
    ) -> Variables:
        """The variables of its model. Those of an adapter are merged into the parameters that it changes.

        Args:
          checkpoint: "best" (by the first score of validation), "last", "average" (of the last ones), or a
            step.
          base: of an adapter, the parameters that it changes. None: those of the run that it names.
          computed: whether matrices are read in the type that products compute in (`as_computed`), except
            those of an average or an adapter.

        Raises:
          UserError: the checkpoint is missing or damaged; the base of an adapter is missing, or another one.
        """
        if checkpoint == "average":
            average = self.checkpoints.average(self.shapes)
            return self.averaged(base=base) if average is None else average
        how = self.parametrisation
        if not how.is_adapter:
            dtype, declared = self.config.model.compute_dtype, declared_parameters(self.system, self.config)
            cast = functools.partial(as_computed, dtype=dtype, declared=declared)
            like = jax.eval_shape(cast, self.shapes) if computed and dtype != "float32" else self.shapes
            return self.checkpoints.variables(checkpoint, like)
        trained, _ = jax.eval_shape(how.split, self.shapes["params"])
        variables = self.checkpoints.variables(checkpoint, {**self.shapes, "params": trained})
        if base is None:
            base = self.base()
        else:
            base = check_base(self.name, self.config.adapter, base)
            variables = on_local_devices(variables)  # as the base may be
        return {**variables, "params": how.merge(variables["params"], base)}

    @typed
    def averaged(self, steps: Sequence[int] = (), base: Params | None = None) -> Variables:
        """The mean of several checkpoints' variables (section 6.1), computed in float64, then rounded.

        Args:
          steps: of the checkpoints. None given: the newest `keep_last`.
          base: as in `variables`.
        """
        chosen = [self.checkpoints.find(step) for step in steps or self.checkpoints.newest()]
        total = jax.tree.map(lambda x: np.zeros(x.shape, np.float64), self.shapes)
        for step in chosen:
            total = jax.tree.map(lambda a, b: a + np.asarray(b), total, self.variables(step, base))
        return jax.tree.map(lambda a, x: jnp.asarray(a / len(chosen), x.dtype), total, self.shapes)

    def changed_by(self, adapter: AdapterConfig) -> AdapterConfig:
        """The options of an adapter, with what it changes: this run's best checkpoint.

        Raises:
          UserError: the options name another base.
        """
        step = self.checkpoints.best() if adapter.base_step is None else adapter.base_step
        params = self.variables(step)["params"]
        if adapter.base_hash is not None:
            check_base(self.name, adapter, params)
        return replace(adapter, base_step=step, base_hash=hash_of(params))

    def base(self) -> Params:
        """The parameters that an adapter changes.

        Raises:
          UserError: the run that it names is missing, or holds others.
        """
        adapter = self.config.adapter
        base = changed = self._base_run()
        seen = {self.path.resolve()}
        while changed.config.adapter.rank:  # an adapter of an adapter
            if changed.path.resolve() in seen:
                raise UserError(f"{self.name}: adapters that change each other have no base")
            seen.add(changed.path.resolve())
            changed = changed._base_run()
        assert adapter.base_step is not None
        return check_base(self.name, adapter, base.variables(adapter.base_step)["params"])

    def _base_run(self) -> "Run":
        adapter, named = self.config.adapter, self.config.training.init_from
        if named is None or adapter.base_step is None:
            raise UserError(f"{self.name}/config.json: an adapter without the run that it changes")
        runs = [Run(path) for path in bases(named, self.name) if has(path, "config.json")]
        other_runs = [run for run in runs if run.path.resolve() != self.path.resolve()]
        runs = other_runs or runs  # the caller may name this one, as what another adapter changes
        having = [run for run in runs if adapter.base_step in run.checkpoints.steps()]
        for run in having:
            if run is having[-1] or hash_of(run.variables(adapter.base_step)["params"]) == adapter.base_hash:
                return run
        if runs:
            raise another_base(self.name, adapter)
        raise UserError(
            f"{self.name} changes checkpoint {adapter.base_step} of another run, {Path(named).name}, which "
            f"is not beside {self.name}: put it there, or name it with --base RUN, or in Python "
            f"load(RUN, adapter={self.name!r}). In training it was {display_path(named)}"
        )

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the run."""
        return Checkpoints(self.store, self.config.training.keep_last)

    @functools.cached_property
    def log(self) -> Log:
        """The log of the run, metrics.jsonl."""
        return Log(self.path / "metrics.jsonl")


def with_base(base: Path | None, *runs: Path) -> contextlib.AbstractContextManager[None]:
    """`named_bases` for --base. Raises UserError if it names a run, and none of the runs is an adapter."""
    if base is not None and not any(Run(run).config.adapter.rank for run in runs):
        raise UserError(f"--base {display_path(base)}: {Run(runs[0]).name} holds a whole model; leave it out")
    return named_bases(base)


def _fields_of_files(stored: Json) -> dict[str, Json]:
    if not all(isinstance(fields, dict) for fields in stored.values()):
        raise ValueError("not the fields of files")
    return stored


def adapter_run(path: Path | str) -> Run:
    """The run at a path. Raises UserError if it is no adapter."""
    run = Run(path)
    if not run.config.adapter.rank:
        raise UserError(f"{run.name} holds a whole model, not changes of one: load it alone")
    return run
