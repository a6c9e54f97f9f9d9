"""Variants are changes of presets, from the command line and in the library."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from configs import CONFIGS, VARIED
from of_a_config import check_config, decided_for

from transformer import PRESETS, VARIANTS, Config, Options, Preset, UserError, Variant, register, variant
from transformer.cli.command_line import TrainLine
from transformer.commands.train import _initial_arguments, train_main
from transformer.config.options import changed, differences
from transformer.runs.config_json import from_json, to_json
from transformer.runs.report.logged import Logged
from transformer.systems import presets
from transformer.systems.registry import REGISTRY, find_system
from transformer.systems.transformer.options import TABLE_3

BASE = {"N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64, "P_drop": 0.1, "epsilon": 0.1}
PAPER: dict[str, dict[str, Any]] = {
    "A-heads-1": {"h": 1, "d_k": 512, "d_v": 512},
    "A-heads-4": {"h": 4, "d_k": 128, "d_v": 128},
    "A-heads-16": {"h": 16, "d_k": 32, "d_v": 32},
    "A-heads-32": {"h": 32, "d_k": 16, "d_v": 16},
    "B-keys-16": {"d_k": 16},
    "B-keys-32": {"d_k": 32},
    "C-layers-2": {"N": 2},
    "C-layers-4": {"N": 4},
    "C-layers-8": {"N": 8},
    "C-width-256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-width-1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-inner-1024": {"d_ff": 1024},
    "C-inner-4096": {"d_ff": 4096},
    "D-dropout-0.0": {"P_drop": 0.0},
    "D-dropout-0.2": {"P_drop": 0.2},
    "D-smoothing-0.0": {"epsilon": 0.0},
    "D-smoothing-0.2": {"epsilon": 0.2},
    "E-learned-positions": {"positions": "learned"},
}
"""The rows of Table 3, as the paper prints them."""


def columns(config: Config) -> dict[str, Any]:
    """The columns of Table 3."""
    m: Any = config.model
    assert m.decoder_depth == m.num_layers
    sizes = {"N": m.num_layers, "d_model": m.d_model, "d_ff": m.d_ff, "h": m.num_heads}
    widths = {"d_k": m.key_width, "d_v": m.value_width, "positions": m.positions}
    return sizes | widths | {"P_drop": m.dropout, "epsilon": config.training.label_smoothing}


def test_rows_of_table_3_are_those_of_the_paper() -> None:
    assert set(PAPER) == set(TABLE_3)
    sinusoidal = BASE | {"positions": "sinusoidal"}
    assert columns(PRESETS["base"]) == sinusoidal
    for name, row in PAPER.items():
        config = variant(PRESETS["base"], name)
        assert columns(config) == sinusoidal | row, name
        assert (config.training.steps, config.data) == (100_000, PRESETS["base"].data)


def test_every_variant_is_among_the_configs_that_other_tests_try() -> None:
    assert {name.split()[-1] for name in VARIED} == set(VARIANTS)
    assert {config.system for config in CONFIGS.values()} == set(REGISTRY)


@pytest.mark.thorough
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_fits_a_preset_or_says_why_not(name: str) -> None:
    fitting, refusals = dict[str, Config](), list[str]()
    for preset, base in PRESETS.items():
        try:
            fitting[preset] = variant(base, name)
        except UserError as error:
            refusals.append(str(error))
    for preset, config in fitting.items():
        assert from_json(to_json(config)) == config
        find_system(config.system).model(config.model)
        for option, value in VARIANTS[name].options.items():
            section, _, field = option.partition(".")
            assert getattr(getattr(config, section), field) == value
        if not VARIANTS[name].change:
            options = {option for option, _, _ in changed(PRESETS[preset], config)}
            assert options <= set(VARIANTS[name].options)
    assert all(text.startswith(f"variant {name}: ") and "\n" not in text for text in refusals)
    assert fitting
    assert all(text.endswith(f"; it fits {', '.join(fitting)}") for text in refusals)


def given(*words: str) -> Config:
    """The config of a command line of train.py."""
    return _initial_arguments(TrainLine.of(words))[0].config


def test_the_preset_may_come_after_its_variant() -> None:
    words = ["quickstart", "--training.steps", "3"]
    assert TrainLine.of(["--variant", "rdrop", *words]) == TrainLine.of([*words, "--variant=rdrop"])
    for wrong in (["--variant"], ["--variant", "--help"], ["tiny", "--variant="]):
        with pytest.raises(UserError, match="--variant needs a name"):
            TrainLine.of(wrong)


def test_variants_that_change_the_same_option_are_refused() -> None:
    for names, message in (
        (("rdrop", "rdrop"), "--variant rdrop is given twice"),
        (
            ("A-heads-4", "A-heads-1"),
            "--variant A-heads-1 and --variant A-heads-4 change --model.num-heads",
        ),
        (("scheduled", "scheduled-parallel"), "change --scheduled.share"),
    ):
        with pytest.raises(UserError, match=f"{message}: leave one of them out"):
            variant(PRESETS["base"], *names)
    with pytest.raises(UserError, match="not for fast-autoregressive; leave out the variants before it"):
        variant(PRESETS["base"], "fat", "masked")


def test_a_variant_of_another_system_need_not_pack() -> None:
    assert PRESETS["quickstart"].data.batching == "packed"
    for name in ("at", "fat", "masked"):
        check_config(decided_for(variant(PRESETS["quickstart"], name), "cpu"))


def test_the_command_line_changes_a_variant() -> None:
    config = given("tiny", "--variant", "rdrop", "--training.seed", "3", "--variant=batch-norm")
    library = variant(PRESETS["tiny"], "rdrop", "batch-norm")
    assert differences(library, config) == "--training.seed: 0 -> 3"
    assert given("tiny", "--rdrop.weight", "5", "--variant", "rdrop").rdrop.weight == 5
    assert given("--variant", "fat") == variant(PRESETS["quickstart"], "fat")
    assert given("base", "--variant", "C-inner-4096").model == dataclasses.replace(
        PRESETS["base"].model, d_ff=4096
    )


@pytest.mark.parametrize("words", [words for words in VARIED if not VARIANTS[words.split()[-1]].change])
def test_the_options_of_a_variant_are_what_it_changes(words: str) -> None:
    preset, name = words.split(" --variant ")
    assert given(preset, *VARIANTS[name].words.split()) == VARIED[words]


def test_a_variant_is_announced_and_is_no_difference() -> None:
    line = TrainLine.of(["multi30k", "--variant", "linear", "--data.train-tsv", "a", "--training.steps", "7"])
    _, about = _initial_arguments(line)
    assert about == "Preset multi30k, variant linear, with --data.train-tsv a --training.steps 7"


def test_a_name_that_joins_a_preset_and_a_variant_says_how_to_give_both() -> None:
    for words in VARIED:
        preset, name = words.split(" --variant ")
        with pytest.raises(UserError, match=f"no preset '{preset}-{name}': use .* {words}$"):
            presets.preset(f"{preset}-{name}")
    with pytest.raises(UserError, match="no preset 'D-dropout-0.2': use .* PRESET --variant D-dropout-0.2"):
        presets.preset("D-dropout-0.2")


def test_a_system_brings_variants() -> None:
    base = dataclasses.replace(PRESETS["quickstart"], system="mine")
    wide = Variant("twice as wide", {"model.d_model": 256, "model.d_ff": 512}, systems=("mine",))
    options = Options(presets={"mine": Preset(base, "mine")}, variants={"wide": wide})
    tables = PRESETS, VARIANTS, presets.PRESET_GROUPS, presets.VARIANT_GROUPS, REGISTRY
    before = [dict(table) for table in tables]
    try:
        inspect.unwrap(register)("mine", options, find_system("transformer"))
        assert (given("mine", "--variant", "wide").model.d_model, base.model.d_model) == (256, 128)
        assert given("mine", "--variant", "rdrop").rdrop.weight == 3
        with pytest.raises(UserError, match="variant wide: it is for system mine, not for transformer"):
            given("tiny", "--variant", "wide")
        assert presets.VARIANT_GROUPS["system mine"] == {
            "wide": "twice as wide: --model.d-model 256 --model.d-ff 512"
        }
    finally:
        for table, values in zip(tables, before, strict=True):
            table.clear()
            table.update(values)  # type: ignore[arg-type]


def test_variants_of_a_trained_model(run_dir: Path) -> None:
    """Its network, its vocabulary, and another objective or decoder."""
    from transformer import Run

    parent, words = Run(run_dir).config, ("--init-from", str(run_dir), "--data.train-tsv", "a")
    risk = given("--variant", "risk", *words)
    assert (risk.model, risk.reward.share) == (dataclasses.replace(parent.model, dtype="auto"), 0.9)
    assert risk.optimizer == PRESETS["fine-tune"].optimizer
    tiny = given("tiny", "--variant", "reinforce", *words)
    assert tiny.optimizer == risk.optimizer
    assert tiny.training.steps == PRESETS["fine-tune"].training.steps
    masked = given("--variant", "masked", *words)
    assert (masked.system, masked.model.d_model) == ("nonautoregressive", parent.model.d_model)
    assert masked.data.vocab_size == parent.data.vocab_size


def test_a_run_directory_and_a_variant_is_a_new_run_or_that_one(run_dir: Path, refused: Any) -> None:
    """As with a preset: the run may not have another config."""
    errors = refused(train_main, "--variant", "rdrop", "--run-dir", run_dir)
    assert "leave out the preset, variants and these options:" in errors


@pytest.mark.slow
def test_a_report_names_the_variant_that_made_the_system(run_dir: Path) -> None:
    logged = Logged(run_dir)
    for words in ("tiny --variant masked", "quickstart --variant fat-tanh", "sorting --variant plain"):
        logged.config = CONFIGS.get(words) or variant(PRESETS["quickstart"], "fat-tanh")
        assert logged.changed() == (words, [])
