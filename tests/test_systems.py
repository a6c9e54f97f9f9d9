"""Every system trains, saves, resumes, decodes and reports like the Transformer."""

import contextlib
import dataclasses
import functools
import json
import shlex
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from of_a_config import model_shapes
from run_command import on_devices
from small_run import WORDS, interrupted, small_config
from tiers import mostly_slow

from transformer import Config, Run, Translator, UserError
from transformer.commands.decode import decode_main
from transformer.commands.train import train_main
from transformer.config.options import as_decided, as_options, locations
from transformer.runs.config_json import to_json
from transformer.runtime.console import ProgressReporter
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import find_system
from transformer.trainer.train import train

SIZES = {"num_layers": 1, "d_model": 16, "dropout": 0.1}
LAYER = {"d_ff": 32, "num_heads": 2}
MODELS = {
    "recurrent": RecurrentConfig(**SIZES),
    "recurrent, hard": RecurrentConfig(**SIZES, attention="hard"),
    "convolutional": ConvolutionalConfig(**SIZES),
    "nonautoregressive, length": NonAutoregressiveConfig(
        **SIZES, **LAYER, decoder_input="length", length_span=2
    ),
    "nonautoregressive, bos": NonAutoregressiveConfig(**SIZES, **LAYER, decoder_input="bos", bos_length=10),
    "nonautoregressive, fertility": NonAutoregressiveConfig(**SIZES, **LAYER, decoder_input="fertility"),
    "nonautoregressive, masked": NonAutoregressiveConfig(**SIZES, **LAYER, decoder_input="masked"),
    "copying": CopyingConfig(**SIZES, **LAYER, coverage_weight=0.1),
    "copying, copynet": CopyingConfig(**SIZES, **LAYER, output="copynet"),
    "copying, pointer": CopyingConfig(**SIZES, **LAYER, output="pointer", once=True),
    "fast-autoregressive": FastAutoregressiveConfig(**SIZES, num_heads=2, hybrid=True),
    "fast-autoregressive, AT": FastAutoregressiveConfig(**SIZES, encoder="lstm", weights="additive"),
}
ROOT = Path(__file__).parent.parent
SENTENCES = ["red cat runs", "blue bird sings sleeps", "", "dog"]
quiet = ProgressReporter(quiet=True)
NAMES = mostly_slow(
    list(MODELS),
    ["recurrent", "convolutional", "nonautoregressive, masked", "copying", "fast-autoregressive"],
)
"""One of a kind; the others are slow tests."""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Config:
    config = small_config(tmp_path_factory.mktemp("text"))
    training = dataclasses.replace(config.training, steps=6, evaluate_every=3, log_every=1)
    return dataclasses.replace(config, training=training)


@pytest.fixture(scope="module")
def teacher(base, tmp_path_factory) -> Callable[[], Path]:
    """Trains a Transformer when a system first needs a teacher."""
    return functools.cache(lambda: train(base, tmp_path_factory.mktemp("teacher") / "run", watch=quiet))


@functools.cache
def config_of(name: str, base: Config, teacher: Callable[[], Path]) -> Config:
    model, decoding = MODELS[name], base.decoding
    if isinstance(model, NonAutoregressiveConfig):
        model = dataclasses.replace(model, teacher=teacher() if "fertility" in name else None)
        own = {item.name for item in dataclasses.fields(NonAutoregressiveDecodingConfig)}
        options = {name: value for name, value in vars(decoding).items() if name in own}
        decoding = NonAutoregressiveDecodingConfig(**options | {"iterations": 2 if "masked" in name else 1})
    config = dataclasses.replace(base, system=name.split(",")[0], model=model, decoding=decoding)
    if config.system == "copying":  # all but six words are outside the vocabulary
        data = dataclasses.replace(config.data, tokenizer="open-word", vocab_size=10)
        training = dataclasses.replace(config.training, label_smoothing=0.0)
        return dataclasses.replace(config, data=data, training=training)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(list(MODELS), ["nonautoregressive, fertility"]))
def test_it_trains_on_two_devices(name, base, teacher, tmp_path):
    """Their copies of the parameters see half of the rows each."""
    (tmp_path / "config.json").write_text(to_json(config_of(name, base, teacher)))
    program = (
        "import jax; from pathlib import Path; from transformer import train\n"
        "from transformer.runs.config_json import from_json\n"
        "assert jax.device_count() == 2\n"
        f"train(from_json(Path({str(tmp_path / 'config.json')!r}).read_text()), {str(tmp_path / 'run')!r})"
    )
    environment = on_devices(2)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert Run(tmp_path / "run").checkpoints.steps()[-1] == 6


def leaves(path: Path) -> list[np.ndarray]:
    run = Run(path)
    return [np.asarray(x) for x in jax.tree.leaves(run.variables("last"))]


def resumed(config: Config, run_dir: Path) -> None:
    """Resumes a run as its last message says: `train.py --run-dir RUN` with the paths of the text."""
    options = shlex.split(as_options(locations(config)))
    options = ["--run-dir", str(run_dir), *options, "--training.steps", str(config.training.steps)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *options])
        assert train_main() == 0


@pytest.fixture(scope="module")
def trained(base, teacher, tmp_path_factory) -> Callable[[str], Path]:
    """Maps the name of a model to its run. Tests that change it copy it first."""

    @functools.cache
    def trained_run(name: str) -> Path:
        return train(config_of(name, base, teacher), tmp_path_factory.mktemp("trained") / "run", watch=quiet)

    return trained_run


@pytest.mark.thorough
@pytest.mark.parametrize("name", mostly_slow(list(MODELS), ["copying"]))
def test_it_stops_and_goes_on(name, base, teacher, trained, tmp_path):
    """`test_older_runs.py` resumes a run of every system."""
    whole = trained(name)
    parts = interrupted(whole, tmp_path / "parts")
    resumed(config_of(name, base, teacher), parts)
    for a, b in zip(leaves(whole), leaves(parts), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.by_default("copying")
@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_translates(name, base, teacher, trained):
    config, whole = config_of(name, base, teacher), trained(name)
    assert Run(whole).config == as_decided(
        dataclasses.replace(config, model=Run(whole).config.model), Run(whole).config
    )
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "training"]
    assert len(losses) == 6
    assert np.isfinite(losses).all()

    translator = Translator.load(whole)
    found = translator.search(SENTENCES, alignments=True)
    assert [len(several) for several in found] == [
        1 if not text or "bos" in name else 2 for text in SENTENCES
    ]
    assert found[2][0].text == ""
    for text, several in zip(SENTENCES, found, strict=True):
        for hypothesis in several if text else []:
            assert set(hypothesis.tokens) <= {*WORDS, "<unk>"}
            size = len(hypothesis.tokens) + 1, len(text.split()) + 1
            assert hypothesis.alignment is not None
            assert hypothesis.alignment.shape == size
    assert translator.translate(SENTENCES[:1]) == [found[0][0].text]
    scores = translator.score(["red cat runs"] * 2, ["runs cat red", "dog"])
    assert (scores < 0).all()


@pytest.mark.thorough
@pytest.mark.by_default("convolutional")
@pytest.mark.parametrize("name", [name for name in MODELS if name != "copying, pointer"])
def test_an_untrained_model_is_about_as_unsure_as_a_uniform_guess(name):
    config = dataclasses.replace(MODELS[name], num_layers=4, d_model=64, vocab_size=1000)
    model = find_system(name.split(",")[0]).model(config)
    ids = jax.random.randint(jax.random.key(1), (2, 8, 20), 4, 1000)
    logits, _ = jax.jit(model.init_with_output)(jax.random.key(0), *ids)
    says = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(ids[1])[..., None], -1)
    assert abs(-says.mean() - np.log(1000)) < 1  # ln 2 where half of the probability points to the source


@pytest.mark.slow
def test_an_untrained_pointer_is_about_as_unsure_as_a_uniform_choice_of_what_is_left():
    config = dataclasses.replace(MODELS["copying, pointer"], num_layers=4, d_model=64, vocab_size=1000)
    model, random = find_system("copying").model(config), np.random.default_rng(1)
    source = np.stack([random.permutation(np.arange(4, 1000))[:20] for _ in range(8)])
    read = np.pad(source[:, :-1], ((0, 0), (1, 0)), constant_values=config.special.bos)
    log_p, _ = jax.jit(model.init_with_output)(jax.random.key(0), source, read)
    says = np.take_along_axis(np.asarray(log_p), source[..., None], -1)
    assert abs(-says.mean() - np.log(np.arange(20, 0, -1)).mean()) < 0.5


@pytest.mark.slow
def test_a_student_begins_with_its_teachers_parameters(base, teacher, tmp_path):
    config = config_of("nonautoregressive, masked", base, teacher)
    still = dataclasses.replace(config.training, init_from=teacher(), steps=1, evaluate_every=1)
    optimizer = dataclasses.replace(config.optimizer, peak=0.0)
    run = Run(train(dataclasses.replace(config, training=still, optimizer=optimizer), tmp_path, watch=quiet))
    above = run.variables("last")["params"]
    below = Run(teacher()).variables("best")["params"]
    assert set(above) - set(below) == {"length"}
    for name in below:
        jax.tree.map(np.testing.assert_array_equal, above[name], below[name])

    copying = config_of("copying", base, teacher)
    begun = dataclasses.replace(copying.training, init_from=run.path)
    with pytest.raises(UserError, match="holds a nonautoregressive model, not a copying one"):
        train(dataclasses.replace(copying, training=begun), tmp_path / "other", watch=quiet)


@pytest.mark.thorough
@pytest.mark.by_default("copying")
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_search(name, trained):
    """Every method returns the log-probability of its result, and that divided by the penalty."""
    translator = Translator.load(trained(name))
    source, alpha = "red cat runs", 0.7
    once = {"iterations": 1} if translator.config.system == "nonautoregressive" else {}
    for method in ("greedy", "beam", "sample")[
        : 1 if name == "nonautoregressive, fertility" else 2 if once else 3
    ]:
        options = {"method": method, "penalty": "power", "length_penalty": alpha, **once}
        (found,) = translator.search([source], **options)
        for best in found:
            (scored,) = translator.score([source], [best.text])
            length = len(best.tokens) + 1
            if translator.tokenizers[1].encode(best.text) == list(best.ids[:-1]):
                assert best.log_probability == pytest.approx(float(scored), abs=1e-4)
            assert best.score == pytest.approx(best.log_probability / length**alpha, abs=1e-5)
        assert [x.score for x in found] == sorted((x.score for x in found), reverse=True)


@pytest.mark.by_default("recurrent")
@pytest.mark.parametrize("name", NAMES)
def test_what_a_parent_may_have_otherwise_leaves_the_parameters_as_they_are(name, base, teacher):
    """Otherwise `--init-from` would start a run whose checkpoints cannot be loaded."""
    config = config_of(name, base, teacher)
    model = dataclasses.replace(config.model, vocab_size=13)

    def shapes(**changes):
        changed = dataclasses.replace(config, model=dataclasses.replace(model, **changes))
        return jax.tree.map(jnp.shape, model_shapes(changed))

    hints = typing.get_type_hints(type(model))
    for field in model.PARAMETER_FREE:
        now = getattr(model, field)
        choices = typing.get_args(hints[field]) or ([not now] if isinstance(now, bool) else [now / 2 + 0.1])
        for choice in choices:
            with contextlib.suppress(UserError):  # not an option of this system
                assert shapes(**{field: choice}) == shapes(), field


@pytest.mark.slow
def test_another_mechanism_of_attention_is_another_network(base, teacher, trained, tmp_path):
    parent = trained("recurrent")
    config = config_of("recurrent", base, teacher)
    other = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, attention="dot"),
        training=dataclasses.replace(config.training, init_from=parent),
    )
    with pytest.raises(UserError, match="attention"):
        train(other, tmp_path / "child", watch=quiet)
    assert not (tmp_path / "child").exists()


@pytest.mark.slow
def test_length_can_be_asked_for(trained, call, refused):
    path = trained("nonautoregressive, length")
    lengths = []
    for scale in ("0.5", "2.0"):
        source = b"red green cat runs blue dog\n"
        status, output, errors = call(decode_main, path, "--length-scale", scale, stdin=source)
        assert status == 0, errors
        lengths.append(len(output.split()))
    assert lengths[0] < lengths[1]
    assert "--length-scale must be from" in refused(decode_main, path, "--length-scale", "0", stdin=b"x\n")


def test_a_config_of_two_systems_is_refused(base, tmp_path):
    with pytest.raises(UserError, match="start from one of its presets"):
        train(dataclasses.replace(base, system="convolutional"), tmp_path / "run", watch=quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_fertility_model_needs_a_teacher_that_reads_alike(base, teacher, tmp_path):
    config = config_of("nonautoregressive, fertility", base, teacher)
    alone = dataclasses.replace(config, model=dataclasses.replace(config.model, teacher=None))
    with pytest.raises(UserError, match="--model.teacher RUN"):
        train(alone, tmp_path / "alone", watch=quiet)
    fewer = dataclasses.replace(config, data=dataclasses.replace(config.data, vocab_size=8))
    with pytest.raises(
        UserError, match="another vocabulary: .*, or give --data.source-tokenizer .*source.model"
    ):
        train(fewer, tmp_path / "fewer", watch=quiet)
    assert not list(tmp_path.iterdir())
