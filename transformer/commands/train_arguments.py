"""The options of `train.py`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.command_line import TrainLine, with_method
from transformer.cli.parser import parse
from transformer.config.methods import CHOSEN, SCORING, check_idle, check_idle_search
from transformer.config.names import TRAINING
from transformer.config.options import Config, HostsConfig, flatten
from transformer.runtime.errors import UserError


@dataclass(frozen=True)
class TrainArguments:
    """Train a Transformer."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """Run directory, or a remote address such as gs://bucket/run. An existing run is resumed. Default: a new
    one under runs/."""
    hosts: HostsConfig = field(default_factory=HostsConfig)
    plan: str | None = None
    """Do not train: print what the job needs on accelerators that are not here, such as v5e:2x4, v5p:2x2x2,
    v6e:2x4, v4:2x2x2 or h100:8, from their own compilers (`pip install '.[plan]'`). cpu:8: simulated."""
    plan_json: Path | None = None
    """File to which --plan also writes the plan, as JSON."""
    plan_minutes: float = 30.0
    """Minutes that each compilation of --plan may take."""
    plan_gigabytes: float | None = None
    """Gigabytes of memory that each compilation of --plan may take. None: 80 % of this machine's."""
    profile: int = 0
    """Write a trace of so many updates to the run directory, for TensorBoard or ui.perfetto.dev."""
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Print the complete configuration before training."""


def parse_train(line: TrainLine, default: Config) -> TrainArguments:
    """Parses the command line, with defaults from a config.

    Raises:
      UserError: an option does not exist, or does not go together with another one.
    """
    steps = "--training.steps"
    epochs = "--training.epochs"
    if steps in line.options and epochs in line.options:
        raise UserError(f"{epochs} and {steps} are both the length of training: leave one of them out")
    decoding = with_method(default.decoding, line.options, "--decoding.")
    if "--model.dropout" in line.options and "--training.dropout-by" not in line.options:
        training = replace(default.training, dropout_by="option")
        default = replace(default, training=training)
    arguments = parse(
        TrainArguments,
        list(line.words),
        "train [PRESET] [--variant NAME]",
        default=TrainArguments(replace(default, decoding=decoding)),
        about=(
            "Every option. --help has the common ones and examples, --list-presets the presets and their "
            "variants. --config FILE.yaml (.toml, .json) reads options from a file: those of a run's "
            "config.json, or some of them, by section; those of the command line win."
        ),
        names=TRAINING,
    )
    _check(arguments)
    check_idle(flatten(arguments.config), flatten(default), CHOSEN)
    check_idle_search(arguments.config.decoding, decoding)
    _check_scores(arguments.config, default)
    return arguments


def _check_scores(config: Config, default: Config) -> None:
    """Raises UserError if an option of scores has been changed that the task has not."""
    changed = [name for name in SCORING if getattr(config.training, name) != getattr(default.training, name)]
    if not changed:
        return
    from transformer.systems.registry import system_of

    read = {*system_of(config).task.scored_by, *(["bleu_tokenize"] if config.reward.share else [])}
    for name in changed:
        if name not in read:
            option = name.replace("_", "-")
            raise UserError(f"--training.{option}: no score of this task reads it; leave it out")


def _check(arguments: TrainArguments) -> None:
    """Raises UserError if options outside the config do not go together."""
    for name in ("plan_json", "plan_minutes", "plan_gigabytes"):
        if arguments.plan is None and getattr(arguments, name) != getattr(TrainArguments, name):
            raise UserError(f"--{name.replace('_', '-')} needs --plan, such as --plan v5e:2x4")
    if arguments.profile < 0:
        raise UserError(f"--profile {arguments.profile}: must be a number of updates")
