"""Requests of strangers: how many there may be, which begin first, what is seen of them, how all end."""

import logging
import threading
import time
from typing import Any

import numpy as np
import pytest
from small_run import WORDS
from small_translator import small_translator

from transformer import UserError
from transformer.config.decoding import BeamConfig
from transformer.decoding.service.queue import WINDOW, Expired, Queue, QueueFull, Request

LONG = {"extra_length": 30, "min_length": 25}
SOURCE = "red green blue"


def request(length: int, line: int, **urgency: Any) -> Request:
    return Request({}, length, line, BeamConfig(), None, lambda result, _: result, **urgency)


def test_the_most_urgent_begin_first_then_the_longest():
    start = (time.monotonic() // WINDOW + 1000) * WINDOW
    requests = [
        request(9, 0),
        request(1, 1, deadline=start + 0.1 * WINDOW),
        request(3, 2, deadline=start + 0.9 * WINDOW),  # in the same window, and longer
        request(9, 3, deadline=start + 1.5 * WINDOW),
        request(1, 4, priority=1),
        request(2, 5, priority=1),
    ]
    queue = Queue(1)
    queue.put(requests)
    assert [one.line for _ in range(6) for one in queue.take(0, 1)] == [5, 4, 2, 1, 3, 0]
    assert all(one.future.running() for one in requests)


def test_what_has_expired_is_not_begun():
    queue = Queue(1)
    late, early = request(9, 0, deadline=time.monotonic()), request(1, 1)
    queue.put([late, early])
    assert queue.take(0, 1) == [early]
    assert not late.future.running()
    with pytest.raises(Expired, match="line 0"):
        late.future.result(0)
    early.deadline = time.monotonic()  # it was begun before, and overflowed
    queue.put([early])
    assert queue.take(0, 1) == [early]


def held(translator):
    """Holds the search after its first request, until the event that is returned is set."""
    holds, go_on = threading.Event(), threading.Event()

    def wait(_):
        holds.set()
        assert go_on.wait(60)

    translator.submit("cat").add_done_callback(wait)
    assert holds.wait(60)
    return go_on


def test_no_more_wait_than_may():
    translator = small_translator()
    translator.queue_limit = 2
    go_on = held(translator)
    futures = [translator.submit(SOURCE, seed=seed) for seed in range(2)]
    with pytest.raises(QueueFull, match="2 requests wait"):
        translator.submit(SOURCE)
    with pytest.raises(UserError, match="extra-length"):
        translator.submit(SOURCE, extra_length=-1)  # refused for itself, and takes no room
    futures[0].cancel()
    futures.append(translator.submit(SOURCE))
    go_on.set()
    assert futures[1].result()[0].text == futures[2].result()[0].text == translator.translate(SOURCE)
    with pytest.raises(UserError, match="queue_limit 0"):
        translator.queue_limit = 0


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "copying", "recurrent", "fast-autoregressive"])
def test_an_output_is_seen_before_its_end(system):
    translator, seen = small_translator(system), []
    future = translator.submit(SOURCE, method="greedy", partial=seen.append, **LONG)
    (output,) = future.result()
    assert len(seen) >= 3
    for partial in seen:
        shown = partial.ids[:-1]  # without <eos>
        assert 0 < len(shown) < len(output.ids)
        assert output.ids[: len(shown)] == shown
    assert [output.text] == [found[0].text for found in translator.search([SOURCE], method="greedy", **LONG)]


def test_only_who_asked_sees_it_and_what_fails_there_disturbs_nobody(caplog):
    translator = small_translator()

    def fail(_):
        raise RuntimeError("the screen is gone")

    with caplog.at_level(logging.ERROR, logger="transformer"):
        futures = [translator.submit(word, partial=fail if word == "cat" else None, **LONG) for word in WORDS]
        found = [future.result()[0].text for future in futures]
    assert found == translator.translate(WORDS, **LONG)
    assert "the screen is gone" in caplog.text
    assert "line 1: what was to be done" in caplog.text


def test_a_running_request_can_be_cancelled():
    translator, began = small_translator(), threading.Event()
    state = list[Any]()

    def stop(_):
        if not state:
            state.append(future.running())
            state.append(future.cancel())
        began.set()

    future = translator.submit(SOURCE, partial=lambda output: stop(output), **LONG)
    other = translator.submit("cat", **LONG)
    assert began.wait(60)
    assert state == [True, True]
    assert future.cancelled()
    assert other.result()[0].text == translator.translate("cat", **LONG)


def test_alignments_and_token_scores():
    translator = small_translator()
    (expected,) = translator.search([SOURCE], alignments=True, token_scores=True)
    found = translator.submit(SOURCE, alignments=True, token_scores=True).result()
    for ours, wanted in zip(found, expected, strict=True):
        assert ours.ids == wanted.ids
        np.testing.assert_allclose(ours.alignment, wanted.alignment, atol=1e-6)
        np.testing.assert_allclose(ours.token_log_probabilities, wanted.token_log_probabilities, atol=1e-5)
    assert translator.submit(SOURCE).result()[0].alignment is None


def test_all_end_in_order():
    translator = small_translator()
    futures = [translator.submit(word) for word in WORDS]
    assert translator.close()
    assert all(future.result()[0] for future in futures)
    for use in (translator.submit, translator.translate):
        with pytest.raises(UserError, match="was closed"):
            use(SOURCE)


@pytest.mark.parametrize("how", [{"drain": False}, {"timeout": 0.01}])
def test_those_that_wait_are_cancelled(how):
    translator = small_translator()
    go_on = held(translator)
    futures = [translator.submit(word) for word in WORDS[:4]]  # few: one thread searches them, and it is held
    assert not translator.close(**how)
    go_on.set()
    assert all(future.cancelled() for future in futures)
    assert translator.close()


@pytest.mark.thorough
def test_a_system_that_predicts_all_tokens_at_once_shows_nothing():
    translator, seen = small_translator("nonautoregressive"), list[Any]()
    assert translator.submit(SOURCE, partial=seen.append).result()
    assert seen == []


@pytest.mark.parametrize("wrong", [{"deadline": -1}, {"deadline": float("inf")}, {"priority": -1}])
def test_what_is_no_urgency_is_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        small_translator().submit(SOURCE, **wrong)
