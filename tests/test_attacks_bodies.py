"""Attacks on a server by what a request holds: bodies that take long to check, many fields, long names."""

import asyncio
import gc
import json
import time

import httpx
import pytest
from served import asked, translations

from transformer.decoding.service.lanes import Preparation
from transformer.serve import refusals
from transformer.serve.app import server_app
from transformer.serve.services.limits import Limits
from transformer.serve.services.service import Service

TEXT = {"text": []}
READ = 422
"""The status of that request, which needs no search, if it is admitted."""


@pytest.fixture(scope="module")
def service():
    return translations()


def hostile(name):
    """A body of 660 KB or more that is within all limits, and what is said of it."""
    return {
        "numbers": (
            b'{"text": "a", "context": [%s1]}' % (b"1, " * 330_000),
            "lists of more than 20,000 values",
        ),
        "lists": (
            b'{"text": "a", "context": [%s[]]}' % (b"[]," * 330_000),
            "more than 20,000 lists, objects",
        ),
        "objects": (b'{"text": [%s{}]}' % (b"{}," * 330_000), "more than 20,000 lists, objects"),
        "fields": (
            json.dumps({f"field {i}": 1 for i in range(50_000)}).encode(),
            "more than 20,000 lists, objects and fields",
        ),
        "digits": (b'{"text": "a", "seed": %s}' % (b"9" * 900_000), "a number with too many digits"),
        "integers": (
            b'{"text": {"source": [%s1]}, "target": "a"}' % ((b"9" * 4_300 + b",") * 220),
            "a number of more than 64 bits",
        ),
        "depth": (b'{"text": %s' % (b"[" * 19_000), "nested too deeply"),
        "names": (
            json.dumps({f"field {i}": 1 for i in range(19_000)}).encode(),
            "the body has 19,000 fields",
        ),
        "wrong": (b'{"text": [%s1]}' % (b"1," * 19_000), "text: input should be a valid string"),
        "deep": (b'{"text": "a", "context": [%s1]}' % (b"[1]," * 9_000), "context.0: input should be"),
    }[name]


@pytest.mark.parametrize(
    "kind", ["numbers", "lists", "objects", "fields", "names", "digits", "integers", "depth", "wrong", "deep"]
)
def test_what_is_wrong_with_a_body_is_noted_once(service, kind, monkeypatch):
    counts = []
    sentence = refusals.sentence_of
    monkeypatch.setattr(
        refusals, "sentence_of", lambda error: counts.append(len(error.errors())) or sentence(error)
    )
    body, message = hostile(kind)
    with asked(service) as client:
        for path in "/translate", "/score":
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 422
            if path == "/translate" or "context" not in message:
                assert message in answer.json()["error"]
    assert all(count <= 4 for count in counts)


def test_a_form_has_few_fields(service):
    form = {"content-type": "application/x-www-form-urlencoded"}
    with asked(service) as client:
        answer = client.post("/translate", content=b"q=a&" * 200_000, headers=form)
        assert (answer.status_code, list(answer.json())) == (422, ["error"])
        assert "the form has more than 100 fields" in answer.json()["error"]
        answer = client.post("/translate", content=b"text=" + b"%41" * 100_001, headers=form)
        assert answer.json()["error"] == "the form has more than 100,000 escaped bytes: send JSON"


def test_names_are_short(service):
    with asked(service) as client:
        for path in "/translate", "/score", "/choose":
            for field in "model", "source_language", "target_language":
                answer = client.post(path, json={"text": "red", field: "a " * 128})
                assert answer.json()["error"] == f"{field}: string should have at most 255 characters"
        answer = client.post("/translate", json={"q": "red", "target": "a " * 128})
        assert answer.json()["error"] == "target: string should have at most 255 characters"


async def longest_turn(app, requests):
    """The most CPU seconds of one turn of the loop while requests are answered: so long /health waits."""
    worst, before = 0.0, time.thread_time()

    async def turns():
        nonlocal worst, before
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            worst, before = max(worst, now - before), now

    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://a") as client,
    ):
        while not app.state.readiness.is_ready:
            await asyncio.sleep(0.01)
        await client.post("/translate", content=b"{}")  # the first one imports what it needs
        gc.freeze()  # as a server that is ready
        counting = asyncio.ensure_future(turns())
        for path, body, kind in requests:
            answer = await client.post(path, content=body, headers={"content-type": kind})
            assert answer.status_code == 422, answer.text
        counting.cancel()
        gc.unfreeze()
    return worst


@pytest.mark.slow
def test_no_request_holds_up_the_others(monkeypatch):
    monkeypatch.setattr(Service, "preparation", lambda service: Preparation(()))
    names = (
        *("numbers", "lists", "objects", "fields", "names"),
        *("digits", "integers", "depth", "wrong", "deep"),
    )
    bodies = [(hostile(name)[0], "application/json") for name in names]
    form = b'--a\r\nContent-Disposition: form-data; b="%s\r\n\r\n--a--' % (b";" * 900_000)
    bodies += [(form, "multipart/form-data; boundary=a"), (b"a", 'multipart/form-data; b="' + ";" * 60_000)]
    long = ("a" * 250 + "/") * 16 + " "  # which messages shorten
    bodies += [
        (json.dumps({"text": "a", "model": name}).encode(), "application/json")
        for name in (long * 200, ": " * 450_000)
    ]
    bodies += [(b"text=" + b"%41" * 330_000, "application/x-www-form-urlencoded")]
    bodies += [(b"q=a&" * 240_000, "application/x-www-form-urlencoded"), (b"," * 990_000, "application/json")]
    requests = [(path, body, kind) for path in ("/translate", "/score") for body, kind in bodies]
    app = server_app([translations()], Limits(), "")
    assert asyncio.run(longest_turn(app, requests)) < 0.05
