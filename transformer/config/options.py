"""The configuration of a run, as frozen dataclasses. The command line is generated from them, the run
directory stores them, and presets are named instances (see `transformer.systems.presets`). Paths to its text
come from the command line, never from the run directory."""

import dataclasses
import shlex
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from transformer.config.corpus import CorpusConfig, DataConfig
from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.methods import (
    AdapterConfig,
    GuidanceConfig,
    RDropConfig,
    RewardConfig,
    ScheduledConfig,
)
from transformer.config.model import ModelConfig
from transformer.config.ranges import Option, Range, Section
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import TransformerConfig
from transformer.runtime.errors import UserError
from transformer.runtime.files import ascii_host, display_path
from transformer.runtime.supervision import HEARTBEAT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class MeshConfig(Section):
    """Sharding. With fsdp = tensor = 1, every device holds the whole model: it is a replica."""

    SECTION = "mesh"

    fsdp: Annotated[int, Range(1, 2**16)] = 1
    """Number of shards of parameters and optimizer state. Parameters are gathered when needed; each shard
    processes a part of the batch."""
    tensor: Annotated[int, Range(1, 2**16)] = 1
    """Number of shards of heads, feed-forward layers and vocabulary, which process the same rows. The
    remaining devices split the batch."""
    replicas: Literal["pmap", "shard_map"] = "pmap"
    """How the step runs on replicas: by `jax.pmap`, or by `jax.jit` of `jax.shard_map`, with the same
    results."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_replicated and self.replicas != "pmap":
            raise UserError(
                f"--mesh.replicas {self.replicas} is for replicas: with --mesh.fsdp or --mesh.tensor the "
                "step runs under jax.jit. Leave it out, or give --mesh.replicas pmap if the run has it"
            )

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole model."""
        return self.fsdp * self.tensor == 1


@dataclass(frozen=True)
class Config(Section):
    """Complete configuration of a run. Equal configs give equal results."""

    system: str = "transformer"
    """System, such as transformer, recurrent or speech. A preset sets it, with the options of its model,
    corpus and search: see --list-presets."""
    model: ModelConfig = field(default_factory=TransformerConfig)
    """The network. Its type depends on the system."""
    data: CorpusConfig = field(default_factory=DataConfig)
    """Corpus, vocabulary and batches."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Adam and its learning rate."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Training length, evaluations and checkpoints."""
    decoding: DecodingConfig = field(default_factory=BeamConfig)
    """Search options, for evaluations and as defaults of decode.py. The type depends on the system and on the
    method."""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    """Sharding."""
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    """Low-rank adapters."""
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)
    """Guided attention."""
    rdrop: RDropConfig = field(default_factory=RDropConfig)
    """R-Drop."""
    scheduled: ScheduledConfig = field(default_factory=ScheduledConfig)
    """Scheduled sampling."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Training on rewards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        separate = isinstance(self.data, DataConfig) and not self.data.joint_vocabulary
        if separate and self.model.shares_inputs:
            raise UserError(
                "--data.no-joint-vocabulary needs --model.share-embeddings target (or none): "
                "two vocabularies cannot share one matrix"
            )
        if self.training.reduce_dtype != "float32" and not self.mesh.is_replicated:
            raise UserError(
                f"--training.reduce-dtype {self.training.reduce_dtype} is for replicas: with --mesh.fsdp or "
                "--mesh.tensor gradients are added as they are computed, in --model.dtype. Leave it out"
            )
        for option, name, longest in position_limits(self.model, self.data):
            if longest < getattr(self.data, name):
                limited = f"--data.{name.replace('_', '-')}"
                raise UserError(
                    f"{option} {longest} is less than {limited} {getattr(self.data, name)}: the table of "
                    f"learned positions is too short; give {limited} {longest}"
                )


def position_limits(model: ModelConfig, data: CorpusConfig) -> list[tuple[str, str, int]]:
    """The options of learned positions, and which length of the data each limits to how much."""
    limits = [("--model.max-positions", model.TARGET_LENGTH, model.longest)]
    if isinstance(data, DataConfig) or model.TARGET_LENGTH != "max_length":  # the source is a sequence too
        limits += [("--model.encoder-stack.max-positions", "max_length", model.longest_source)]
    return [(option, name, longest) for option, name, longest in limits if longest is not None]


def text_data(config: Config) -> DataConfig:
    """The options of a config's text corpus.

    Raises:
      UserError: its system does not read text.
    """
    if not isinstance(config.data, DataConfig):
        raise UserError(f"system {config.system} does not read pairs of sentences")
    return config.data


def first_added(config: Config) -> int | None:
    """The first id that was added to the vocabulary of the run that a config starts from, if any was."""
    return config.data.first_added if isinstance(config.data, DataConfig) else None


def flatten(config: "DataclassInstance", prefix: str = "") -> dict[str, Option]:
    """Every leaf of a config dataclass by its dotted name, e.g. `{"model.d_model": 512, ...}`."""
    leaves: dict[str, Option] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            leaves |= flatten(value, f"{prefix}{item.name}.")
        else:
            leaves[prefix + item.name] = value
    return leaves


NAMED = 5  # of the options that differ, in a message


def as_word(value: Option) -> str:
    """A value as on a command line: several are divided by spaces."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def differences(old: Config, new: Config, besides: Container[str] = ()) -> str:
    """The options in which two configs differ, including options that only one of them has: the first few,
    and how many more there are. Empty: none.

    Args:
      old: a config.
      new: another one.
      besides: fields that may differ.
    """
    lines = [
        f"--{name.replace('_', '-')}: {as_word(before) or 'none'} -> {as_word(after) or 'none'}"
        for name, before, after in changed(old, new)
        if name not in besides
    ]
    more = len(lines) - NAMED
    return "; ".join(lines[:NAMED] + ([f"and {more} more"] if more > 0 else []))


DECIDED = {
    "model": ("dtype",),
    "data": ("source_language", "target_language", "batching", "sampling_by", "first_added", "spans"),
    "optimizer": ("decay_steps",),
    "training": ("bleu_tokenize", "error_rate", "dropout_by"),
    "adapter": ("base_step", "base_hash"),
}
"""Options that are decided when a run begins, if they are None or auto."""
OPEN = (None, "auto")


def as_decided(config: Config, other: Config) -> Config:
    """A config, with what another has decided where it leaves that open."""
    sections = {}
    for name, options in DECIDED.items():
        section = getattr(config, name)
        decided = getattr(other, name)
        if type(section) is not type(decided):  # of another system, which may not support it
            continue
        undecided = [option for option in options if getattr(section, option, "") in OPEN]
        sections[name] = dataclasses.replace(section, **{x: getattr(decided, x, None) for x in undecided})
    return dataclasses.replace(config, **sections)


def changed(old: Config, new: Config) -> list[tuple[str, Option, Option]]:
    """The fields in which two configs differ: name, old value, new value; "none" if one config has no such
    field."""
    before = flatten(old)
    after = flatten(new)
    pairs = ((name, before.get(name, "none"), after.get(name, "none")) for name in before | after)
    return [(name, was, is_now) for name, was, is_now in pairs if was != is_now]


@dataclass(frozen=True)
class HostsConfig(Section):
    """Distributed job. SLURM, Open MPI and Cloud TPUs are detected automatically."""

    SECTION = "hosts"

    coordinator: str | None = None
    """HOST:PORT of the main process, reachable from all others."""
    processes: int | None = None
    """Number of processes of this job. 1, without the other options: this process runs alone, also in a job
    of several."""
    process: int | None = None
    """Index of this process, from 0."""
    heartbeat: int = HEARTBEAT
    """Seconds without a sign of life after which a process counts as lost, and the others end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        options = (self.coordinator, self.processes, self.process)
        if None in options and options not in ((None, None, None), (None, 1, None)):
            raise UserError(
                "--hosts.coordinator, --hosts.processes and --hosts.process: give all three, or none"
            )
        if self.processes is not None and self.processes < 1:
            raise UserError(f"--hosts.processes {self.processes} must be at least 1")
        if self.processes is not None and not 0 <= (self.process or 0) < self.processes:
            raise UserError(f"--hosts.process {self.process} must be from 0 to {self.processes - 1}")
        if self.coordinator is not None:
            host, _, port = self.coordinator.rpartition(":")
            if not (ascii_host(host) and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 2**16):
                raise UserError(
                    f"--hosts.coordinator {self.coordinator}: give HOST:PORT, the port from 1 to 65535"
                )
        if self.heartbeat < 1:
            raise UserError("--hosts.heartbeat must be at least 1 second")


# Paths to the text of a run come from the command line, never from the run directory.


C = TypeVar("C", Config, DataConfig)
CACHES = ("cache_dir", "exchange")
NOT_OPENED = (*CACHES, "source_tokenizer", "target_tokenizer", "add_tokens")  # after a run has started
STARTS = ("training.init_from", "training.init_encoder_from")
"""Runs that a run starts from."""


def locations(config: "DataclassInstance", prefix: str = "") -> dict[str, Path]:
    """The paths in a config, by dotted name. For a section, the prefix is its name and a dot."""
    return {name: value for name, value in flatten(config, prefix).items() if isinstance(value, Path)}


def as_options(paths: dict[str, Path]) -> str:
    """Paths as options of a command line, quoted for a shell."""
    return "".join(
        f" --{name.replace('_', '-')} {shlex.quote(display_path(path))}"
        for name, path in sorted(paths.items())
    )


def without_locations(config: C) -> C:
    """The config with None for every path."""
    return _replaced(config, dict.fromkeys(locations(config)))


def to_resume(paths: dict[str, Path], has_checkpoint: bool, is_adapter: bool) -> dict[str, Path]:
    """Those of a run's paths that a command has to name to resume it as before: its text, its cache and,
    until it has a checkpoint, the run that it starts from; that of an adapter always."""
    unused = {f"data.{name}" for name in NOT_OPENED if name not in CACHES}
    unused |= {*STARTS} if has_checkpoint else set()
    unused -= {"training.init_from"} if is_adapter else set()
    return {name: path for name, path in paths.items() if name not in unused}


def opened(stored_paths: dict[str, Path]) -> dict[str, Path]:
    """Those of a run's paths that are opened to read its text or to begin it."""
    return {name: path for name, path in stored_paths.items() if name.split(".")[-1] not in NOT_OPENED}


def with_named_corpus(config: Config, remedy: str) -> Config:
    """The config of a run, without paths, of a corpus that it names. Raises UserError, with a remedy, if the
    corpus is at paths."""
    if stored := opened(locations(config.data, "data.")):
        raise UserError(
            f"{remedy}, since paths stored in a run directory are not opened by default. The run was trained "
            f"with{as_options(stored)}"
        )
    return without_locations(config)


def check_given(option_paths: dict[str, Path], stored_paths: dict[str, Path], run_dir: Path) -> None:
    """Raises UserError if a stored path that would be opened was not given again."""
    needed = opened(stored_paths)
    if missing := needed.keys() - option_paths.keys():
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(missing))
        raise UserError(
            f"{display_path(run_dir)}: give {options} again, since paths stored in a run directory are "
            f"not opened by default. It was started with{as_options(needed)}"
        )


def completed(config: Config, stored: Config, run_dir: Path, has_checkpoint: bool) -> Config:
    """The config to continue a run with.

    Args:
      config: the command line's, parsed with `without_locations(stored)` as the default.
      stored: the run's.
      run_dir: for the message.
      has_checkpoint: whether it has a checkpoint; then no run is opened that it started from, except for the
        model of an adapter, which is beside it or given again.

    Raises:
      UserError: a path that would be opened was not given again.
    """
    option_paths = locations(config)
    stored_paths = locations(stored)
    stored_paths.pop("data.cache_dir", None)
    unopened = {name: path for name, path in stored_paths.items() if name not in opened(stored_paths)}
    for start in (name for name in STARTS if has_checkpoint and name in stored_paths):
        path = stored_paths.pop(start)
        if not stored.adapter.rank:
            unopened[start] = path
    check_given(option_paths, stored_paths, run_dir)
    return _replaced(config, {name: path for name, path in unopened.items() if name not in option_paths})


def _replaced(config: C, values: dict[str, Path | None]) -> C:
    """The config with some fields replaced, by dotted name."""
    here = {name: value for name, value in values.items() if "." not in name}
    sections: dict[str, dict[str, Path | None]] = {}
    for name, value in values.items():
        if "." in name:
            section, _, rest = name.partition(".")
            sections.setdefault(section, {})[rest] = value
    for section, inner in sections.items():
        here[section] = _replaced(getattr(config, section), inner)
    return dataclasses.replace(config, **here)  # type: ignore[arg-type]
