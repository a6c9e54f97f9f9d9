"""What a training says it will do before it begins, and configs that it refuses."""

import dataclasses

import pytest
from configs import CONFIGS

from transformer import DataConfig, SampleConfig, TransformerConfig, UserError
from transformer.cli.command_line import TrainLine
from transformer.commands.train import _initial_arguments, announced
from transformer.config.options import changed as everything
from transformer.config.options import differences, flatten
from transformer.systems.presets import PRESETS


def test_configs_that_cannot_work_are_refused():
    with pytest.raises(UserError, match="separate vocabularies cannot share one matrix"):
        TransformerConfig(100, target_vocab_size=90)
    with pytest.raises(UserError, match="sinusoids come in pairs"):
        TransformerConfig(100, d_model=15, num_heads=3)
    with pytest.raises(UserError, match="--data.subword-sampling needs --data.tokenizer unigram or bpe"):
        DataConfig(tokenizer="char", subword_sampling=0.1)
    with pytest.raises(UserError, match="--decoding.top-p"):
        dataclasses.replace(SampleConfig(), top_p=0.0)


def test_every_preset_is_announced_beside_others() -> None:
    """In four lines of a terminal, and what differs from the preset is what was asked for."""
    flat = {name: flatten(config) for name, config in CONFIGS.items()}
    names = list(CONFIGS)
    for index, name in enumerate(names):
        assert announced(CONFIGS[name], CONFIGS[name], name) == f"Preset {name}"
        for offset in (1, 2, 3, 5, 8, 13, 21, 34, 55):  # near ones are of the same system
            other = names[(index + offset) % len(names)]
            about = announced(CONFIGS[other], CONFIGS[name], name)
            assert about.startswith(f"Preset {name}")
            assert len(about) <= 320
            assert "\n" not in about
            found = differences(CONFIGS[name], CONFIGS[other])
            assert bool(found) == (flat[name] != flat[other])
    tiny = PRESETS["tiny"]
    changed = dataclasses.replace(tiny, training=dataclasses.replace(tiny.training, steps=7))
    assert announced(changed, tiny, "tiny") == "Preset tiny, with --training.steps 7"


def test_several_values_are_shown_as_a_command_line_has_them() -> None:
    tiny = PRESETS["tiny"]
    data = dataclasses.replace(tiny.data, directions=("en:de", "de:en"))
    changed = dataclasses.replace(tiny, data=data)
    assert announced(changed, tiny, "tiny") == "Preset tiny, with --data.directions en:de de:en"
    assert differences(tiny, changed) == "--data.directions: none -> en:de de:en"


def test_a_message_names_a_few_of_many_differences() -> None:
    text = differences(PRESETS["tiny"], PRESETS["big"])
    assert len(text) < 400
    several, _, more = text.rpartition("; and ")
    assert several.count(" -> ") == several.count("; ") + 1 == 5
    changed = dataclasses.replace(PRESETS["tiny"], system="other")
    assert more == f"{len(everything(PRESETS['tiny'], PRESETS['big'])) - 5} more"
    assert differences(PRESETS["tiny"], changed) == "--system: transformer -> other"


def test_a_run_that_does_not_exist_yet_is_announced_with_its_text() -> None:
    """Who meant to resume one sees that it would learn a built-in corpus."""
    named = ["--run-dir", "runs/none"]
    _, about = _initial_arguments(TrainLine.of(named))
    assert about.startswith("runs/none does not exist yet: starting a new run on a built-in corpus,")
    assert about.splitlines()[1] == "Preset quickstart"
    text = ["--data.train-source", "a", "--data.train-target", "b"]
    _, about = _initial_arguments(TrainLine.of([*named, *text]))
    assert about.startswith("runs/none does not exist yet: starting a new run.\n")
