"""Sentences enter and leave one running search: each finds what it finds alone."""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import random_variables
from small_run import WORDS
from small_translator import small_translator
from tiers import combinations

from transformer import Translator, UserError
from transformer.config.decoding import BeamConfig
from transformer.config.searches import changed_search
from transformer.data.sequences import Field, Fields
from transformer.decoding.beam import beam_search
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.service.lanes import (
    Lane,
    LaneShape,
    Preparation,
    ProgramKey,
    batch,
    enough_memory,
    lane_shapes,
)
from transformer.decoding.service.queue import Queue, Request, SearchThread
from transformer.decoding.service.service import Workers
from transformer.model.variants.patches import NO_PICTURE
from transformer.systems.registry import REGISTRY, find_system, options_of
from transformer.systems.speech.system import SILENCE
from transformer.translator import decoder as module

STEPWISE = [name for name in REGISTRY if isinstance(find_system(name).search, AutoregressiveSearch)]
OPTIONS = BeamConfig(beam_size=3, extra_length=5, buckets=(4, 8), rows=3)
FIELDS = {"source": Field()}
FRAMES = {"source": Field("float32", fill=SILENCE, shape=(5,))}
PICTURES = {"source": Field("float32", fill=NO_PICTURE, shape=(8, 8, 3), padded=False)}
WIDE = {"vocab_size": 11, "num_layers": 1, "d_model": 16}


@functools.cache
def model_of(name: str) -> tuple[Any, Any]:
    kind = options_of(name).model
    sizes = WIDE | {name: size for name, size in (("d_ff", 32), ("num_heads", 2)) if hasattr(kind, name)}
    model = find_system(name).model(kind(**sizes))
    if name == "speech":
        frames, ids = jnp.zeros((1, 4, 5)), jnp.zeros((1, 2), int)
        return model, model.init(jax.random.key(1), frames, ids)
    if name == "captioning":
        return model, model.init(jax.random.key(1), jnp.zeros((1, 8, 8, 3)), jnp.zeros((1, 2), int))
    return model, random_variables(model, 1)


def sources(count: int, name: str = "transformer") -> list[Any]:
    rng = np.random.default_rng(0)
    if name == "speech":
        return [rng.normal(size=(rng.integers(1, 9), 5)).astype(np.float32) for _ in range(count)]
    if name == "captioning":
        return [rng.uniform(-1, 1, (8, 8, 3)).astype(np.float32) for _ in range(count)]
    return [[*rng.integers(4, 11, rng.integers(0, 7)).tolist(), 2] for _ in range(count)]


def fields(name: str) -> Fields:
    return {"speech": FRAMES, "captioning": PICTURES}.get(name, FIELDS)


def requests_of(given: Sequence[Any], options: BeamConfig, lane: int = 0) -> list[Request]:
    return [
        Request({"source": ids}, len(ids), line, options, None, lambda result, _: result, lane=lane)
        for line, ids in enumerate(given)
    ]


def in_lanes(
    name: str, options: BeamConfig, each: list[LaneShape], order: Sequence[int], given: list
) -> list:
    """What each source finds in lanes of these sizes, arriving in this order."""
    model, variables = model_of(name)
    key = ProgramKey(find_system(name).search, model, options.static(), tuple(fields(name).items()))
    queue = Queue(len(each))
    lanes = [Lane(index, key, shape, variables, queue, 1) for index, shape in enumerate(each)]
    requests = requests_of(given, options)
    waiting = [requests[index] for index in order]
    while not all(request.future.done() for request in requests):
        some, waiting = waiting[:4], waiting[4:]
        queue.put(some)
        for lane in lanes:
            if lane.busy or queue.waiting(lane.index):
                for request, result in lane.turn():
                    request.deliver(result)
    return [request.future.result() for request in requests]


def at_once(name: str, options: BeamConfig, given: list[Any]) -> Any:
    model, variables = model_of(name)
    inputs = jax.tree.map(jnp.asarray, batch([{"source": ids} for ids in given], fields(name), 8, len(given)))
    return find_system(name).search(model, variables, inputs, jnp.arange(len(given)), options)


@pytest.mark.thorough
@pytest.mark.by_default("transformer-beam")
@pytest.mark.parametrize(("name", "method"), combinations(STEPWISE, ["beam", "greedy", "sample"]))
def test_any_order_of_arrival_finds_the_same(name: str, method: str) -> None:
    given = sources(17, name)
    options = changed_search(OPTIONS, {"method": method} | ({"samples": 3} if method == "sample" else {}))
    expected = at_once(name, options, given)
    overflowing = [LaneShape(8, 4, (1, 2, 3)), LaneShape(8, 7, (2,)), LaneShape(8, 13, (1, 3))]
    orders = [range(17), np.random.default_rng(1).permutation(17).tolist()]
    for each, order in itertools.product(([LaneShape(8, 13, (1, 3))], overflowing), orders):
        found = in_lanes(name, options, each, order, given)
        for row, one in enumerate(found):
            wanted = np.asarray(expected.tokens[row])
            length = min(one.tokens.shape[1], wanted.shape[1])
            np.testing.assert_array_equal(one.tokens[:, :length], wanted[:, :length])
            assert (wanted[:, length:] == 0).all()
            assert (one.tokens[:, length:] == 0).all()
            np.testing.assert_allclose(one.scores, expected.scores[row], atol=1e-5)


def test_the_limit_is_that_of_the_sentence_and_not_of_its_ring() -> None:
    """A hypothesis longer than the first ring wins, if the whole search says so."""
    lengths = (np.asarray(at_once("transformer", OPTIONS, sources(17)).tokens) != 0).sum(axis=2)
    assert (lengths.max(axis=1) > 4).any()
    assert (lengths.max(axis=1) <= 4).any()


def test_sizes_of_lanes() -> None:
    model, _ = model_of("transformer")
    options = BeamConfig(rows=16)
    key = ProgramKey(find_system("transformer").search, model, options.static(), tuple(FIELDS.items()))
    assert lane_shapes(key, 16) == [
        LaneShape(32, 48, (1, 4, 16)),
        LaneShape(96, 144, (1, 2, 8), 32),
        LaneShape(256, 306, (1, 4), 96),
    ]
    short = ProgramKey(key.search, model, BeamConfig(max_length=10, buckets=(8,)).static(), key.inputs)
    assert lane_shapes(short, 1) == [LaneShape(8, 10, (1,))]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return small_translator()


LINES = [f"{a} {b}" for a in WORDS for b in WORDS]


def test_requests_of_many_threads_join_one_search(translator: Translator) -> None:
    expected = translator.translate(LINES)
    found: dict[int, str] = {}

    def ask(start: int) -> None:
        for index in range(start, len(LINES), 4):
            found[index] = translator.submit(LINES[index]).result()[0].text

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(LINES))] == expected
    assert translator.submit("").result()[0].text == ""
    assert len(translator._services) == 1


def test_a_cancelled_request_and_one_that_fails_disturb_no_other(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translator.search(LINES)
    outputs = translator.task.outputs

    def failing(found: Any, record: Any, n_best: int | None) -> Any:
        if record[0] == LINES[3]:
            raise UserError("the third")
        return outputs(found, record, n_best)

    monkeypatch.setattr(translator.task, "outputs", failing)
    futures = [translator.submit(line) for line in LINES]
    cancelled = futures[5].cancel()
    with pytest.raises(UserError, match="the third"):
        futures[3].result()
    for index, future in enumerate(futures):
        if index != 3 and not (index == 5 and cancelled):
            assert [h.text for h in future.result()] == [h.text for h in expected[index]]


class Interrupting(list):
    """Lines of which one raises an interrupt."""

    def __iter__(self) -> Any:
        yield from self[:-1]
        raise KeyboardInterrupt


def test_it_stays_usable_after_an_interrupt(translator: Translator) -> None:
    expected = translator.translate(LINES)
    with pytest.raises(KeyboardInterrupt):
        list(translator.stream(Interrupting(LINES)))
    stream = translator.stream(LINES)
    next(stream)
    stream.close()  # drops the rest
    assert translator.translate(LINES) == expected


def test_a_stream_reads_only_so_far_ahead(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD", 10)
    read: list[int] = []
    lines = (read.append(index) or line for index, line in enumerate(LINES * 4))
    for count, _ in enumerate(translator.stream(lines), 1):
        assert len(read) <= count + 10
    assert count == 4 * len(LINES)


def test_what_has_arrived_is_decoded_before_more_is_read(translator: Translator) -> None:
    """None says that nothing more has arrived."""
    out: list[Any] = []

    def records() -> Any:
        yield 1, (LINES[0], "")
        until = time.monotonic() + 60
        while not out:
            assert time.monotonic() < until
            yield None
        yield 2, (LINES[1], "")

    for found in translator.outputs(records(), translator.settings(1, {}), 1):
        out += [found] if found else []
    assert [one[0].text for one in out] == translator.translate(LINES[:2])


def test_a_search_that_fails_leaves_nobody_waiting() -> None:
    """Neither before nor after requests have been taken; and the next ones are served."""
    calls = iter(range(10))

    class Failing:
        index, busy = 0, 0

        def __init__(self) -> None:
            self.held = list[Request]()

        def turn(self) -> Iterator[tuple[Request, str]]:
            call = next(calls)
            if call == 0:
                raise MemoryError("before")
            self.held = queue.take(0, 1)
            if call == 1:
                raise MemoryError("after")
            yield self.held[0], "found"

        def empty(self) -> list[Request]:
            return self.held

        def preparation(self) -> Preparation:
            return Preparation(())

    queue = Queue(1)
    workers = Workers(queue, lambda worker: [Failing()], jax.local_devices()[:1])
    for expected in ("before", "after"):
        (request,) = requests_of([[2]], OPTIONS)
        workers.submit([request])
        with pytest.raises(MemoryError, match=expected):
            request.future.result(timeout=60)
    (request,) = requests_of([[2]], OPTIONS)
    workers.submit([request])
    assert request.future.result(timeout=60) == "found"


@pytest.mark.thorough
def test_beam_search_inside_other_transformations() -> None:
    """Objectives call it under `jit` and `pmap`."""
    model, variables = model_of("transformer")
    given = jnp.asarray([[4, 5, 2, 0], [6, 2, 0, 0]])
    search = functools.partial(beam_search, beam_size=2, extra_length=3)
    expected = search(model, variables, given)
    for transformed in (
        jax.jit(lambda x: search(model, variables, x)),
        lambda x: jax.tree.map(lambda y: y[0], jax.pmap(lambda z: search(model, variables, z))(x[None])),
    ):
        np.testing.assert_array_equal(transformed(given).tokens, expected.tokens)


def test_futures_are_those_of_the_standard_library(translator: Translator) -> None:
    assert isinstance(translator.submit(LINES[0]), Future)


def test_a_callback_cannot_wait_for_the_search_but_may_go_on(translator: Translator) -> None:
    said: list[Any] = []
    done = threading.Event()

    def go_on(future: Future[Any]) -> None:
        said.append(future.result())
        done.set()

    def wait(future: Future[Any]) -> None:
        try:
            translator.translate("red cat")
        except UserError as error:
            said.append(str(error))
        translator.submit("blue dog").add_done_callback(go_on)

    translator.submit("red cat runs").add_done_callback(wait)
    assert done.wait(60)
    assert "callback cannot wait" in said[0]
    assert said[1] == translator.search(["blue dog"])[0]


def test_a_callback_that_exits_harms_nobody(translator: Translator) -> None:
    def leave(future: Future[Any]) -> None:
        raise SystemExit(3)

    futures = [translator.submit("red cat runs") for _ in range(12)]
    with contextlib.suppress(SystemExit):  # of this thread, if the request is done already
        futures[3].add_done_callback(leave)
    assert len({future.result()[0].text for future in futures}) == 1


@pytest.mark.slow
def test_the_searching_threads_of_a_daemon_are_none(translator: Translator) -> None:
    def look() -> None:
        translator.translate(["red cat", "blue dog"])
        found.extend(each.daemon for each in threading.enumerate() if isinstance(each, SearchThread))

    found: list[bool] = []
    while any(isinstance(each, SearchThread) for each in threading.enumerate()):
        time.sleep(0.05)
    asker = threading.Thread(target=look, daemon=True)
    asker.start()
    asker.join()
    assert found
    assert not any(found)


def test_what_is_no_sentence_is_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="sources must be sentences, not int"):
        list(translator.stream(iter([3])))  # type: ignore[list-item]
    for everything in (translator.search, translator.stream):
        with pytest.raises(UserError, match="not one string"):
            everything("red cat")


@pytest.mark.thorough
def test_alignments_follow_the_options_of_the_search(translator: Translator) -> None:
    source = " ".join(WORDS[index % len(WORDS)] for index in range(30))
    assert translator.config.decoding.buckets[-1] < 31
    (best,) = translator.search([source], n_best=1, alignments=True, buckets=(8, 40))[0]
    assert best.alignment is not None
    assert best.alignment.shape[1] == len(translator.subwords(source)) + 1
    np.testing.assert_allclose(best.alignment.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.by_default("0.6")
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 2.0])
def test_the_best_are_the_same_if_the_others_may_be_uncertain(translator: Translator, penalty: float) -> None:
    """A search for the best one ends earlier than one for all of them, and finds the same one."""
    rng = np.random.default_rng(0)
    sources = [" ".join(rng.choice(WORDS, rng.integers(1, 7))) for _ in range(40)]
    every = translator.search(sources, length_penalty=penalty, extra_length=12)
    for number in 1, 2, 3:
        found = translator.search(sources, length_penalty=penalty, extra_length=12, n_best=number)
        for several, whole in zip(found, every, strict=True):
            assert [each.ids for each in several] == [each.ids for each in whole[:number]]


@pytest.mark.slow
def test_a_search_that_needs_too_much_memory_is_refused(translator: Translator) -> None:
    error = jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 160020800000 bytes.")
    with pytest.raises(UserError, match="out of memory: lower --decoding.rows, --decoding.buckets"):
        with enough_memory():
            raise error
    with pytest.raises(jax.errors.JaxRuntimeError, match="another"), enough_memory():
        raise jax.errors.JaxRuntimeError("another")
