"""`train.py`: presets and variants, and runs to resume or initialise from."""

import dataclasses
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from transformer.cli.command_line import FINE_TUNE, TrainLine
from transformer.cli.guard import named_command
from transformer.config.corpus import CorpusConfig, DataConfig
from transformer.config.options import Config, changed, completed, flatten, position_limits, without_locations
from transformer.config.training import TrainingConfig
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, display_path
from transformer.runtime.text import printable
from transformer.systems.presets import PRESETS, VARIANTS, preset, variant
from transformer.systems.registry import as_option, as_words

if TYPE_CHECKING:
    from transformer.commands.train_arguments import TrainArguments

VOCABULARY = ("tokenizer", "vocab_size", "joint_vocabulary")  # data options that define it


@named_command("train")
def train_main(command_line: list[str]) -> None:
    """`train.py [preset] [options]`."""
    line = TrainLine.of(command_line)
    if line.lists_presets or line.wants_help:
        _print_help(line)
        return
    if line.started and _is_run(line.started):
        arguments = _continued(line, Path(line.started))
        note = f"Resuming {display_path(line.started)}"
    else:
        arguments, note = _initial_arguments(line)

    if arguments.plan is not None:
        from transformer.commands.plan import print_plan

        print_plan(arguments, note)
        return

    from transformer.runs.config_json import to_json
    from transformer.runtime.hosts import join

    join(**vars(arguments.hosts))
    if arguments.verbose:
        note += "\n" + printable(to_json(arguments.config))

    from transformer.runtime.console import ProgressReporter
    from transformer.trainer.train import check_corpus, prepare_corpus, train

    if arguments.config.data.check:
        check_corpus(arguments.config, ProgressReporter(), note)
        return
    if arguments.config.data.prepare:
        prepare_corpus(arguments.config, arguments.run_dir, ProgressReporter(), note)
        return
    train(arguments.config, arguments.run_dir, about=note, profile=arguments.profile)


def _is_run(path: str) -> bool:
    """Whether a run directory exists."""
    from transformer.data.remote import has

    return has(path, "config.json")


def _print_help(line: TrainLine) -> None:
    """Prints the list of presets or the short help."""
    from transformer.commands.help import preset_table, train_help
    from transformer.systems.registry import load_entry_points

    if line.lists_presets:
        for failed in load_entry_points():
            print(failed, file=sys.stderr)
        print(preset_table())
    else:
        print(train_help(line.preset, *line.variants))


def _initial_arguments(line: TrainLine) -> tuple["TrainArguments", str]:
    """Parses the command line of a new run, with a preset's options as defaults; and the message about it."""
    from transformer.commands.train_arguments import parse_train

    if line.resumes and "--plan" in line.options:
        raise UserError(
            f"--run-dir {display_path(line.resumes)}: there is no run to plan; name a preset for a new one"
        )
    values: Json = {}
    if line.config:
        from transformer.commands.config_file import named_options, read_options

        values = read_options(line.config)
        line = line.with_config(named_options(values))
    default = _default(line, values)
    arguments = parse_train(line, default)
    if line.parent:
        _check_vocabulary(arguments.config.data, default.data)
    if line.preset == FINE_TUNE and not line.has_text:
        pair = isinstance(default.data, DataConfig)
        options = "--data.train-source and --data.train-target" if pair else "--data.train"
        raise UserError(f"--init-from needs training data: give {options}")
    base = preset(line.preset) if line.parent and not line.config else default
    name = ", variant ".join((line.preset, *line.variants))
    if "system" in values:  # without a preset
        name = ", variant ".join((line.config, *line.variants))
        note = announced(arguments.config, base, name, "Config")
    else:
        note = announced(arguments.config, base, name + f", config {line.config}" * bool(line.config))
    if line.is_named and line.preset.startswith(("tiny", "multi30k")) and not line.has_text:
        note += "\nNo --data.train-source: training on the built-in corpus instead of Multi30k."
    if line.resumes and arguments.run_dir:
        text = "" if line.has_text else " on a built-in corpus, since no text is given"
        note = f"{display_path(arguments.run_dir)} does not exist yet: starting a new run{text}.\n{note}"
    return arguments, note


def _default(line: TrainLine, values: Json) -> Config:
    """The options of a new run that the command line does not give: of the preset, the run to initialise
    from, the values of a file, and the variants.

    Raises:
      UserError: they do not exist or do not go together; there is no run to initialise from, and one is
        needed.
    """
    if line.preset not in PRESETS and _is_run(line.preset):
        raise UserError(f"{line.preset} is a run, not a preset: to resume it, give --run-dir {line.preset}")
    config = preset(line.preset)
    if line.parent and line.encoder:
        TrainingConfig(init_from=Path(line.parent), init_encoder_from=Path(line.encoder))  # refuses both
    if line.parent:
        config = _initialised_from(line.parent, config, network=line.preset == FINE_TUNE)
    if line.config:
        config = _configured(line, config, values)
    config = variant(config, *line.variants)
    if line.encoder:
        config = _with_encoder(line.encoder, config)
    continuing = [f"variant {name}" for name in line.variants if VARIANTS[name].continues]
    if line.preset == FINE_TUNE:
        continuing.append(FINE_TUNE)
    if continuing and not line.parent and "--help" not in line.options:
        raise UserError(f"{continuing[0]} needs --init-from RUN: the run to initialise from")
    return config


def _configured(line: TrainLine, default: Config, values: Json) -> Config:
    """The config of a line's file.

    Raises:
      UserError: something in it is wrong; it is of another system than the preset that the line names, or has
        another vocabulary than the run to initialise from.
    """
    from transformer.commands.config_file import with_options

    config = with_options(default, values, line.config, line.options)
    if line.is_named and config.system != default.system:
        raise UserError(
            f"{line.config}: system is {config.system}, and preset {line.preset} is of {default.system}: "
            "leave out the preset"
        )
    if line.parent:
        _check_vocabulary(config.data, default.data)
    return config


def _continued(line: TrainLine, run_dir: Path) -> "TrainArguments":
    """Parses the command line of a resumed run, with the run's options as defaults, except for paths that
    training opens (see `transformer.config.options`)."""
    from transformer.commands.train_arguments import parse_train
    from transformer.runs.run import Run

    run = Run(run_dir)
    arguments = parse_train(line, without_locations(run.config))
    config = completed(arguments.config, run.config, run_dir, has_checkpoint=bool(run.checkpoints.steps()))
    return dataclasses.replace(arguments, config=config)


def _initialised_from(run_dir: str, default: Config, network: bool) -> Config:
    """The config with the vocabulary of the run to initialise from and, if requested, its network and search
    options."""
    from transformer.runs.run import Run

    parent = Run(run_dir).config
    vocabulary = {name: getattr(parent.data, name) for name in VOCABULARY if hasattr(parent.data, name)}
    if not vocabulary:
        raise UserError(
            f"--init-from {run_dir}: the corpus of system {parent.system} has none of the options of a "
            "vocabulary (such as --data.tokenizer) that are taken from that run: from Python, set "
            "training.init_from in its config"
        )
    if type(parent.data) is not type(default.data):
        if not network:
            raise UserError(f"--init-from {run_dir} is a run of system {parent.system}: leave out the preset")
        default = dataclasses.replace(default, data=without_locations(parent).data)
    data = dataclasses.replace(default.data, **vocabulary)
    if not network:
        return dataclasses.replace(default, data=data)
    model = dataclasses.replace(without_locations(parent).model, dtype="auto")  # of this machine
    for _, name, longest in position_limits(model, data):
        data = dataclasses.replace(data, **{name: min(getattr(data, name), longest)})
    return dataclasses.replace(
        default, system=parent.system, model=model, data=data, decoding=parent.decoding
    )


def _with_encoder(run_dir: str, default: Config) -> Config:
    """The config with the encoder of a run, and a vocabulary and embeddings of the decoder's own."""
    from transformer.runs.run import Run
    from transformer.trainer.starts import with_encoder

    if not isinstance(default.data, DataConfig):
        return default  # refused later
    run = Run(run_dir)
    longest = min(default.data.max_length, run.config.model.longest_source or default.data.max_length)
    model = dataclasses.replace(default.model, share_embeddings="target")
    data = dataclasses.replace(default.data, joint_vocabulary=False, max_length=longest)
    return with_encoder(dataclasses.replace(default, model=model, data=data), run)


def _check_vocabulary(data: CorpusConfig, default: CorpusConfig) -> None:
    """Raises UserError if vocabulary options differ from those of the run to initialise from."""
    for name in (*VOCABULARY, "source_tokenizer", "target_tokenizer"):
        if getattr(data, name, None) != getattr(default, name, None):
            raise UserError(
                f"{as_option(f'data.{name}')}: --init-from brings its own vocabulary; leave it out"
            )


def announced(config: Config, base: Config, name: str, origin: str = "Preset") -> str:
    """The preset or file, and the options in which a config differs from it, in at most 320 characters."""
    described = flatten(config)
    options = [as_words(option, value) for option, _, value in changed(base, config) if option in described]
    text = f"{origin} {name}" + (f", with {' '.join(options)}" if options else "")
    return textwrap.shorten(printable(text), 320, placeholder=" ... (all: -v)", break_on_hyphens=False)
