"""The text of `train.py --help`, which fits on one page, and of `--list-presets`."""

from collections.abc import Mapping

from transformer.config.options import Config, flatten
from transformer.config.ranges import Option
from transformer.runtime.console import terminal_width, wrapped
from transformer.runtime.invocation import command_for
from transformer.systems.presets import PRESET_GROUPS, PRESETS, VARIANT_GROUPS, VARIANTS, preset, variant
from transformer.systems.registry import as_option, options_of

EXAMPLES = {
    "": "a small model on the built-in English-German corpus",
    "multi30k --data.train-tsv pairs.tsv": "your own text",
    "multi30k --variant rdrop --data.train-tsv pairs.tsv": "with another method",
    "--config run.yaml --run-dir runs/mine": "options from a file (YAML, TOML, JSON)",
    "--run-dir runs/transformer-1": "resume; name your text again",
    "--init-from runs/transformer-1 --data.train-source ...": "fine-tune",
    "language-model --data.train book.txt": "continue running text",
    "speech": "hear digits (needs pip install '.[speech]')",
    "base --plan v5e:2x4": "memory and hours on accelerators elsewhere",
}
"""Options of train, and what it does with them."""


def train_help(name: str = "quickstart", *variants: str) -> str:
    """The short help: what the command does, examples, common options with the values of a preset or of a
    variant, and the names of all.

    Raises:
      UserError: there is no such preset or variant, or they do not fit.
    """
    config = variant(preset(name), *variants)
    train = command_for("train")
    lines = [
        f"usage: {train} [PRESET] [--variant NAME] [OPTIONS]",
        "",
        "Train a Transformer, or another system, to translate, to continue text, to hear.",
        "The run directory gets checkpoints and report.html. Ctrl-C saves and stops.",
        "",
        "examples:",
    ]
    for options, effect in EXAMPLES.items():
        command = f"  {' '.join((train, options)).strip()}"
        short = len(command) + len(effect) + 3 <= terminal_width()
        lines += [f"{command}   {effect}"] if short else [command, f"      {effect}"]
    chosen = ", variant ".join((name, *variants))
    lines += ["", *_wrapped(f"common options [value in preset {chosen}]:", 0)]
    for variant_name in variants:
        lines += _wrapped(f"--variant {variant_name:16} {VARIANTS[variant_name].described}", 29)
    values: dict[str, Option] = {"run_dir": None, **flatten(config)}
    for option, effect in options_of(config.system).common.items():
        if option in values:  # a system from outside may have another corpus
            shown = as_option(option).replace("training.init-", "init-")
            value = "" if values[option] is None else f" [{values[option]}]"
            lines += _wrapped(f"{shown:26} {effect}{value}", 29)
    lines += ["", "presets; options override their values (see --list-presets):", *_names(PRESET_GROUPS)]
    lines += ["", "variants, which change a preset (--variant NAME):", *_names(VARIANT_GROUPS)]
    return "\n".join([*lines, "", "--help-all describes every option; --version prints versions."])


def _wrapped(text: str, indent: int) -> list[str]:
    """A paragraph in lines as wide as the terminal, those after the first indented."""
    first = "  " * (indent > 0)
    return wrapped(first + text, terminal_width(), indent - len(first)).split("\n")


def _names(groups: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The names in each group."""
    return [
        line
        for group, described in groups.items()
        for line in _wrapped(f"{group}: {', '.join(described)}", 4)
    ]


def preset_table() -> str:
    """Every preset: its size, layers x width, and what it is; then every variant."""
    widest = max(map(len, (*PRESETS, *VARIANTS)))
    lines = [f"{'preset':{widest + 2}} {'size':>8} {'updates':>7}  what (size: layers x width)"]
    for group, described in PRESET_GROUPS.items():
        lines += ["", f"{group}:"]
        for name, summary in described.items():
            lines += _wrapped(f"{name:{widest}} {_sizes(PRESETS[name])}  {summary}", widest + 21)
    lines += ["", f"variants of presets: {command_for('train')} PRESET --variant NAME"]
    for group, described in VARIANT_GROUPS.items():
        lines += ["", f"{group}:"]
        for name, summary in described.items():
            lines += _wrapped(f"{name:{widest}} {summary}", widest + 3)
    return "\n".join(lines)


def _sizes(config: Config) -> str:
    size = f"{config.model.num_layers} x {config.model.d_model}"
    return f"{size:>8} {config.training.steps:7,}"
