"""Every config checks the names, types and values of its options when it is made, as a command line does."""

import dataclasses
import importlib
import pkgutil
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import transformer.config
from transformer import BeamConfig, Config, DataConfig, TransformerConfig, UserError
from transformer.config.model import SpecialIds
from transformer.config.ranges import Section
from transformer.config.training import TrainingConfig
from transformer.config.transformer import EncoderConfig
from transformer.serve.services import limits  # noqa: F401 (its options are a section, too)
from transformer.systems.registry import REGISTRY, options_of

for module in pkgutil.iter_modules(transformer.config.__path__):
    importlib.import_module(f"transformer.config.{module.name}")
for system in REGISTRY:
    options_of(system)


def below(kind):
    return {kind}.union(*map(below, kind.__subclasses__()))


SECTIONS = sorted(
    (kind for kind in below(Section) - {Section} if kind.__module__.startswith("transformer.")),
    key=lambda kind: kind.__qualname__,
)


def choices(hint):
    """The values of a literal, None for another hint."""
    return next((get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is Literal), None)


def wrong_values(hint):
    """Values that a field of this type may not have."""
    kinds, wrong = get_args(hint) or (hint,), [object()]
    if choices(hint):
        wrong += [choices(hint)[0] + "x", "", 1, True, (choices(hint)[0],)]
    elif get_origin(hint) is tuple:
        wrong += ["abc", 1, ([],), (object(),)] + (
            [(1,)] if kinds[0] is str else [("a b",)] * (kinds[0] is not Path)
        )
    elif bool in kinds:
        wrong += ["no", 1, 0.0, ()]
    elif int in kinds:
        wrong += ["1", 1.5, True, (), np.float32(1)]
    elif float in kinds:
        wrong += ["1", True, (), 1j, float("nan"), float("inf"), -float("inf"), 10**400]
    elif str in kinds or Path in kinds:
        wrong += [1, True, (), b"x"]
    else:
        wrong += [1, "x", {}]
    if type(None) not in kinds:
        wrong += [None]
    return wrong


def test_all_of_them_are_here():
    """A dataclass of options that is no section would check nothing."""
    for kind in SECTIONS:
        assert dataclasses.is_dataclass(kind)
    homes = {kind.__module__ for kind in SECTIONS}
    for home in homes:
        for name, kind in vars(importlib.import_module(home)).items():
            if isinstance(kind, type) and kind.__module__ == home and name.endswith("Config"):
                assert kind in SECTIONS, name
    for system in REGISTRY:
        for name in "model", "decoding", "data":
            assert issubclass(getattr(options_of(system), name), Section)


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_wrong_types_and_literals_are_refused(kind):
    for item in dataclasses.fields(kind):
        for value in wrong_values(get_type_hints(kind)[item.name]):
            with pytest.raises(UserError, match=rf"--{kind.SECTION}\.?{item.name.replace('_', '-')} "):
                kind(**{item.name: value})


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_every_choice_is_a_choice(kind):
    """A literal is refused only for what it is: other options may need to go with it."""
    for item in dataclasses.fields(kind):
        for choice in choices(get_type_hints(kind)[item.name]) or ():
            refused = ""
            try:
                kind(**{item.name: choice})
            except UserError as error:
                refused = str(error)
            assert ": choose " not in refused


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_names_that_do_not_exist(kind):
    name = dataclasses.fields(kind)[0].name
    with pytest.raises(UserError, match=f"{kind.__name__} has no option '{name}s': did you mean .*{name}"):
        kind(**{f"{name}s": 1})
    with pytest.raises(UserError, match="has no option 'qqqq'$"):
        kind(qqqq=1)


def test_names_of_other_toolkits():
    with pytest.raises(UserError, match="no option 'hidden_size'; here it is model.d_model"):
        TransformerConfig(hidden_size=512)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TransformerConfig, {"norm": "postln"}, "--model.norm 'postln': choose post or pre"),
        (
            TransformerConfig,
            {"attention": "flash"},
            "--model.attention 'flash': choose auto or einsum or fused",
        ),
        (TransformerConfig, {"scale_embedding": "no"}, "--model.scale-embedding 'no': must be True or False"),
        (EncoderConfig, {"norm": "x"}, "--model.encoder-stack.norm 'x': choose post or pre"),
        (SpecialIds, {"pad": -2}, "--model.special.pad must be from -1 to 10,000,000"),
        (BeamConfig, {"beam_size": 0}, "--decoding.beam-size must be from 1 to 100,000"),
        (BeamConfig, {"stop": "early"}, "--decoding.stop 'early': choose exact or present or full"),
        (Config, {"model": BeamConfig()}, "--model BeamConfig.*: must be a ModelConfig"),
        (
            TransformerConfig,
            {"monotonic_offset": float("inf")},
            "monotonic-offset must be a finite number, not inf",
        ),
        (TransformerConfig, {"d_model": 10**5000}, "--model.d-model must be from 1 to 10,000,000"),
        (
            TransformerConfig,
            {"dropout": 10**5000},
            "--model.dropout a number with thousands .*: is too large",
        ),
    ],
)
def test_messages(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(**options)


def test_values_become_those_of_the_declared_type():
    model = TransformerConfig(d_model=np.int64(8), dropout=0)
    assert type(model.d_model) is int
    assert type(model.dropout) is float
    assert hash(DataConfig(buckets=[8, 16])) == hash(DataConfig(buckets=(8, 16)))
    training = TrainingConfig(init_from="runs/parent", freeze=["encoder"])
    assert training == TrainingConfig(init_from=Path("runs/parent"), freeze=("encoder",))


def test_options_of_other_packages_are_checked_too():
    @dataclasses.dataclass(frozen=True)
    class Own(TransformerConfig):
        temper: Literal["hot", "cold"] = "hot"

    assert Own(temper="cold").temper == "cold"
    with pytest.raises(UserError, match="--model.temper 'warm': choose hot or cold"):
        Own(temper="warm")
    with pytest.raises(UserError, match="--model.norm 'x'"):
        Own(norm="x")
