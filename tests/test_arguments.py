"""Arguments of the Python API of a wrong type or value: each is a UserError that names it."""

import inspect
import itertools
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jaxtyping
import numpy as np
import pytest
from small_translator import small_translator, stored

from transformer import (
    BeamConfig,
    Captioner,
    Config,
    DataConfig,
    Decoder,
    Detector,
    EncoderConfig,
    Glossary,
    GreedyConfig,
    MbrConfig,
    OptimizerConfig,
    Options,
    Preset,
    Run,
    SampleConfig,
    SpecialIds,
    Synthesizer,
    System,
    Tagger,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translation,
    Translator,
    UserError,
    Variant,
    beam_search,
    decoder_input,
    init_state,
    make_eval_step,
    make_optimizer,
    make_train_step,
    register,
    sample,
    train,
    train_tokenizer,
    translation_objective,
    variant,
)
from transformer.config.ranges import shown
from transformer.runtime.errors import nearest, shortened
from transformer.systems.language_model.api import Generator
from transformer.systems.registry import find_system
from transformer.systems.speech.api import Transcriber


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests check the types of arrays and of what stands beside them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("kind", [Translator, Transcriber, Generator])
@pytest.mark.parametrize(
    ("run_dir", "message"),
    [
        ("x" * 5000, "no such run directory"),
        ("", "'': must be the path of a run directory"),
        (b"/path", "run_dir b'/path': must be the path"),
        (7, "run_dir 7: must be the path"),
    ],
)
def test_what_is_no_run_directory(kind: Any, run_dir: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind.load(run_dir)


@pytest.mark.slow
def test_options_of_loading(tmp_path: Path) -> None:
    run = stored(small_translator(), tmp_path / "run")
    with pytest.raises(UserError, match="int8 'no': must be True or False"):
        Translator.load(run, int8="no")  # type: ignore[arg-type]
    for weights in ([], [1.0]):
        with pytest.raises(UserError, match="weights and mean are for an ensemble"):
            Translator.load(run, weights=weights)
    for wrong in (["1", "2"], [1.0], [1.0, float("nan")], [0, 1], [1j, 1]):
        with pytest.raises(UserError, match="give a positive number for each of the 2 models"):
            Translator.load([run, run], weights=wrong)
    of_arrays = Translator.load([run, run], weights=np.array([1, 3]))
    assert of_arrays.translate("red cat") == Translator.load([run, run], weights=[1, 3]).translate("red cat")


def test_arguments_of_a_search() -> None:
    translator = small_translator()
    for wrong in ("1", True, 1.0, 0):
        with pytest.raises(UserError, match="n_best|n-best"):
            translator.search(["red"], n_best=wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="n_best '1': must be a whole number from 1 to "):
        translator.search(["red"], n_best="1")  # type: ignore[arg-type]
    for name in "alignments", "token_scores", "word_confidences":
        with pytest.raises(UserError, match=f"{name} 'yes': must be True or False"):
            translator.search(["red"], **{name: "yes"})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sources must be a list of sentences, not NoneType"):
        translator.stream(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sources must be a list of sentences, not bytes"):
        translator.search(b"red")  # type: ignore[arg-type]
    for wrong, kind in ((None, "NoneType"), ("red", "one string")):
        with pytest.raises(UserError, match=f"inputs must be a list of records, not {kind}"):
            Decoder.stream(translator, wrong)  # type: ignore[arg-type]
    in_lists = {
        "sentences": translator.in_context,
        "sources": translator.usual_limits,
        "sources ": lambda text: translator.calibrated(text, ["cat"], ["cat", "dog"]),
        "right": lambda text: translator.calibrated(["red"], text, ["cat", "dog"]),
    }
    for name, call in in_lists.items():
        with pytest.raises(UserError, match=f"^{name.strip()} must be a list of .*, not one string"):
            call("red")
    for name in "length_penalty", "noise":
        with pytest.raises(UserError, match=f"--decoding.{name.replace('_', '-')} 1000.*: is too large"):
            translator.search(["red"], **{name: 10**400})


VALID = {
    "adapter": "run",
    "entries": {"red": "rot"},
    "format": "text",
    "hypothesis": None,
    "labels": ["cat", "dog"],
    "lines": [1],
    "members": [],
    "names": ["cat"],
    "path": None,
    "pictures": [],
    "prefixes": [""],
    "prompt": "red",
    "prompts": ["red"],
    "record": "red",
    "records": ["red"],
    "right": ["cat"],
    "run_dir": "run",
    "sentences": ["red"],
    "source": "red",
    "source_language": None,
    "sound": [],
    "sources": ["red"],
    "target": "cat",
    "target_language": None,
    "targets": ["cat"],
    "temperature": 1.0,
    "terms": [[]],
    "text": "Red.",
    "texts": ["red"],
    "words": ["red"],
}
"""A value of each argument without a default."""
WRONG = [1, 1.5, None, True, [], {}, [1], [None], {"a": 1}, b"red", "\ud800", object(), "\0", 10**5000]
WRONG += [np.zeros(2), np.array("red"), np.array(["red", None], object)]


def methods_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """The public methods of an object, without those that only tests and the package call."""
    for name in dir(owner):
        parts = ("divided", "of_run", "answers", "outputs", "finished", "source_positions")
        inside = name in parts
        if not name.startswith("_") and not inside and inspect.isroutine(method := getattr(owner, name)):
            yield name, method


def called(method: Any, arguments: dict[str, Any]) -> None:
    """Calls a method, and waits for all that it returns."""
    result = method(**arguments)
    if isinstance(result, Future):
        result.result(timeout=60)
    elif isinstance(result, Iterator):
        list(result)


def tracebacks(owner: Any, without: Sequence[str] = ("warm_up",)) -> list[str]:
    """What ends in an exception that is no UserError, of all values that are given for a text, a list of
    them or a path, besides some methods: to warm up needs no text, and compiles."""
    wrong: list[str] = []
    for name, method in methods_of(owner):
        if name in without:
            continue
        parameters = inspect.signature(method).parameters.values()
        needed = {one.name for one in parameters if one.default is one.empty and one.kind != one.VAR_KEYWORD}
        arguments = {one: VALID.get(one) for one in needed}
        for parameter in parameters:
            kinds = ("str", "Path", "Source", "Iterable", "Literal", "Any", "Extras", "WindowsConfig")
            if not any(kind in str(parameter.annotation) for kind in kinds):
                continue
            for value in WRONG:
                try:
                    called(method, arguments | {parameter.name: value})
                except UserError:
                    pass
                except Exception as error:
                    wrong.append(f"{name}({parameter.name}={shown(value)}): {type(error).__name__}: {error}")
    return wrong


def test_no_argument_of_a_method_ends_in_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = tracebacks(small_translator())
    assert not wrong, "\n".join(wrong)


SECTIONS: list[Any] = [
    *(BeamConfig, GreedyConfig, MbrConfig, SampleConfig, DataConfig, OptimizerConfig, TrainingConfig),
    *(Config, EncoderConfig, TransformerConfig, SpecialIds),
]
KINDS: dict[str, Any] = {
    "captioning": Captioner,
    "detection": Detector,
    "language-model": Generator,
    "speech": Transcriber,
    "synthesis": Synthesizer,
    "tagging": Tagger,
}
"""By the stored run of each system."""


@pytest.mark.by_default("tagging")
@pytest.mark.parametrize("name", KINDS)
def test_nor_does_one_of_another_system(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(Path(__file__).parent / "data" / "older_runs" / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    decoder = KINDS[name].load(tmp_path / name / "run")
    wrong = tracebacks(decoder, without=("warm_up", "submit_plain", "aligned"))
    assert not wrong, "\n".join(wrong)


def test_arguments_of_a_transcriber() -> None:
    transcriber = object.__new__(Transcriber)
    with pytest.raises(UserError, match="extras must be .* Extras, not 7"):
        transcriber.warm_up(extras=7)  # type: ignore[arg-type]
    for name in "times", "alignments":
        with pytest.raises(UserError, match=f"{name} 'yes': must be True or False"):
            transcriber.search([], **{name: "yes"})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_truncated_target_is_named_as_one(caplog: pytest.LogCaptureFixture) -> None:
    translator, long = small_translator(), "red " * 50
    translator.score(["cat"] * 5 + [long], [long] * 5 + ["cat"])
    assert [record.getMessage() for record in caplog.records] == [
        "line 6: truncated from 50 to 7 subwords",
        *(f"the target of line {line}: truncated from 50 to 10 subwords" for line in (1, 2, 3)),
        "2 more lines, up to the target of line 5, were truncated",
    ]


def test_long_names_are_shortened() -> None:
    for name in "a" * 300, "a" * 300 + "/b" * 3000, "/a" * 3000:
        assert shortened(f"file:{name}: none") == f"file:{name[:60]}...: none"
    assert shortened("x/" + "a" * 300) == "x/" + "a" * 60 + "..."
    fits = ("a" * 250 + "/") * 16
    assert shortened(fits) == fits
    assert nearest("y" * 201, ["y" * 200]) == ""
    long = "x" * 5000
    for name in (long, f"folder/{long}/run", "x/" * 2500):
        with pytest.raises(UserError, match="no such run directory") as caught:
            Translator.load(name)
        assert len(str(caught.value)) < 120
    with pytest.raises(UserError, match=f"run '{'y' * 60}[.]{{3}}' does not exist"):
        raise UserError(f"run {'y' * 4000!r} does not exist")
    name = f"{'a' * 255}/{'b' * 255}"
    assert str(UserError(f"{name}: no such run directory")) == f"{name}: no such run directory"


def test_arguments_of_scores() -> None:
    translator = small_translator()
    (found,) = translator.search(["red cat"], n_best=1)
    expected = translator.score(["red cat"], [found[0].ids])
    assert translator.score(iter(["red cat"]), (ids for ids in [found[0].ids])) == pytest.approx(expected)
    for wrong in (b"x", {5, 6}, [True], [1.0], None):
        with pytest.raises(UserError, match="line 1: the target .* must be a text or a list of ids"):
            translator.score(["red cat"], [wrong])  # type: ignore[list-item]
    with pytest.raises(UserError, match="targets must be a list with one for each pair"):
        translator.score(["red cat"], b"x")  # type: ignore[arg-type]


@pytest.mark.slow
def test_arguments_of_functions() -> None:
    """Of the public ones, what a user may mistake."""
    ids, special = np.ones((2, 3), np.int32), SpecialIds()
    model = Transformer(TransformerConfig(11, num_layers=1, d_model=16, d_ff=32, num_heads=2))
    params = model.init(jax.random.key(0), ids, ids)["params"]
    others: list[Any] = [
        None,
        [],
        {},
        "x",
        -1,
        1.5,
        np.full((2, 3), np.nan),
        np.ones(3, int),
        object(),
        [[1], 1],
    ]
    for wrong in others:
        with pytest.raises(UserError, match="target"):
            decoder_input(wrong, special)
        with pytest.raises(UserError, match="special must be a SpecialIds"):
            decoder_input(ids, wrong)
        with pytest.raises(UserError, match="special must be a SpecialIds"):
            train_tokenizer(["a b"], "word", 20, wrong)
        with pytest.raises(UserError, match="kind "):
            train_tokenizer(["a b"], wrong, 20)
        with pytest.raises(UserError, match="model must be a Module"):
            beam_search(wrong, params, ids)
        with pytest.raises(UserError, match="params must be a dictionary|params are not those of this model"):
            beam_search(model, wrong, ids)
        with pytest.raises(UserError, match="no variant|names must be a text"):
            variant(Config(), wrong)
        if wrong is not None:
            with pytest.raises(UserError, match="segments"):
                decoder_input(ids, special, wrong)
            with pytest.raises(UserError, match="lines must be a whole number for each of 2 rows"):
                sample(model, params, ids, key=jax.random.key(0), lines=wrong)
        if not isinstance(wrong, list | dict):
            with pytest.raises(UserError, match="languages"):
                train_tokenizer(["a b"], "word", 20, languages=wrong)
    with pytest.raises(UserError, match=r"temperature must be one number, not an array of the shape \(2,\)"):
        sample(model, params, ids, key=jax.random.key(0), temperature=np.ones(2))


def test_no_argument_of_a_wrong_type_reaches_the_inside_of_a_public_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a UserError that names it."""
    monkeypatch.chdir(tmp_path)
    translator = small_translator()
    config, model = translator.config, translator.model
    optimizer, system, options = make_optimizer(config), find_system("transformer"), Options()
    objective = translation_objective(0.1)
    change, step = Variant("").options, {"model": model, "objective": objective}
    parts = {"config": config, "variables": translator.variables}
    functions: list[tuple[Any, dict[str, Any]]] = [
        *((kind, vars(kind())) for kind in SECTIONS),
        (Variant, {"about": "", "options": change, "systems": (), "change": abs}),
        (Preset, {"config": config, "about": ""}),
        (Options, vars(options)),
        (System, vars(system)),
        (register, {"name": "toy", "options": options, "system": system}),
        (train, {"config": config}),
        (variant, {"config": config}),
        (make_optimizer, {"config": config}),
        (Run, {"path": "run", "writes": False}),
        (Glossary, {"entries": {"red": "rot"}, "keep": ""}),
        (Transformer, {"config": model.config}),
        (Translation, {"config": config, "tokenizers": translator.tokenizers}),
        (Translator, {**parts, "tokenizers": translator.tokenizers}),
        (Decoder, {**parts, "task": translator.task}),
        (make_eval_step, step),
        (make_train_step, {**step, "optimizer": optimizer, "seed": 0, "accumulate": 1, "gather": abs}),
        (init_state, {"model": model, "optimizer": optimizer, "seed": 0, "example": (), "variables": {}}),
    ]
    wrong: list[str] = []
    for function, arguments in functions:
        for name, value in itertools.product(arguments, [None, "\ud800", -1.5, [[1], 1], {1: "a"}, object()]):
            try:
                function(**{**arguments, name: value})
            except UserError as error:
                if isinstance(value, float) and name.replace("_", "-") not in str(error).replace("_", "-"):
                    wrong.append(f"{function.__name__}({name}={value!r}): {error} does not name it")
            except Exception as error:
                wrong.append(f"{function.__name__}({name}={value!r}): {type(error).__name__}: {error}"[:150])
    assert not wrong, "\n".join(wrong)


def test_a_system_with_a_mistake_is_refused_at_its_first_use(tmp_path: Path) -> None:
    """A config cannot know the systems that other packages bring: each door asks for it by its name."""
    config, translator = Config(system="transfromer"), small_translator()
    for use in (
        lambda: train(config, tmp_path / "run"),
        lambda: Translator(config, translator.variables, translator.tokenizers),
        lambda: Decoder(config, translator.variables, translator.task),
    ):
        with pytest.raises(UserError, match="transfromer: unknown: did you mean transformer[?]$"):
            use()
