"""The run directory: everything that training writes, self-contained and movable.

    config.json          the resolved config
    corpus               the name of the prepared corpus, which changes with its content
    source.model ...     what the task stores: for translation the tokenizers of source and target
    checkpoints/<step>/  Orbax: `model` (for decoding) and `training` (for resuming);
                         manifest.json, written last, has the hashes of all files
    average/             an averaged `model`, if requested
    metrics.jsonl        the log, one JSON object per line; tensorboard/ has the same for TensorBoard
    results.json         test scores with their signatures
    report.html          all of this as a page
    lock                 held during training

It contains no pickles.
"""

import contextlib
import fcntl
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer.config import Config
from transformer.config.json import from_json, to_json
from transformer.errors import UserError
from transformer.files import (
    MiB,
    append_flags,
    check_name,
    check_plain,
    folder_whole,
    read_text,
    write_whole,
)
from transformer.model.parameters import Variables
from transformer.runs.checkpoints import Checkpoints, not_written
from transformer.runs.log import Log
from transformer.runtime.hosts import is_main_process
from transformer.systems.registry import find_system
from transformer.tasks.task import Task


class Run:
    """An open run directory.

    Args:
      path: a directory that `create` made.

    Raises:
      UserError: it is missing, or not a run directory.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        check_name(self.path)
        if not self.path.is_dir():
            raise UserError(f"{self.path}: no such run directory")
        try:
            text = read_text(self.path / "config.json", MiB)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path} is not a run directory: it has no readable config.json") from error
        try:
            self.config = from_json(text)
        except UserError as error:
            foreign = '"model_type"' in text
            hint = "; to use a Marian model, first: transformer import" if foreign else ""
            raise UserError(f"{self.path / 'config.json'}: {error}{hint}") from error
        if self.config.model.vocab_size < 1:
            raise UserError(f"{self.path / 'config.json'}: model.vocab_size is missing")

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Config,
        task: Task,
        corpus: str | None = None,
        variables: Variables | None = None,
    ) -> "Run":
        """Creates a run directory, complete or not at all.

        Args:
          path: the new directory.
          config: of the run.
          task: what it learned from the corpus is stored.
          corpus: the name of the prepared corpus. None: the model is imported.
          variables: of an imported model, saved as the checkpoint of step 0.

        Raises:
          UserError: the path exists already, or cannot be written; the config is invalid.
        """
        path = Path(path)
        cls.check_free(path)
        try:
            with folder_whole(path) as partial:
                task.save(partial)
                if corpus:
                    write_whole(partial / "corpus", corpus + "\n")
                write_whole(partial / "config.json", to_json(config))
                run = cls(partial)  # refuses what could not be opened again
                if variables is not None:
                    run.checkpoints.store_model(0, variables)
        except OSError as error:
            raise UserError(f"cannot create {path}: {error.strerror}") from error
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Raises UserError if a run directory cannot be created."""
        check_name(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists already: name a new directory")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        try:  # permission bits are not enough on every file system
            tempfile.TemporaryFile(dir=above).close()
        except OSError as error:
            reason = f"{above} is not a writable folder ({error.strerror})"
            raise UserError(f"cannot create {path}: {reason}") from None

    def check_resumable(self) -> None:
        """Raises UserError if this model was imported."""
        if not (self.path / "corpus").exists() and self.checkpoints.steps():
            raise UserError(
                f"{self.path} holds a model that was not trained here: to train it further, give "
                f"--init-from {self.path} and another --run-dir"
            )

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Locks the run directory for training. The lock ends with the process, however it ends.

        Raises:
          UserError: another process trains here; the directory contains a link, which could lead outside, or
            cannot be written.
        """
        check_plain(self.path, "a run directory may contain")
        with contextlib.ExitStack() as held:
            try:
                if is_main_process():
                    file = held.enter_context(open(self.path / "lock", "a", opener=append_flags))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"{self.path}: another process trains there; wait for it, or choose another --run-dir"
                ) from error
            except OSError as error:
                raise UserError(f"cannot write to {self.path}: {error.strerror}") from error
            try:
                yield
            except BrokenPipeError:
                raise
            except OSError as error:
                raise not_written(self.path, error) from error

    def check_corpus(self, corpus: str) -> None:
        """Raises UserError if this is not the corpus that the run was started with."""
        try:
            began_with = read_text(self.path / "corpus", MiB).strip()
        except (OSError, UnicodeDecodeError):
            began_with = ""
        if began_with != corpus:
            raise UserError(
                f"{self.path}: the training data has changed since this run was started; restore the old "
                "data, or start another run with another --run-dir"
            )

    @functools.cached_property
    def task(self) -> Task:
        """The task, with what it learned from the corpus.

        Raises:
          UserError: a file is missing or damaged.
        """
        return find_system(self.config.system).task.load(self.config, self.path)

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """Its checkpoints."""
        return Checkpoints(self.path, self.config.training.keep_last)

    @functools.cached_property
    def log(self) -> Log:
        """Its log."""
        return Log(self.path / "metrics.jsonl")
