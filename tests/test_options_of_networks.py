"""Every option of a network changes the network, or is refused, in every system."""

import dataclasses
import re
import typing

import jax
import pytest
from systems_on_a_mesh import config_of
from tiers import mostly_slow

from transformer import Config, UserError
from transformer.systems.registry import REGISTRY, find_system

OPENED = {"attention_bias": True, "norm": "post"}
"""Options without which others have no effect: key_bias and final_norm."""
OF_SEARCHES = {"generates_bos"}
"""Options that are read by searches (tests/test_folders.py)."""
OF_THE_LOSS = {"auxiliary_loss"}
"""Options that are read by the objective (tests/test_captions_and_boxes.py)."""


def program(config: Config) -> str:
    """What the network computes, as text."""
    system = find_system(config.system)
    model, example = system.model(config.model), system.task.example(config)
    jaxpr = jax.make_jaxpr(
        lambda key, *inputs: model.init_with_output({"params": key, "dropout": key}, *inputs)
    )
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr(jax.random.key(0), *example)))


def choices(kind: object, now: object) -> list[object]:
    """The other values of a switch, or of a list of names."""
    if isinstance(now, bool):
        return [not now]
    return [value for value in typing.get_args(kind) if value != now] if "Literal" in str(kind) else []


@pytest.mark.thorough
@pytest.mark.by_default("language-model")
@pytest.mark.parametrize("name", mostly_slow(list(REGISTRY), ["transformer", "language-model", "synthesis"]))
def test_no_option_of_a_network_is_ignored(name):
    config = config_of(name)
    fields = [field.name for field in dataclasses.fields(config.model)]
    opened = {option: value for option, value in OPENED.items() if option in fields}
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **opened))
    unchanged = program(config)
    hints = typing.get_type_hints(type(config.model))
    for option in sorted({*fields} - OF_THE_LOSS - OF_SEARCHES):
        programs = []
        for value in choices(hints[option], getattr(config.model, option)):
            try:
                model = dataclasses.replace(config.model, **{option: value})
                programs.append(program(dataclasses.replace(config, model=model)))
            except UserError:
                programs.append("refused")
        assert not programs or any(other != unchanged for other in programs), option


@pytest.mark.parametrize("name", ["synthesis", "nonautoregressive", "nonautoregressive-synthesis"])
def test_a_network_without_a_first_input_refuses_to_make_it_zero(name):
    for option in ("zero_start", "generates_bos"):
        named = option.replace("_", "-")
        with pytest.raises(UserError, match=f"--model.{named}: this system has no use for it"):
            dataclasses.replace(config_of(name).model, **{option: True})
