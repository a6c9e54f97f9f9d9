"""`train.py`: presets, options, and runs to resume or initialise from."""

import dataclasses
import itertools
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from transformer.cli.guard import printable, run_command
from transformer.cli.help import preset_table, train_help
from transformer.cli.methods import with_method
from transformer.cli.parser import parse
from transformer.commands import program
from transformer.config import Config, CorpusConfig, DataConfig, HostsConfig, Option, changed, flatten
from transformer.config.locations import completed, without_locations
from transformer.config.names import TRAINING
from transformer.data.remote import has
from transformer.errors import UserError, nearest
from transformer.files import display_path
from transformer.systems.presets import PRESETS
from transformer.systems.registry import load_entry_points, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FINE_TUNE = "fine-tune"
TEXT = ("--data.train", "--data.dataset")  # options that select the training text
VOCABULARY = ("tokenizer", "vocab_size", "joint_vocabulary")  # data options that define it


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
    """Also write the plan to this file, as JSON."""
    plan_minutes: float = 30.0
    """Limit of each compilation."""
    plan_gigabytes: float | None = None
    """Limit of each compilation's memory. None: 80 % of this machine's."""
    profile: int = 0
    """Write a trace of so many updates to the run directory, for TensorBoard or ui.perfetto.dev."""
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Print the complete configuration first."""


def train_main() -> int:
    """`train.py [preset] [options]`."""
    return run_command(program("train"), _train)


def _train(arguments: list[str]) -> None:
    if "--list-presets" in arguments:
        for failed in load_entry_points():
            print(failed, file=sys.stderr)
        print(preset_table())
        return
    preset = None
    if arguments and not arguments[0].startswith("-"):
        preset, *arguments = arguments
        if preset not in PRESETS:
            load_entry_points()
        if preset not in PRESETS:
            raise unknown(f"no preset {preset!r}{nearest(preset, PRESETS) or '; see --list-presets'}")
    if {"--help", "-h"} & {*arguments}:
        print(train_help(preset or "quickstart"))
        return
    arguments = ["--help" if word == "--help-all" else word for word in arguments]
    arguments = [re.sub("^--init-from(?==|$)", "--training.init-from", word) for word in arguments]
    parent = _value_of("--training.init-from", arguments)
    if parent and preset is None:
        preset = FINE_TUNE
    if preset == FINE_TUNE and not parent:
        raise UserError("fine-tune needs --init-from RUN: the run to initialise from")
    run_dir = None if preset else _value_of("--run-dir", arguments)
    if run_dir and has(run_dir, "config.json"):
        given, about = _continued(arguments, Path(run_dir)), f"Resuming {display_path(run_dir)}"
    else:
        given, about = _initial_arguments(arguments, preset, parent)

    if given.plan is None:
        for name in ("plan_json", "plan_minutes", "plan_gigabytes"):
            if getattr(given, name) != getattr(TrainArguments, name):
                raise UserError(f"--{name.replace('_', '-')} needs --plan, such as --plan v5e:2x4")
    else:
        from transformer.cli.plan import PlanArguments, print_plan
        from transformer.plan.plan import Limits

        limits = Limits(given.plan_minutes, given.plan_gigabytes)
        print_plan(given.config, PlanArguments(given.plan, given.plan_json, limits), about)
        return

    from transformer.runs.config_json import to_json
    from transformer.runtime.hosts import join

    join(given.hosts)
    if given.verbose:
        about += "\n" + printable(to_json(given.config))

    from transformer.trainer.train import train

    if given.profile < 0:
        raise UserError(f"--profile {given.profile}: must be a number of updates")
    train(given.config, given.run_dir, about=about, profile=given.profile)


def _initial_arguments(
    arguments: list[str], preset: str | None, parent: str | None
) -> tuple[TrainArguments, str]:
    """Parses the command line of a new run, with a preset's options as defaults; and what to say of it."""
    default = PRESETS[preset or "quickstart"]
    if parent:
        default = _begun_from(parent, default, network=preset == FINE_TUNE)
    given, has_text = parse_train(arguments, default), any(word.startswith(TEXT) for word in arguments)
    if parent:
        _check_vocabulary(given.config.data, default.data)
    if preset == FINE_TUNE and not has_text:
        pair = isinstance(default.data, DataConfig)
        options = "--data.train-source and --data.train-target" if pair else "--data.train"
        raise UserError(f"--init-from needs a training text: give {options}")
    about = announced(given.config, preset or "quickstart")
    if preset is not None and preset.startswith(("tiny", "multi30k")) and not has_text:
        about += "\nNo --data.train-source: training on the built-in corpus instead of Multi30k."
    if preset is None and given.run_dir:
        text = "" if has_text else " on a built-in corpus, since no text is given"
        about = f"{display_path(given.run_dir)} does not exist yet: starting a new run{text}.\n{about}"
    return given, about


def _continued(arguments: list[str], run_dir: Path) -> TrainArguments:
    """Parses the command line of a resumed run, with the run's options as defaults, except for paths that
    training opens (see `transformer.config.locations`)."""
    from transformer.runs.run import Run

    run = Run(run_dir)
    given = parse_train(arguments, without_locations(run.config))
    config = completed(given.config, run.config, run_dir, begun=bool(run.checkpoints.steps()))
    return dataclasses.replace(given, config=config)


def _value_of(option: str, arguments: list[str]) -> str | None:
    """An option's value before the command line is parsed, since it changes other defaults."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, _, value = word.partition("=")
        if name == option:
            return value or following
    return None


def _begun_from(run_dir: str, default: Config, network: bool) -> Config:
    """The config with the vocabulary of the run to initialise from and, if requested, its network and search
    options."""
    from transformer.runs.run import Run

    parent = Run(run_dir).config
    vocabulary = {name: getattr(parent.data, name) for name in VOCABULARY if hasattr(parent.data, name)}
    if not vocabulary:
        raise UserError(
            f"--init-from {run_dir}: system {parent.system} has no text, so it cannot be initialised"
        )
    if type(parent.data) is not type(default.data):
        if not network:
            raise UserError(f"--init-from {run_dir} holds a {parent.system}: leave out the preset")
        default = dataclasses.replace(default, data=without_locations(parent).data)
    default = dataclasses.replace(default, data=dataclasses.replace(default.data, **vocabulary))
    if not network:
        return default
    model = dataclasses.replace(without_locations(parent).model, dtype="auto")  # of this machine
    return dataclasses.replace(default, system=parent.system, model=model, decoding=parent.decoding)


def _check_vocabulary(data: CorpusConfig, default: CorpusConfig) -> None:
    """Raises UserError if vocabulary options differ from those of the run to initialise from."""
    for name in (*VOCABULARY, "source_tokenizer", "target_tokenizer"):
        if getattr(data, name, None) != getattr(default, name, None):
            raise UserError(
                f"--data.{name.replace('_', '-')}: --init-from brings its own vocabulary; leave it out"
            )


def parse_train(arguments: list[str], default: Config) -> TrainArguments:
    """Parses the command line, with defaults from a config."""
    lengths = [f"--training.{name}" for name in ("steps", "epochs")]
    if all(any(word.partition("=")[0] == length for word in arguments) for length in lengths):
        raise UserError(
            f"{lengths[1]} and {lengths[0]} are both the length of training: leave one of them out"
        )
    decoding = with_method(default.decoding, arguments, "--decoding.")
    if decoding is not default.decoding:
        default = dataclasses.replace(default, decoding=decoding)
    return parse(
        TrainArguments,
        arguments,
        "train [PRESET]",
        default=TrainArguments(default),
        about="Every option. --help has the common ones and examples, --list-presets the presets.",
        names=TRAINING,
    )


def announced(config: Config, preset: str) -> str:
    """The preset, and on at most three more lines the options in which a config differs from it."""
    known, differing = flatten(config), changed(PRESETS[preset], config)
    options = [f"--{name.replace('_', '-')} {now}" for name, _, now in differing if name in known]
    text = f"Preset {preset}" + (f", with {' '.join(options)}" if options else "")
    lines = textwrap.wrap(
        printable(text), 80, max_lines=4, placeholder=" ... (all: -v)", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines)


def fields_of(section: "DataclassInstance") -> list[tuple[str, Option]]:
    """The fields of a config's section, and their values."""
    return [(item.name, getattr(section, item.name)) for item in dataclasses.fields(section)]
