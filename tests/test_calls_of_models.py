"""What models and searches are called with, in Python: what is wrong is refused in one sentence."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from configs import CONFIGS
from of_a_config import job_of
from tiers import mostly_slow

from transformer import (
    Config,
    Context,
    Run,
    Transformer,
    TransformerConfig,
    Translator,
    UserError,
    beam_search,
    decoder_input,
    greedy_search,
    init_state,
    make_optimizer,
    make_train_step,
    sample,
    train,
    train_tokenizer,
    translation_objective,
)
from transformer.systems.registry import REGISTRY, find_system

MODEL = Transformer(TransformerConfig(vocab_size=20, num_layers=1, d_model=8, d_ff=8, num_heads=2))
IDS = jnp.array([[4, 5, 2]])
KEY = jax.random.key(0)
SYSTEMS = [name for name in REGISTRY if not name.startswith("toy")]
WRONG = {
    "no rows": (jnp.zeros((0, 5), jnp.int32), r"of the shape \(0, 5\) is empty"),
    "no positions": (jnp.zeros((2, 0), jnp.int32), r"of the shape \(2, 0\) is empty"),
    "one dimension": (IDS[0], r"must be ids of the shape \[rows, positions\], not \(3,\)"),
    "floats": (jnp.ones((2, 3)), "must be ids, which are whole numbers, not float32"),
    "truth values": (jnp.ones((2, 3), bool), "must be ids, which are whole numbers, not bool"),
    "a list": ([[4, 5, 2]], "must be an array, not list"),
    "a text": ("abc", "must be an array, not str"),
    "nothing": (None, "must be an array, not NoneType"),
}


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests check the types of arrays and of what stands beside them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def variables() -> Any:
    return jax.jit(MODEL.init)(KEY, IDS, IDS)


@pytest.mark.parametrize("wrong", WRONG)
def test_ids_that_are_none(wrong: str, variables: Any) -> None:
    ids, message = WRONG[wrong]
    calls: dict[str, Callable[[], Any]] = {
        "source_ids": lambda: beam_search(MODEL, variables, ids, max_length=4),
        "source_ids ": lambda: greedy_search(MODEL, variables, ids, max_length=4),
        "source_ids  ": lambda: sample(MODEL, variables, ids, max_length=4, key=KEY),
        "source": lambda: MODEL.apply(variables, ids, IDS),
        "source ": lambda: MODEL.apply(variables, ids, method="encode"),
        "source  ": lambda: MODEL.init(KEY, ids, IDS),
        "decoder_input": lambda: MODEL.apply(variables, IDS, ids),
        "decoder_input ": lambda: MODEL.apply(variables, IDS, target=ids),
        "target": lambda: decoder_input(ids, MODEL.config.special),
        "target ": lambda: translation_objective(0.1)(
            MODEL, variables, {"source": IDS, "target": ids}, Context()
        ),
    }
    for name, call in calls.items():
        with pytest.raises(UserError, match=f"^{name.strip()} {message}"):
            call()


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample])
@pytest.mark.parametrize("wrong", [20, -1])
def test_ids_outside_the_vocabulary(search: Any, wrong: int, variables: Any) -> None:
    """Of arrays whose values are known; a compiled program cannot refuse them."""
    further = {"key": KEY} if search is sample else {}
    with pytest.raises(
        UserError, match=f"^source_ids: there is the id {wrong}, and the vocabulary has those from 0"
    ):
        search(MODEL, variables, np.array([[4, wrong, 2]]), max_length=4, **further)


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (beam_search, {"stop": "early", "max_length": 9}, "stop 'early': choose exact or present or full"),
        (beam_search, {"beam_size": 0}, "beam_size must be from 1 to"),
        (beam_search, {"beam_size": 1.5}, "beam_size must be a whole number, not 1.5"),
        (beam_search, {"beam_size": True}, "beam_size must be a whole number, not True"),
        (beam_search, {"length_penalty": "x"}, "length_penalty must be a number or a function, not 'x'"),
        (beam_search, {"length_penalty": float("nan")}, "length_penalty must be a finite number"),
        *(
            (search, {name: value}, f"{name} must be from")
            for search in (beam_search, greedy_search, sample)
            for name, value in (("max_length", -3), ("max_length", 0), ("extra_length", -1))
        ),
        *(
            (search, {name: wrong}, f"{name} must be a whole number, not ")
            for search, names in ((beam_search, ("max_length", "beam_size")), (sample, ("samples", "top_k")))
            for name in names
            for wrong in (np.ones(2), np.array("x"), np.float32(2))
        ),
        (beam_search, {"length_penalty": np.ones(2)}, "length_penalty must be a number or a function, not "),
        (sample, {"samples": 0}, "samples must be from 1 to"),
        (sample, {"temperature": 0}, "temperature must be from 0.001"),
        (sample, {"temperature": -1.0}, "temperature must be from 0.001"),
        (sample, {"top_k": -1}, "top_k must be from 0"),
        (sample, {"top_p": 0.0}, "top_p must be from"),
        (sample, {"top_p": 2.0}, "top_p must be from"),
    ],
)
def test_options_of_searches(search: Any, options: dict[str, Any], message: str, variables: Any) -> None:
    further = {"key": KEY} if search is sample else {}
    with pytest.raises(UserError, match=f"^{message}"):
        search(MODEL, variables, IDS, **further, **options)


@pytest.mark.parametrize("key", [None, 0, "x", jnp.ones(2)])
def test_what_is_no_key(key: Any, variables: Any) -> None:
    with pytest.raises(UserError, match=r"^key must be a random key, such as jax.random.key\(0\)"):
        sample(MODEL, variables, IDS, key=key)


CONFIG = Config(model=MODEL.config)
NO_RUN: Any = object.__new__(Run)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("tiny", "runs/x"), "config must be a Config, not 'tiny'"),
        (lambda: make_optimizer("adam"), "config must be a Config, not 'adam'"),
        (lambda: train(CONFIG, 3), "run_dir must be a path or a text, not 3"),
        (lambda: translation_objective(0.1, "source"), "inputs must be a list of phrases, not 'source'"),
        (lambda: Run(3), "path must be a path or a text, not 3"),
        (lambda: Run.check_free(3), "path must be a path or a text, not 3"),
        (lambda: Run.averaged(NO_RUN, 7), "steps must be a Sequence, not 7"),
        (lambda: Run.variables(NO_RUN, np.ones(2)), "checkpoint must be a text or a whole number, not array"),
        (lambda: Run.check_corpus(NO_RUN, None), "corpus must be a text, not None"),
        (lambda: Run.check_free("a\0"), r"'a.x00': the name has a null character"),
        (lambda: Run.check_free("a" * 5000), "cannot create aaa"),
        (lambda: Translator.load("x", mean=np.ones(2)), "mean must be a text, not array"),
        (lambda: translation_objective("x"), "smoothing must be a number, not 'x'"),
        (lambda: translation_objective(1.5), r"smoothing must be in \[0, 1\)"),
        (lambda: step_of(accumulate=0), "accumulate must be from 1"),
        (lambda: step_of(accumulate="2"), "accumulate must be a whole number, not '2'"),
        (lambda: step_of(seed=None), "seed must be a whole number, not None"),
        (lambda: step_of(ema=1), "ema must be in"),
        (lambda: step_of(reduce_dtype="float16"), "reduce_dtype 'float16': choose float32"),
        (
            lambda: init_state(MODEL, make_optimizer(CONFIG), "x", (IDS, IDS)),
            "seed must be a whole number, not 'x'",
        ),
        (lambda: train_tokenizer([], "unigram", 300), "the training text is empty"),
        (lambda: train_tokenizer("a b", "unigram", 300), "texts must be a list of lines, not one string"),
        (lambda: train_tokenizer([b"a"], "unigram", 300), "texts, line 1: must be a string, not b'a'"),
        (lambda: train_tokenizer(["a"], "unigrm", 300), "kind 'unigrm': choose unigram or bpe"),
        (lambda: train_tokenizer(["a"], ["bpe"], 300), "kind .'bpe'.: choose unigram or bpe"),
        (lambda: train_tokenizer(["a"], "bpe", 300.5), "vocab_size 300.5: must be a whole number"),
        (lambda: train_tokenizer(["a"], "word", -1), "vocab_size -1: must be a whole number from 0"),
    ],
)
def test_arguments_of_other_functions(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        call()


def step_of(**options: Any) -> Any:
    return make_train_step(
        MODEL, translation_objective(0.1), make_optimizer(CONFIG), **{"seed": 0, **options}
    )


@pytest.mark.parametrize("system", mostly_slow(SYSTEMS, ["transformer", "detection"]))
def test_every_model_is_tabulated(system: str) -> None:
    """By a Flax that counts calls of the methods that it has wrapped."""
    config = job_of(next(config for config in CONFIGS.values() if config.system == system)).config
    model, example = find_system(system).model(config.model), find_system(system).task.example(config)
    arrays = [jnp.ones(x.shape, x.dtype) for x in jax.tree.leaves(example)]
    table = model.tabulate(KEY, *jax.tree.unflatten(jax.tree.structure(example), arrays), depth=1)
    shapes = jax.eval_shape(model.init, KEY, *example)["params"]
    total = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(shapes))
    assert f"Total Parameters: {total:,}" in table
