"""Options of requests are data: different requests share programs, and each gets what it asks for."""

import gc
import logging
from random import Random
from typing import Any

import jax
import pytest
from small_run import WORDS
from small_translator import DECODING, small_translator

from transformer import Translator, UserError
from transformer.decoding.service.lanes import Preparation, programs_of
from transformer.decoding.service.service import prepare
from transformer.translator.search_inputs import SERVICES

SOURCES = ["red green blue", "cat", "dog bird runs sings", "sings red", "bird"]
SAMPLING = {"method": "sample", "samples": 3}


class Compilations(logging.Handler):
    """The programs that JAX compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.programs = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()).startswith("Compiling "):
            self.programs.append(message.split()[1])


@pytest.fixture
def compilations():
    """Those of all threads since the fixture was asked for."""
    handler, loggers = (
        Compilations(),
        [logging.getLogger(f"jax._src.{name}") for name in ("pjit", "dispatch")],
    )
    loggers.append(logging.getLogger("jax._src.interpreters.pxla"))
    jax.config.update("jax_log_compiles", True)  # jax.log_compiles is about one thread
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
    jax.config.update("jax_log_compiles", False)


def drawn(chance: Random, method: str) -> dict[str, Any]:
    """Options that a stranger may ask for, with rules among them."""
    options: dict[str, Any] = {
        "method": method,
        "extra_length": chance.randint(0, 6),
        "length_penalty": chance.choice([0.0, 0.3, 1.0, -0.5]),
        "seed": chance.randrange(100),
        "min_length": chance.randint(0, 2),
        "no_repeat_ngram": chance.randint(1, 4),
        "forbidden": tuple(chance.sample(WORDS, chance.randint(0, 2))),
        "suppress": tuple(chance.sample(range(5, 12), chance.randint(0, 2))),
        "suppress_first": tuple(chance.sample(range(5, 12), chance.randint(0, 2))),
    }
    if method == "sample":
        options |= {"samples": 3, "temperature": chance.uniform(0.5, 2), "top_p": chance.uniform(0.3, 0.99)}
    if method == "beam":
        options["coverage_penalty"] = chance.choice([0.0, 0.2, 1.0])
    if chance.random() < 0.3:
        options["max_length"] = chance.randint(3, 9)
    return options


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "most"),
    [("beam", {"coverage_penalty": 0.1}), ("greedy", {}), ("sample", {"top_p": 0.5, **SAMPLING})],
)
def test_a_hundred_different_requests_compile_nothing(method, most, compilations):
    """After a warm-up with room for all of them."""
    translator = small_translator()
    translator.warm_up(**{"method": method, "extra_length": 6, "no_repeat_ngram": 2, **most})
    translator.search(SOURCES, **{"method": method, "extra_length": 6, "min_length": 1, **most})
    assert compilations.programs
    compilations.programs.clear()
    chance, futures = Random(0), []
    for index in range(100):
        futures.append(translator.submit(SOURCES[index % 5], line=index, **drawn(chance, method)))
    assert all(future.result() for future in futures)
    assert compilations.programs == []


@pytest.mark.slow
@pytest.mark.by_default("terms-beam")
@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
@pytest.mark.parametrize("steered", ["nothing", "prefix", "terms", "both"])
def test_nothing_is_compiled_after_a_warm_up_of_all(method, steered, compilations):
    """Prefixes, terms, alignments and token scores, of sentences in each bucket."""
    translator = small_translator()
    prefix, terms = steered in ("prefix", "both"), steered in ("terms", "both")
    options = {"method": method, "extra_length": 4, "buckets": (8, 24), "rows": 2}
    if terms and method != "beam":
        with pytest.raises(UserError, match="terms: only --decoding.method beam"):
            translator.warm_up(terms=True, **options)
        return
    translator.warm_up(prefix=prefix, terms=terms, alignments=True, token_scores=True, **options)
    asked = {"prefixes": ["cat"]} if prefix else {}
    asked |= {"terms": [["dog", "red"]]} if terms else {}
    assert compilations.programs
    compilations.programs.clear()
    for source in ("red green", "sings " * 20):
        translator.search([source], alignments=True, token_scores=True, **asked, **options)
        one = {"prefix": "cat"} if prefix else {}
        one |= {"terms": ["dog", "red"]} if terms else {}
        shown = list[Any]()
        whole = {"partial": shown.append, "alignments": True, "token_scores": True}
        assert translator.submit(source, **whole, **one, **options).result()
        assert shown
    assert compilations.programs == []


@pytest.mark.slow
def test_few_programs_do_at_first(compilations):
    """Requests of all lengths, also many at once, need no others, and have the same outputs. What one still
    needs besides is compiled for it alone. All is compiled in the end."""
    options: dict[str, Any] = {"extra_length": 5, "buckets": (4, 8), "rows": 8}
    texts = [f"{source} {'cat ' * (index % 4)}" for index, source in enumerate(SOURCES * 8)]
    translator = small_translator()
    preparation = translator.preparation(alignments=True, **options)
    prepare(Preparation(preparation.first))
    assert compilations.programs
    compilations.programs.clear()

    def outputs_of(texts: list[str], **extras: bool) -> list[list[str]]:
        futures = [translator.submit(text, **extras, **options) for text in texts]
        return [[x.text for x in future.result()] for future in futures]

    together, alone = outputs_of(texts), [outputs_of([text])[0] for text in texts[:4]]
    assert compilations.programs == []
    assert together[:4] == alone
    assert outputs_of(texts[:1], alignments=True) == together[:1]
    assert compilations.programs == ["jit(aligned)"]
    prepare(preparation)
    assert "jit(_resized)" in compilations.programs
    compilations.programs.clear()
    assert outputs_of(texts, alignments=True) == together
    assert compilations.programs == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["beam", "sample"])
def test_each_has_what_a_program_of_its_own_gives(method):
    """Requests with different options, in the same slots at once, find what each finds alone."""
    together, chance = small_translator(), Random(1)
    together.warm_up(method=method, extra_length=6, no_repeat_ngram=2)
    asked = [drawn(chance, method) for _ in range(12)]
    futures = [together.submit(SOURCES[i % 5], line=i, **options) for i, options in enumerate(asked)]
    for index, options in enumerate(asked):
        alone = small_translator()
        (expected,) = alone.search([SOURCES[index % 5]], first_line=index, **options)
        found = futures[index].result()
        assert [one.ids for one in found] == [one.ids for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)
        assert [one.log_probability for one in found] == pytest.approx(
            [one.log_probability for one in expected], abs=1e-5
        )


@pytest.mark.slow
def test_longer_outputs_get_programs_with_room_for_more():
    translator = small_translator()
    for extra in range(3, 40):
        translator.translate(SOURCES[:1], extra_length=extra)
    (service,) = translator._services.values()
    assert service.options.extra_length == 48  # 3, doubled
    translator.translate(SOURCES[:1], extra_length=3)
    assert list(translator._services.values()) == [service]


@pytest.mark.slow
def test_what_is_kept_is_bounded():
    """Options that need programs of their own cannot exhaust memory."""
    translator = small_translator()
    for beam_size in range(1, SERVICES + 4):
        translator.translate(SOURCES[:1], beam_size=min(beam_size, 4), rows=beam_size)
    assert len(translator._services) == SERVICES
    gc.collect()
    assert programs_of.cache_info().currsize <= programs_of.cache_info().maxsize
    first = next(iter(translator._services.values()))
    assert first.options.rows == 4  # those before were not used for longest
    assert translator.translate(SOURCES[:1], rows=1) == translator.translate(SOURCES[:1])


@pytest.mark.slow
def test_what_an_option_asks_for_is_still_checked():
    translator: Translator = small_translator()
    with pytest.raises(UserError, match="min-length"):
        translator.translate(SOURCES, min_length=9, max_length=4)
    assert DECODING.extra_length == 3
