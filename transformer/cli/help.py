"""The text of `train.py --help`, which fits on one page, of `--list-presets` and of `transformer --help`."""

import textwrap

from transformer.commands import COMMANDS, command_for
from transformer.config import Config
from transformer.systems.presets import GROUPS, PRESETS
from transformer.systems.registry import options_of

EXAMPLES = {
    "": "a small model on the built-in English-German corpus",
    "multi30k --data.train-tsv pairs.tsv": "your own text",
    "--run-dir runs/transformer-1": "resume; name your text again",
    "--init-from runs/transformer-1 --data.train-source ...": "fine-tune",
    "language-model --data.train book.txt": "continue running text",
    "speech": "hear digits (needs pip install '.[speech]')",
    "base --plan v5e:2x4": "memory and hours on accelerators elsewhere",
}
"""Options of train, and what it does with them."""


def commands_help() -> str:
    """What `transformer --help` prints."""
    lines = [f"  {name:9} {what}" for name, (_, _, what) in COMMANDS.items()]
    about = "For details: transformer COMMAND --help. For versions: transformer --version."
    return "\n".join(["usage: transformer COMMAND [options]", "", *lines, "", about])


def train_help(preset: str = "quickstart") -> str:
    """The short help: what the command does, examples, common options with the preset's values, and the
    presets by group."""
    train = command_for("train")
    lines = [
        f"usage: {train} [PRESET] [OPTIONS]",
        "",
        "Train a Transformer, or another system, to translate, to continue text, to hear.",
        "The run directory gets checkpoints and report.html. Ctrl-C saves and stops.",
        "",
        "examples:",
    ]
    for options, what in EXAMPLES.items():
        command = f"  {' '.join((train, options)).strip()}"
        short = len(command) + len(what) <= 77
        lines += [f"{command}   {what}"] if short else [command, f"      {what}"]
    lines += ["", f"common options [value in preset {preset}]:"]
    for name, what in options_of(PRESETS[preset].system).common.items():
        option = "--" + name.replace("_", "-").replace("training.init-from", "init-from")
        lines += textwrap.wrap(
            f"{option:26} {what}{_value(PRESETS[preset], name)}",
            80,
            initial_indent="  ",
            subsequent_indent=" " * 29,
            break_on_hyphens=False,
        )
    lines += ["", "presets; options override their values (see --list-presets):"]
    for group, described in GROUPS.items():
        lines += textwrap.wrap(
            f"{group}: {', '.join(described)}",
            80,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    return "\n".join([*lines, "", "--help-all describes every option; --version prints versions."])


def _value(value: object, name: str) -> str:
    for part in name.split("."):
        value = getattr(value, part, None)
    return "" if value is None else f" [{value}]"


def preset_table() -> str:
    """Every preset: its size, layers x width, and what it is."""
    widest = max(map(len, PRESETS))
    lines = [f"{'preset':{widest + 2}} {'size':>8} {'updates':>7}  what (size: layers x width)"]
    for group, described in GROUPS.items():
        lines += ["", f"{group}:"]
        for name, what in described.items():
            line = f"{name:{widest}} {_sizes(PRESETS[name])}  {what}"
            lines += textwrap.wrap(line, 80, initial_indent="  ", subsequent_indent=" " * (widest + 21))
    return "\n".join(lines)


def _sizes(config: Config) -> str:
    size = f"{config.model.num_layers} x {config.model.d_model}"
    return f"{size:>8} {config.training.steps:7,}"
