"""Checks that a system keeps its contracts: for the tests of systems, also of other packages.

    from transformer.testing import check_system

    def test_my_system(tmp_path):
        check_system(config, tmp_path)

It trains the system a little in several ways, and compares what must be the same.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.config.options import Config, MeshConfig
from transformer.config.ranges import instance
from transformer.data.sequences import Field, Fields
from transformer.data.store import Record
from transformer.decoding.scores import SearchResult
from transformer.runs.report import REPORT
from transformer.runs.run import Run
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.tasks.outputs import DecodingTask, Lines
from transformer.trainer.train import train
from transformer.training.objective import Context
from transformer.training.step import TrainState, make_train_step
from transformer.translator.decoder import Decoder
from transformer.translator.search_inputs import search_of_one

STEPS = 4
"""Updates of each training, with an evaluation and a checkpoint in the middle and at the end."""
RECORDS = 4
"""Of the validation set, that are scored and decoded."""


def check_system(
    config: Config, folder: Path | str, *, tolerance: float = 1e-4, trained: Path | str | None = None
) -> dict[str, str]:
    """Trains a system, and checks that

    - its losses are finite, and a later one is lower than the first;
    - a run that was interrupted has the bits of one that was not;
    - two slices of each batch give the results of the whole batch, and so does every other layout of the
      devices that are there (set `XLA_FLAGS=--xla_force_host_platform_device_count=8` for eight on a CPU);
    - rows and columns of padding change neither the loss nor the update;
    - records have the same outputs alone and beside others, and the log P that a search gives an output is
      that of teacher forcing;
    - the test set is scored, and the report written.

    Args:
      config: of the system, small: it is trained five times or more, for four updates each, and all of its
        test set is decoded. Without dropout and other randomness of an update. Its warm-up is shortened to
        one update here, and its epsilon is at least 1e-4, so that Adam does not turn rounding errors of tiny
        gradients into updates.
      folder: where runs are written.
      tolerance: of what is computed in another order.
      trained: a run of the config after `STEPS` updates, if there is one: its folder is copied.

    Returns:
      What was checked, and of what was not, why: such as decoding, for a system without a search.

    Raises:
      AssertionError: a contract is broken. The message names it, and the array that differs.
      UserError: the config cannot be trained, or has dropout.
    """
    instance("config", config, Config)
    if config.model.dropout:
        raise UserError(
            f"--model.dropout {config.model.dropout:g}: what is compared must not be random, choose 0"
        )
    kit = _Kit(config, Path(folder), tolerance)
    whole = kit.trained("whole") if trained is None else Path(shutil.copytree(trained, kit.folder / "whole"))
    return {
        "losses": kit.check_losses(whole),
        "resumes": kit.check_resumed(whole),
        "slices": kit.check_same(whole, "slices", accumulate=2),
        "layouts": kit.check_layouts(whole),
        "padding": kit.check_padding(whole),
        "search": kit.check_search(whole),
        "report": kit.check_report(whole),
    }


@dataclasses.dataclass(frozen=True)
class _Kit:
    """The checks of one config."""

    config: Config
    folder: Path
    tolerance: float

    def trained(self, name: str, mesh: MeshConfig | None = None, **training: Any) -> Path:
        """A run of the config."""
        options = {"steps": STEPS, "evaluate_every": STEPS // 2, "log_every": 1, "keep_last": 2} | training
        optimizer = self.config.optimizer
        config = dataclasses.replace(
            self.config,
            training=dataclasses.replace(self.config.training, **options, dropout_by="option"),
            optimizer=dataclasses.replace(optimizer, warmup_steps=1, epsilon=max(optimizer.epsilon, 1e-4)),
            mesh=mesh or self.config.mesh,
        )
        return Path(train(config, self.folder / name, watch=ProgressReporter(quiet=True)))

    def check_losses(self, run: Path) -> str:
        """Finite, and falling."""
        losses = [record["loss"] for record in Run(run).log.records("training")]
        assert len(losses) == STEPS, f"losses: there are {len(losses)} of {STEPS}"
        assert np.isfinite(losses).all(), f"losses: {losses} are not finite"
        assert min(losses[1:]) < losses[0], f"losses: {losses} do not fall; is the rate too low or too high?"
        return "finite and falling"

    def check_resumed(self, run: Path) -> str:
        """To the last bit."""
        copy = Path(shutil.copytree(run, self.folder / "resumed"))
        shutil.rmtree(copy / "checkpoints" / str(Run(copy).checkpoints.steps()[-1]))
        train(Run(copy).config, copy, watch=ProgressReporter(quiet=True))
        for name, expected, value in _pairs(run, copy):
            assert (expected == value).all(), f"resumed: {name} differs from that of an uninterrupted run"
        return "with the same bits"

    def check_same(self, run: Path, name: str, mesh: MeshConfig | None = None, **training: Any) -> str:
        """Another way to the same results."""
        for parameter, expected, value in _pairs(run, self.trained(name, mesh, **training)):
            _assert_close(value, expected, f"{name}: {parameter}", self.tolerance)
        return "with the same results"

    def check_layouts(self, run: Path) -> str:
        """On all devices."""
        count = jax.device_count()
        if count == 1:
            return "not checked: there is one device"
        meshes = {f"fsdp {count}": MeshConfig(fsdp=count)}
        if count % 2 == 0:
            meshes[f"fsdp {count // 2}, tensor 2"] = MeshConfig(fsdp=count // 2, tensor=2)
        for name, mesh in meshes.items():
            self.check_same(run, name, mesh)
        return f"with the same results: {', '.join(meshes)}"

    def check_padding(self, path: Path) -> str:
        """Rows and columns of padding."""
        run = Run(path)
        config, task, system = run.config, run.task, run.system
        carry = system.carry(config, False)
        if jax.tree.leaves(carry):
            return "not checked: rows have memory"
        records: Any = _records(run)
        batch = next(iter(task.fixed_batches(records, 0, 1)))
        model = system.model(config.model)
        variables = jax.tree.map(jnp.asarray, run.variables("last"))

        def updated(batch: Mapping[str, np.ndarray]) -> Any:
            objective = system.objective(config, _no_teacher)
            context = Context(jax.random.key(0), carry=carry)
            of_batch: Any = jax.tree.map(jnp.asarray, dict(batch))
            loss = objective(model, variables, of_batch, context)
            optimizer, params = optax.sgd(1.0), variables["params"]
            statistics = {name: value for name, value in variables.items() if name != "params"}
            state = TrainState(
                jnp.zeros((), jnp.int32), params, optimizer.init(params), statistics, None, carry
            )
            state, _ = jax.jit(make_train_step(model, objective, optimizer, seed=0))(state, of_batch)
            return {"loss": (loss.total, loss.weight), "params": state.params, "rest": state.statistics}

        try:
            expected, with_padding = updated(batch), updated(padded(batch, task.fields))
        except UserError as error:
            return f"not checked: {error}"
        leaves = jax.tree_util.tree_leaves_with_path(with_padding)
        for (where, value), other in zip(leaves, jax.tree.leaves(expected), strict=True):
            _assert_close(value, other, f"padding: {jax.tree_util.keystr(where)}", self.tolerance)
        return "changes nothing"

    def check_search(self, path: Path) -> str:
        """Outputs, and their log P."""
        run = Run(path)
        system, task = run.system, run.task
        if not isinstance(task, DecodingTask) or system.search is None:
            return f"not checked: {run.config.system} has no search"
        decoder: Decoder[Any] = Decoder.load(path, "last")
        records = [record for record in _records(run) if not task.is_empty(record)]
        if not records:
            return "not checked: there is no record to decode"
        for number, outputs in enumerate(decoder.decode(records), 1):
            (alone,) = decoder.decode([records[number - 1]])
            same = (
                [task.line(x) for x in outputs] == [task.line(x) for x in alone]
                if isinstance(task, Lines)
                else True
            )
            assert same, f"search: output {number} depends on what is decoded beside it"
        log_p = system.scores and self._check_log_p(decoder, records[0])
        return f"{len(records)} outputs are the same alone{log_p or ''}"

    def _check_log_p(self, decoder: Decoder[Any], record: Record) -> str:
        """That of the best output of a record, by the search and by teacher forcing."""
        settings, system, task = decoder.settings(None, {}), decoder.system, decoder.task
        search, inputs = search_of_one(system, task, record, settings)
        result = search(decoder.model, decoder.variables, inputs, jnp.ones(1, jnp.int32), settings)
        if not isinstance(result, SearchResult) or system.scores is None:
            return ""
        read = {name: inputs[name] for name in task.input_fields}
        scores = system.scores(decoder.model, decoder.variables, read, result.tokens[:, 0])
        total = np.asarray(scores.log_p).sum(axis=1)
        _assert_close(
            result.log_probabilities[:, 0], total, "search: log P of an output", 10 * self.tolerance
        )
        return ", and their log P is that of teacher forcing"

    def check_report(self, path: Path) -> str:
        """Scores and page."""
        run = Run(path)
        criterion = run.task.criterion
        results = json.loads((path / "results.json").read_text(encoding="utf-8"))
        value = results[criterion.name]["value"]
        assert np.isfinite(value), f"report: {criterion.name} is {value}"
        page = (path / REPORT).read_text(encoding="utf-8")
        assert criterion.title in page, f"report: {criterion.title} is not on {REPORT}"
        return f"{criterion.title} of the test set, and {REPORT}"


def padded(
    batch: Mapping[str, np.ndarray], fields: Fields, rows: int = 2, columns: int = 3
) -> dict[str, np.ndarray]:
    """A batch with rows and columns of padding.

    Args:
      batch: arrays `[rows, ...]`.
      fields: of the task; those of sequences get columns.
      rows: how many.
      columns: how many.
    """

    def longer(name: str, x: np.ndarray) -> np.ndarray:
        field = fields.get(name, Field(padded=False))
        more = [(0, rows), *[(0, 0)] * (x.ndim - 1)]
        if field.padded and x.ndim > 1:
            more[1] = (0, columns)
        return np.pad(x, more, constant_values=field.fill)

    return {name: longer(name, x) for name, x in batch.items()}


def _records(run: Run) -> list[Record]:
    records = run.task.open_corpus(run.config).splits["validation"]
    return records.__getitems__(list(range(min(RECORDS, len(records)))))


def _no_teacher(path: Path) -> Any:
    raise UserError("its objective needs a trained model")


def _pairs(path: Path, other: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The variables of the last checkpoints of two runs, by name."""
    first, second = Run(path).variables("last"), Run(other).variables("last")
    for (where, value), same in zip(
        jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True
    ):
        yield jax.tree_util.keystr(where), np.asarray(value), np.asarray(same)


def _assert_close(value: Any, expected: Any, name: str, tolerance: float) -> None:
    value, expected = np.asarray(value, np.float64), np.asarray(expected, np.float64)
    difference = np.abs(value - expected).max(initial=0.0)
    close = np.allclose(value, expected, rtol=tolerance, atol=tolerance / 5)
    assert close, f"{name} differs by {difference:.2g}"
