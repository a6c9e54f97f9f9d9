"""Where each option of decode.py applies: what the help of a run lists, and what is refused."""

import dataclasses
from pathlib import Path

import pytest

from transformer.cli.decode_arguments import OPTIONS, SELDOM, DecodeArguments, Way, positional
from transformer.cli.writer import unused, writer_class
from transformer.config.decoding import BeamConfig
from transformer.config.records import WindowsConfig
from transformer.config.searches import GreedyConfig
from transformer.runs.config_json import to_json
from transformer.runtime.errors import UserError
from transformer.systems.presets import PRESETS
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks.outputs import Lines

FIRST = {config.system: config for config in reversed(PRESETS.values())}
"""The first preset of each system."""
WINDOWS = dataclasses.replace(WindowsConfig(), samples=9)


def writer_of(system):
    task = find_system(system).task
    if not issubclass(task, Lines):
        assert system == "masked-lm"  # the only one
        pytest.skip("not for the command line")
    return writer_class(task.writer)


def given(**options):
    """A command line with some options."""
    return DecodeArguments(Path("RUN"), **{"ensemble": (), "decoding": GreedyConfig()} | options)


def changed(name):
    """Another value of an option than its default."""
    default = vars(given())[name]
    if name == "windows":
        return WINDOWS
    if default == () or default is False:
        return (Path("OTHER"),) if default == () else True
    return 9 if isinstance(default, int | float) else Path("x")


OF_SOME = [name for name, option in OPTIONS.items() if option.to and name != "ensemble"]


@pytest.mark.parametrize("system", REGISTRY)
def test_a_task_refuses_the_options_of_others(system):
    """Each by its name, and with what a run of the task does, or where that is to be had."""
    writer = writer_of(system)
    for name in OF_SOME:
        if OPTIONS[name].to not in writer.can:
            with pytest.raises(UserError) as caught:
                writer.checked_way(given(**{name: changed(name)}))
            why = writer.instead.get(name, f"RUN {writer.does}")
            assert str(caught.value) == f"--{name.replace('_', '-')}: {why}; leave it out"
    if "translation" not in writer.can:
        with pytest.raises(UserError, match=f"^OTHER: RUN {writer.does}; name one run$"):
            writer.checked_way(given(ensemble=(Path("OTHER"),)))


@pytest.mark.parametrize(
    ("way", "options"),
    [
        (Way.DOCUMENT, {"document": Path("x.md")}),
        (Way.PAGE, {"explore": Path("x.html")}),
        (Way.WORDS, {"stream": True}),
        (Way.TURNS, {"history": 2}),
        (Way.CHOICES, {"choices": ("a", "b")}),
        (Way.LINES, {}),
    ],
)
def test_a_way_refuses_the_options_of_others(way, options):
    """Each of those that translators have; others are those of the way."""
    writer = writer_of("transformer")
    assert writer.checked_way(given(**options)) is way
    refused = set()
    for name in OF_SOME:
        option, arguments = OPTIONS[name], given(**{name: changed(name)} | options)
        changes_way = name in ("document", "explore", "stream", "history", "choices")
        if option.to not in writer.can or option.needs or changes_way or option.ways is None:
            continue
        if way not in option.ways:
            refused.add(name)
            with pytest.raises(UserError) as caught:
                writer.checked_way(arguments)
            assert str(caught.value) == way.refusal.format(f"--{name.replace('_', '-')}")
        elif not option.formats:
            assert writer.checked_way(arguments) is way
    assert ("rescore" in refused) == (way is not Way.LINES)


def test_options_that_need_another_say_so():
    for system in "transformer", "speech":
        writer = writer_of(system)
        for name, option in OPTIONS.items():
            if option.needs and option.to in writer.can:
                with pytest.raises(UserError) as caught:
                    writer.checked_way(given(**{name: changed(name)}))
                assert str(caught.value) == option.why.format(f"--{name.replace('_', '-')}")
    assert {option.needs for option in OPTIONS.values()} - {""} <= {*OPTIONS}


def shown(tmp_path, config):
    if hasattr(config.model, "vocab_size"):
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=300))
    (tmp_path / "config.json").write_text(to_json(config))
    kinds = DecodeArguments, type(config.decoding)
    every = {item.name for kind in kinds for item in dataclasses.fields(kind)} - {"decoding", "run_dir"}
    return every - unused(tmp_path)


@pytest.mark.parametrize(
    ("system", "count", "common"),
    [
        ("transformer", 58, 36),
        ("recurrent", 58, 36),
        ("language-model", 35, 24),
        ("speech", 46, 30),
        ("synthesis", 31, 20),
        ("tagging", 27, 17),
        ("captioning", 39, 24),
        ("detection", 30, 19),
    ],
)
def test_the_help_of_a_run_lists_what_it_can_do(system, count, common, tmp_path):
    options = shown(tmp_path, FIRST[system])
    assert len(options) == count, sorted(options)
    assert len(options - SELDOM) == common, sorted(options - SELDOM)
    assert not options & {"word_confidences", "ctc_weight", "shortlist"}


def test_options_that_seldom_matter_are_options():
    kinds = DecodeArguments, BeamConfig
    assert {item.name for kind in kinds for item in dataclasses.fields(kind)} >= SELDOM


def test_the_help_of_a_run_depends_on_its_model_and_files(tmp_path):
    config = FIRST["transformer"]
    before = shown(tmp_path, config)
    (tmp_path / "confidence.json").write_text("{}")
    (tmp_path / "shortlist.bin").write_bytes(b"")
    waiting = dataclasses.replace(config.model, wait_k=3)
    assert shown(tmp_path, dataclasses.replace(config, model=waiting)) - before == {
        *("word_confidences", "shortlist", "stream")
    }


@pytest.mark.parametrize(
    "words",
    ["--rescore R RUN", "--n-best 2 RUN", "--tsv RUN", "--no-int8 RUN", "--lm x RUN", "RUN --reference a b"],
)
def test_a_run_is_found_among_options_and_their_values(words):
    assert list(positional(words.split())) == ["RUN"]
