"""Mistakes in a system or task from outside are named in a sentence, before they cost a training."""

import contextlib
import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from reference_search import MODEL, SOURCES, random_variables
from toys.task import SIZES, ToyData
from toys.waves import SYSTEM, Waves

from transformer import Config, Loss, SpecialIds, System, Transformer, TransformerConfig, UserError, register
from transformer.config.decoding import BeamConfig
from transformer.config.searches import changed_search, check_beam
from transformer.data.plans import fixed_batches
from transformer.data.sequences import Field
from transformer.data.sources.source import in_memory
from transformer.data.store import Corpus
from transformer.decoding.hooks import NO_OUTPUT, Hooks, SearchHook
from transformer.decoding.searches.search import AutoregressiveSearch, limits_of_source
from transformer.runtime.console import ProgressReporter
from transformer.systems.parameters import declared_parameters, mistakes_named, model_shapes
from transformer.systems.presets import PRESETS, VARIANTS
from transformer.systems.registry import REGISTRY, Options, Preset, Registered, Variant, load_entry_points
from transformer.tasks.exhibit import Axis, Picture
from transformer.tasks.metrics.scores import Metric
from transformer.tasks.preparation import prepare
from transformer.tasks.task import Task
from transformer.tasks.texts.translation import Translation
from transformer.trainer.checks import OF_CORPUS
from transformer.trainer.evaluator import Evaluator
from transformer.trainer.profile import StopRequest
from transformer.trainer.train import open_corpus_shown
from transformer.training.objective import translation_objective
from transformer.training.sharding import layout_of
from transformer.training.step import EvalState, init_state, make_eval_step, make_train_step

CONFIG = Config(model=TransformerConfig(**SIZES))


def task_with(**changes: Any) -> Waves:
    """The toy task, with something replaced."""
    config = dataclasses.replace(CONFIG, data=ToyData(max_length=2, buckets=(2,), batch_tokens=64))
    return type("Changed", (Waves,), changes)(config)


def corpus_of(**splits: list) -> Corpus:
    return in_memory("toys", splits, Path("unused"))


RECORDS = Waves.records(0, 8)
WHOLE = corpus_of(train=RECORDS, validation=RECORDS)


def check(task: Waves, corpus: Corpus = WHOLE, system: System = SYSTEM) -> None:
    task.config = replace(getattr(task, "config", CONFIG), system="toy")
    for check in OF_CORPUS:
        check(system, task, corpus)


def one(**changes: Any) -> list[dict[str, Any]]:
    """An example that differs from what is declared."""
    return [{"digits": [4, 5], "wave": np.zeros((10, 2))} | changes]


def each(example: list[dict[str, Any]]) -> Any:
    return lambda self, records, truncate=False: example * len(records)


def test_a_sound_task_passes() -> None:
    check(task_with())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"examples": each([{"digits": [4]}])},
            "train split: wave is not in both the fields and the example",
        ),
        ({"examples": each(one(more=1))}, "train split: more is not in both"),
        ({"examples": each(one(wave=np.zeros((9, 2))))}, r"wave has the shape \(9, 2\), not \(10, 2\)"),
        ({"examples": each(one(digits=np.zeros((2, 3))))}, r"digits has the shape \(2, 3\), not \[length"),
        ({"examples": each(one(digits=[4] * 9))}, "digits has 9 elements, more than the longest bucket, 2"),
        ({"examples": lambda self, records, truncate=False: []}, "0 examples of 8 records"),
        (
            {"inputs": "digits"},
            r"inputs must be a tuple of names of its fields \(digits, wave\), not 'digits'",
        ),
        ({"inputs": ("picture",)}, r"inputs must be a tuple of names of its fields .* not \('picture',\)"),
        (
            {"__init__": lambda self, config: None},
            "Changed has no fields: its __init__ must",
        ),
        ({"measures": dict}, r"Changed.measures\(\) must begin with its criterion, mse"),
        ({"measures": lambda self: {Metric("other", "another"): max}}, "begin with its criterion, mse"),
    ],
)
def test_what_a_task_declares_is_compared_with_its_examples(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(task_with(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measures": lambda self: {self.criterion: lambda given: 1.0}}, "mse must give a Score, not float"),
        ({"shown": lambda self, record, output: ("a", "b")}, "shown must return three texts"),
        ({"outputs": lambda self, result, record, n_best: []}, "outputs returned none"),
    ],
)
def test_mistakes_that_only_an_evaluation_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("transformer.translator.loaded.system_of", lambda config: SYSTEM)
    task = task_with(**changes)
    config, model = task.config, SYSTEM.model(task.config.model)
    corpus = in_memory("toys", {"train": RECORDS, "validation": RECORDS}, tmp_path)
    objective = SYSTEM.objective(config, None)
    evaluator = Evaluator(config, SYSTEM, objective, prepare(task, corpus), layout_of(config.mesh))
    variables = model.init(jax.random.key(0), np.ones((1, 2), np.int32))
    with pytest.raises(UserError, match=message):
        evaluator.validate(variables, StopRequest())


def test_a_source_that_is_no_ids() -> None:
    pictures = jnp.zeros((2, 4, 4, 3))
    with pytest.raises(UserError, match=r"of the shape \(2, 4, 4, 3\): define its source_mask"):
        Transformer(TransformerConfig(**SIZES)).source_mask(pictures)
    for inputs in ({"source": pictures}, {"picture": pictures}):
        with pytest.raises(UserError, match=r"use AutoregressiveSearch\(limits_of_options\)"):
            limits_of_source(inputs, SpecialIds(), BeamConfig())
    with pytest.raises(UserError, match="must set the size of the vocabulary"):
        check_beam(BeamConfig(), TransformerConfig())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 4, 4)), r"\[rows, columns, 3\], not \(3, 4, 4\)"),
        (np.zeros(4), r"not \(4,\)"),
        (np.full((4, 4, 3), 255.0), "such as pixels / 255"),
    ],
)
def test_pictures_that_cannot_be_shown(values: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Picture("patches", values, Axis(""), Axis(""))


def test_splits_that_are_missing_or_empty() -> None:
    for corpus, split in (
        (corpus_of(validation=RECORDS), "train"),
        (corpus_of(train=RECORDS), "validation"),
        (corpus_of(train=RECORDS, validation=[]), "validation"),
    ):
        with pytest.raises(UserError, match=f"its {split} split is missing or empty"):
            check(task_with(), corpus)


def test_a_system_that_cannot_decode_says_so_before_it_is_trained() -> None:
    silent = dataclasses.replace(SYSTEM, search=None)
    with pytest.raises(UserError, match="give it a search, or set Changed.decodes = False"):
        check(task_with(), system=silent)
    check(task_with(decodes=False), system=silent)


def test_no_example_of_an_evaluation_is_dropped() -> None:
    with pytest.raises(UserError, match="longer than the longest bucket"):
        list(fixed_batches([{"ids": [1] * 9}], {"ids": Field()}, [(4,), (8,)], 64))


@pytest.mark.by_default("<lambda>-but returned float32\\\\[8, 2\\\\]")
@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda *_: jnp.zeros(()), "must return transformer.Loss"),
        (lambda *_: Loss(jnp.zeros(()), jnp.ones(())), r"given the carry float32\[8, 1\], but returned \(\)"),
        (
            lambda model, variables, batch, context: Loss(
                jnp.zeros(()), jnp.ones(()), carry=jnp.concatenate([context.carry] * 2, axis=1)
            ),
            r"but returned float32\[8, 2\]",
        ),
    ],
)
def test_what_an_objective_returns(objective: Any, message: str) -> None:
    optimizer, example = optax.sgd(0.1), (np.zeros((1, 2), np.int32),) * 2
    state = init_state(MODEL, optimizer, 0, example, carry=jnp.zeros((8, 1)))
    with pytest.raises(UserError, match=message):
        make_train_step(MODEL, objective, optimizer, seed=0)(state, {})
    with pytest.raises(UserError, match=message):
        make_eval_step(MODEL, objective)(EvalState(state.variables, state.carry), {})


@dataclasses.dataclass(frozen=True)
class Forbids(SearchHook):
    """Forbids some tokens."""

    tokens: tuple[int, ...]

    def filter(self, logits: Any, state: Any, steps_left: Any) -> Any:
        return logits.at[..., list(self.tokens)].set(-jnp.inf)


class Narrow(SearchHook):
    def filter(self, logits: Any, state: Any, steps_left: Any) -> Any:
        return logits[..., :3]


@pytest.mark.by_default("greedy")
@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_hooks_that_forbid_too_much(method: str) -> None:
    options, variables = (
        changed_search(BeamConfig(extra_length=3), {"method": method}),
        random_variables(MODEL, 0),
    )
    given = MODEL, variables, {"source": jnp.asarray(SOURCES)}, jnp.arange(len(SOURCES)), options
    everything = AutoregressiveSearch(hooks=Hooks((Forbids(tuple(range(MODEL.config.vocab_size))),)))(*given)
    limits = (SOURCES != 0).sum(axis=1) + 3
    # at the limit <eos> is all that is left, which needs a beam that has come so far
    assert (np.asarray(everything.scores)[limits > 1] == -np.inf).all()
    never_ending = AutoregressiveSearch(hooks=Hooks((Forbids((MODEL.config.special.eos,)),)))(*given)
    lengths = (np.asarray(never_ending.tokens) != 0).sum(axis=-1)
    assert np.isfinite(never_ending.scores).all()
    assert (lengths == limits[:, None]).all()
    with pytest.raises(UserError, match="Narrow.filter returned the shape"):
        AutoregressiveSearch(hooks=Hooks((Narrow(),)))(*given)
    assert "hook forbids every token" in NO_OUTPUT


TINY = PRESETS["tiny"]


def system_with(**changes: Any) -> System:
    """A system that can be registered, with something replaced."""
    return System(
        **{"model": Transformer, "objective": lambda *_: None, "task": Translation, **changes}  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("size", "refused"), [(6, False), (5, True), (0, False)])
def test_targets_have_ids_that_the_model_can_predict(size: int, refused: bool) -> None:
    task = task_with(examples=each(one(target=[5, 2])))
    task.fields = {**task.fields, "target": Field(shape=(2,), padded=False)}
    task.config = replace(task.config, model=replace(CONFIG.model, vocab_size=size))
    with (
        pytest.raises(UserError, match="target has the id 5, and the vocabulary those from 0 to 4")
        if refused
        else contextlib.nullcontext()
    ):
        check(task)


def test_a_corpus_is_what_opening_one_returns() -> None:
    forgetful = type("Forgetful", (Waves,), {"open_corpus": classmethod(lambda *_: None)})
    with pytest.raises(UserError, match="Forgetful.open_corpus must return a transformer.Corpus, not None"):
        open_corpus_shown(replace(CONFIG, system="toy"), forgetful, ProgressReporter(quiet=True))


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("", {}, "must consist of small letters"),
        ("../x y", {}, "must consist of small letters"),
        ("mine", {"system": "Transformer"}, "system must be a System, not 'Transformer'"),
        ("mine", {"options": TransformerConfig}, "options must be an Options, not"),
        ("mine", {"options": Options(presets={"mine": Preset(TINY, "mine")})}, "with system='mine'"),
        (
            "mine",
            {"options": Options(presets={"mine": replace(TINY, system="mine")})},
            "a transformer.Preset",
        ),
        (
            "mine",
            {"options": Options(presets={"tiny": Preset(replace(TINY, system="mine"), "")})},
            "preset tiny is registered already",
        ),
        ("mine", {"options": Options(variants={"mine": {}})}, "variant mine: must be a transformer.Variant"),
        (
            "mine",
            {"options": Options(variants={"rdrop": Variant("")})},
            "variant rdrop is registered already",
        ),
        ("speech", {}, "registered already"),
        (
            "mine",
            {"system": system_with(task=type("Half", (Task,), {}))},
            "task Half: define .*examples, .*, criterion, as transformer.Task describes",
        ),
        (
            "mine",
            {"system": system_with(objective=translation_objective(0.1))},
            "system mine: its objective must be a function of the config and of a function that loads",
        ),
    ],
)
def test_what_can_be_registered(
    name: str, given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users
    system = system_with()
    before = dict(REGISTRY), dict(PRESETS), dict(VARIANTS)
    with pytest.raises(UserError, match=message):
        register(name, **{"options": Options(), "system": system, **given})
    assert before == (REGISTRY, PRESETS, VARIANTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": type("Flat", (Waves,), {"example": staticmethod(lambda _: (np.zeros(2, np.int32),))})},
            r"system toy: IndexError: .*waves.py, line \d+\). Its model must accept what its task's example",
        ),
        (
            {
                "task": Translation,
                "model": type("Old", (Transformer,), {"encode": lambda self, source: source}),
            },
            "system toy: TypeError: .*unexpected keyword argument 'deterministic'",
        ),
    ],
)
def test_mistakes_that_a_model_shows(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    system = dataclasses.replace(SYSTEM, **changes)
    config = replace(CONFIG, system="toy")
    monkeypatch.setitem(REGISTRY, "toy", Registered(Options(), system))
    for shapes in (declared_parameters, model_shapes):
        with pytest.raises(UserError, match=message):
            shapes(system, config)
    monkeypatch.setattr("transformer.systems.parameters.is_from_outside", lambda name: False)
    with pytest.raises((TypeError, IndexError)):  # a fault of this package has its traceback
        model_shapes(system, config)


def test_a_batch_that_the_model_was_not_initialised_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "toy", Registered(Options(), SYSTEM))
    model = nn.Dense(4)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 3)))
    apply = mistakes_named("toy")(model.apply)
    with pytest.raises(UserError, match="system toy: ScopeParamShapeError: .*, line .*the fields of a batch"):
        apply(variables, jnp.zeros((1, 2)))
    assert apply(variables, jnp.zeros((2, 3))).shape == (2, 4)


def test_an_entry_point_that_registers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forgetful.py").write_text("")
    info = tmp_path / "forgetful-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[transformer.systems]\nforgetful = forgetful\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_entry_points.__wrapped__() == (
        "package forgetful registers no system: forgetful must call transformer.register",
    )
