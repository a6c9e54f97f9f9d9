"""Every command on a recipe card parses, and its preset can be built."""

import re
import shlex
from pathlib import Path

import pytest
from configs import CONFIGS
from of_a_config import check_config

from transformer.cli.command_line import TrainLine
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.train_arguments import parse_train
from transformer.systems.presets import preset, variant
from transformer.systems.registry import find_system

CARDS = sorted(path for path in Path("docs/recipes").glob("*.md") if path.name != "README.md")


def commands(card: Path) -> list[list[str]]:
    """The program and arguments of each line that runs one, continued lines joined."""
    blocks = re.findall(r"^```bash\n(.*?)^```", card.read_text(encoding="utf-8"), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line.split("|")[-1]) for line in lines]
    return [line[1:] for line in words if line[0] == "python"]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_commands_parse_and_presets_build(card):
    trained = 0
    for program, *arguments in commands(card):
        if program == "train.py":
            line = TrainLine.of(arguments)
            config = parse_train(line, variant(preset(line.preset), *line.variants)).config
            check_config(config)
            find_system(config.system).model(config.model)
            trained += 1
        elif program == "decode.py":
            parse_decode(arguments)
        else:
            assert program == "-m", program
    assert trained


def test_there_is_a_card_for_each_and_all_are_listed():
    listed = (CARDS[0].parent / "README.md").read_text(encoding="utf-8")
    assert all(f"({card.name})" in listed for card in CARDS)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_preset_can_be_built(name):
    check_config(CONFIGS[name])
