"""Names of other toolkits get a hint, from the commands and from the decode API."""

import re

import pytest
from configs import CONFIGS

from transformer import UserError
from transformer.cli.command_line import TrainLine
from transformer.cli.decode_arguments import DecodeArguments, parse_decode
from transformer.commands.train_arguments import TrainArguments, parse_train
from transformer.config.decoding import BeamConfig, names_of
from transformer.config.names import DECODING, SEARCH, TRAINING, hint
from transformer.config.options import flatten
from transformer.config.searches import changed_search, methods_of
from transformer.systems.registry import REGISTRY, options_of


def says(message):
    """A context in which that is the error."""
    return pytest.raises(UserError, match=re.escape(message))


TRAIN_OPTIONS = set().union(*map(flatten, CONFIGS.values())) | names_of(TrainArguments) | {"init_from"}
SEARCHES = [kind for name in REGISTRY for kind in methods_of(options_of(name).decoding).values()]
SEARCH_OPTIONS = set().union(*map(names_of, SEARCHES))
TRAIN_OPTIONS |= {f"decoding.{name}" for name in SEARCH_OPTIONS}
DECODE_OPTIONS = SEARCH_OPTIONS | names_of(DecodeArguments)


@pytest.mark.parametrize(
    ("table", "options"), [(TRAINING, TRAIN_OPTIONS), (DECODING, DECODE_OPTIONS), (SEARCH, DECODE_OPTIONS)]
)
def test_hints_name_options_that_exist_for_names_that_do_not(table, options):
    for name, here in table.items():
        assert name.replace("-", "_") not in options
        assert here.name in options or (not here.name and here.note)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--learning-rate 1e-3",
            "--learning-rate: there is no such option; here it is --optimizer.peak (wi",
        ),
        ("--lr=1e-3", "--lr: there is no such option; here it is --optimizer.peak"),
        ("--batch_size 64", "--batch_size: there is no such option; here it is --data.batch-tokens (of all"),
        ("--epochs 10", "here it is --training.epochs"),
        ("--fp16", "here it is --model.dtype bfloat16"),
        ("--gpus 2", "--gpus: there is no such option; every device is used"),
        ("--num_beams 5", "here it is --decoding.beam-size"),
        ("--decoding.num-beams 5", "here it is --decoding.beam-size"),
        (
            "--adapter.alpha 16",
            "--adapter.alpha: there is no such option; here it is --adapter.scale (alpha / rank",
        ),
        ("--lora_r 8", "here it is --adapter.rank"),
        ("--optimizer.lr 1", "--optimizer.lr: there is no such option; here it is --optimizer.peak"),
        ("--training.batch-size 64", "here it is --data.batch-tokens"),
    ],
)
def test_train_hints(words, message):
    for preset in CONFIGS.values():
        with says(message):
            parse_train(TrainLine.of(words.split()), preset)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-beams=5", "--num-beams: there is no such option; here it is --beam-size"),
        ("--max_new_tokens 9", "here it is --max-length (with <eos>)"),
        ("--do-sample", "here it is --method sample"),
        ("--num-return-sequences 2", "here it is --n-best"),
        ("--model run", "name the run directory first"),
    ],
)
def test_decode_hints(words, message):
    with says(message):
        parse_decode(["run", *words.split()])


@pytest.mark.slow
def test_an_option_whose_last_part_is_a_name_elsewhere_is_an_option():
    for config in CONFIGS.values():
        assert not [name for name in flatten(config) if hint(f"--{name}", TRAINING, flatten(config))]
    words = ["--scheduled.updates", "7", "--training.steps", "9"]
    config = parse_train(TrainLine.of(words), CONFIGS["quickstart"]).config
    assert (config.scheduled.updates, config.training.steps) == (7, 9)


def test_search_options_may_have_the_names_of_training():
    assert parse_decode(["run", "--decoding.beam-size", "7"]) == parse_decode(["run", "--beam-size=7"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("num_beams", "search option 'num_beams' does not exist; here it is beam_size"),
        ("do_sample", "here it is method='sample'"),
        ("num_return_sequences", "here it is n_best"),
        ("temperature", "an option of sample and mbr, and this method is beam: --decoding.method sample"),
    ],
)
def test_hints_of_the_decode_api(name, message):
    with says(message):
        changed_search(BeamConfig(), {name: 1})


def test_other_unknown_names_get_what_is_nearest():
    with says("search option 'beam_sise' does not exist: did you mean beam_size"):
        changed_search(BeamConfig(), {"beam_sise": 1})
