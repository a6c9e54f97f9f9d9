"""Trained models as run directories hold them: loading one, its adapters and its language model."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer.config.arguments import true_or_false
from transformer.config.options import Config
from transformer.config.ranges import instance, shown, typed
from transformer.decoding.calls import Inputs
from transformer.decoding.service.queue import Request
from transformer.model.declarations import count
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.parameters import INT8, Params, Variables
from transformer.runs.run import Run, adapter_run, bytes_of
from transformer.runs.sealed import compare
from transformer.runtime.compilation import keep_programs
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import on_local_devices, refuse_forked
from transformer.runtime.machine import release_memory
from transformer.systems.parameters import as_computed, declared_parameters, in_int8, model_shapes
from transformer.systems.registry import system_of
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask
from transformer.translator.beside import Beside, Names, names_beside, read_language_model
from transformer.translator.confidence import Confidence

TaskT = TypeVar("TaskT", bound=DecodingTask)
L = TypeVar("L", bound="LoadedModel[Any]")


class LoadedModel(Generic[TaskT]):
    """A trained model with its task.

    Args:
      config: of the run.
      variables: of the model.
      task: what it reads and writes.

    Attributes:
      origin: the run and the checkpoint it was loaded from, if any.
      longest: the length up to which the decoder has positions; None: any.
      longest_source: that of the encoder.
      confidence: of its words, if the run has it (`transformer calibrate`).
      language_model: of the outputs, in its search (`use_language_model`). None: there is none.
      bias: names that its search expects (`use_names`). None: there are none.
    """

    reads: ClassVar[Any] = DecodingTask
    """The type of its runs' task."""
    does: ClassVar[str] = "decode"
    """What they do, for messages."""

    @typed
    def __init__(self, config: Config, variables: Variables, task: TaskT) -> None:
        self.config, self.task = config, task
        if "params" not in variables:
            raise UserError("variables must have the collection params: those that model.init returns")
        self.longest = config.model.longest
        self.longest_source = config.model.longest_source
        self.system: System = system_of(config)
        if INT8 not in variables:
            params = model_shapes(self.system, config)["params"]
            if not isinstance(variables["params"], Mapping):
                raise UserError(f"variables: params must be a dictionary, not {shown(variables['params'])}")
            try:
                compare(variables["params"], params, "variables")
            except ValueError as error:
                raise UserError(f"variables are not those of a model of this config: {error}") from error
        dtype = config.model.compute_dtype
        if dtype == "float32":
            self.variables: Variables = on_local_devices(variables)
            self._whole: Callable[[], Params] = lambda: self.variables["params"]
        else:
            computed = as_computed(variables, dtype, declared_parameters(self.system, config))
            self.variables = on_local_devices(computed)
            self._whole = lambda: variables["params"]
        self.model: nn.Module = self.system.model(config.model)
        self.origin = ""
        self.confidence: Confidence | None = None
        self.language_model: Beside | None = None
        self.bias: Beside | None = None

    def __repr__(self) -> str:
        size = count(self.variables)
        facts = [self.origin, self.task.describe(), self.config.system, f"{size:,} parameters"]
        return f"<{type(self).__name__}: {', '.join(filter(None, facts))}>"

    def __reduce__(self) -> str:
        raise UserError(
            f"a {type(self).__name__} cannot be pickled: its compiled programs and arrays belong to this "
            f"process. Send the run directory, and call {type(self).__name__}.load there"
        )

    @classmethod
    def load(
        cls: type[L],
        run_dir: Path | str,
        checkpoint: str | int = "best",
        *,
        int8: bool = False,
        adapter: Path | str | None = None,
    ) -> L:
        """Loads a trained model from a run directory, which is self-contained.

        Args:
          run_dir: a run directory.
          checkpoint: "best" (by the first score of validation), "last", "average" (of the last ones), or a
            step.
          int8: use int8 weights (see `transformer.model.parameters`): faster on CPUs, at similar quality.
          adapter: a run with changes of this model (--adapter.rank). Then the checkpoint is the adapter's. An
            adapter is loaded without this too, if the model is beside it, in a folder of the name that it had
            in training.

        Raises:
          UserError: the directory or the checkpoint is missing or damaged; the adapter changes another model.
        """
        for name, path in (("run_dir", run_dir), *([("adapter", adapter)] if adapter is not None else [])):
            if not isinstance(path, str | Path):
                raise UserError(f"{name} {shown(path)}: must be the path of a run directory")
        int8 = true_or_false("int8", int8)
        refuse_forked()
        keep_programs()
        run = base = Run(run_dir)
        if adapter is not None:
            run = adapter_run(adapter)

        def read(computed: bool = False) -> Variables:
            if adapter is None:
                return run.variables(checkpoint, computed=computed)
            step = run.config.adapter.base_step
            return run.variables(checkpoint, base.variables("best" if step is None else step)["params"])

        if int8:
            declared = declared_parameters(run.system, run.config)
            variables = in_int8(read(), {path: leaf.summed for path, leaf in declared.items()})
            release_memory()
        else:
            variables = read(computed=True)
        loaded = cls.of_run(run, variables)
        if run.config.model.compute_dtype != "float32":
            loaded._whole = lambda: read()["params"]  # not kept in memory
        loaded.origin = f"{run.name}, checkpoint {checkpoint}" + (", int8" if int8 else "")
        loaded.confidence = Confidence.read(run.path)
        return loaded

    def adapted(self: L, adapter: Path | str, checkpoint: str | int = "best") -> L:
        """This model with the changes of an adapter, trained on its parameters. It shares those arrays with
        this one that are not changed, and its compiled programs.

        Args:
          adapter: a run that was trained with --adapter.rank.
          checkpoint: of the adapter, as in `load`.

        Raises:
          UserError: it is no adapter, or one of another model; this one has int8 weights, or is an ensemble.
        """
        run = adapter_run(adapter)
        if INT8 in self.variables:
            raise UserError("adapted: load the model without int8, or the adapter with it")
        whole = self._whole()
        variables = run.variables(checkpoint, whole)
        params = jax.tree.map(
            lambda new, old, held: held if new is old else new,
            variables["params"],
            whole,
            self.variables["params"],
        )
        loaded = type(self).of_run(run, {**variables, "params": params})
        loaded.origin = f"{run.name}, checkpoint {checkpoint}"
        loaded.confidence = Confidence.read(run.path)
        loaded.language_model, loaded.bias, loaded.longest = self.language_model, self.bias, self.longest
        return loaded

    @classmethod
    def of_run(cls: type[L], run: Run, variables: Variables) -> L:
        """With the config and the task of a run.

        Raises:
          UserError: it has another task.
        """
        task: Any = run.task
        if not isinstance(task, cls.reads):
            raise UserError(f"{run.name} holds a system that does not {cls.does}: {run.config.system}")
        return cls(run.config, variables, task)

    def use_language_model(self, path: Path | str | None, weight: float | int = 0.3) -> None:
        """Searches with a language model of the outputs from now on (shallow fusion): hypotheses are ranked
        by log P + weight * log p of it. Their `log_probability` stays that of the model.

        Args:
          path: a file in ARPA form, whose words are tokens of this model (`transformer ngram`), or a run of
            language-model with the vocabulary of the outputs. None: the search is without it.
          weight: with 0, outputs are those without it.

        Raises:
          UserError: there is no such model, or this one does not write text token by token.
        """
        language_model, lengths = None, [self.config.model.longest]
        if path is not None:
            instance("path", path, str | Path)
            language_model = read_language_model(Path(path), weight, self.system, self.task)
            lengths.append(language_model.longest)
        self.language_model = language_model
        self.longest = min((length for length in lengths if length is not None), default=None)

    def use_names(self, names: Names | None, weight: float | int = 0.5) -> None:
        """Searches with names that outputs are expected to have from now on: a hypothesis gains the weight of
        each token of a name in it, but never more than the name costs. Its `log_probability` stays that of
        the model.

        Args:
          names: words or phrases, a dictionary of them with own weights, or the path of a file with one on
            each line, and after a tab its own weight. None: the search is without them.
          weight: in nats, by which own weights are multiplied. With 0, outputs are those without names.

        Raises:
          UserError: the names cannot be used, or this model does not write text token by token.
        """
        self.bias = None if names is None else names_beside(names, weight, self.system, self.task)

    def source_positions(self, request: Request, inputs: Inputs) -> int:
        """The number of source positions that outputs attend to; the others are padding."""
        name, model = self.task.inputs[0], self.model
        if np.issubdtype(self.task.fields[name].dtype, np.integer) or not isinstance(model, EncoderDecoder):
            return len(request.example[name])
        return int(np.asarray(model.source_mask(jnp.asarray(inputs[name])))[0].sum())

    def fingerprint(self) -> str:
        """A hash of the network, its parameters and its vocabularies, which determine outputs, and of its
        language model and names."""
        digest = hashlib.blake2b(repr((self.config.system, self.model)).encode(), digest_size=16)
        digest.update(self.task.content())
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.variables):
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(bytes_of(leaf))
        for beside in (self.language_model, self.bias):
            if beside and beside.weight:
                digest.update(repr((beside.identity, beside.weight)).encode())
        return digest.hexdigest()
