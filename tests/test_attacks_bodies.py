"""Attacks on a server by what a request holds: bodies that take long to check, many fields, long names."""

import asyncio
import gc
import importlib
import itertools
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from served import asked, translations
from small_run import WORDS

from transformer.decoding.service.lanes import Preparation
from transformer.runtime.errors import UserError
from transformer.serve import answers, app, libretranslate, refusals
from transformer.serve.app import server_app
from transformer.serve.services import translation
from transformer.serve.services.limits import Limits
from transformer.serve.services.messages import Sent, with_options
from transformer.serve.services.service import Service
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks import text

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


def kinds_of(kind):
    """It, and what is made of it."""
    return [kind, *itertools.chain(*map(kinds_of, kind.__subclasses__()))]


def test_one_mistake_of_a_list_counts():
    """In every list of every request: to note thousands takes tenths of a second."""
    for system in map(find_system, REGISTRY):
        if module := getattr(system.task, "service", ""):
            importlib.import_module(module)
    kinds = kinds_of(Sent)
    assert {"AskedTags", "AskedContinuations", "LibreTranslation"} <= {kind.__name__ for kind in kinds}
    for kind, wrong in itertools.product(kinds, ([], ["a", 1], 1, None)):
        for name in kind.model_fields:
            with pytest.raises(ValidationError) as refused:
                kind.model_validate({name: [wrong] * 1000, "no such field": 1})
            assert refused.value.error_count() <= 6, (kind, name)


def test_the_loop_reads_no_form_of_a_stranger(service, monkeypatch):
    """Nor JSON: that which may have the token in its body."""
    threads, key_of = [], libretranslate.key_of

    def read(path, body, content):
        threads.extend([threading.get_ident()] * bool(body))
        return key_of(path, body, content)

    async def ask():
        transport = httpx.ASGITransport(server_app([service], Limits(), "secret"))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            for key, status in ("wrong", 401), ("secret", 503):
                assert (await client.post("/translate", data={"api_key": key})).status_code == status
        assert threading.get_ident() not in threads

    monkeypatch.setattr(libretranslate, "key_of", read)
    asyncio.run(ask())
    assert len(threads) == 2


def test_a_form_has_few_fields(service):
    form = {"content-type": "application/x-www-form-urlencoded"}
    with asked(service) as client:
        answer = client.post("/translate", content=b"q=a&" * 200_000, headers=form)
        assert (answer.status_code, list(answer.json())) == (422, ["error"])
        assert "the form has more than 100 fields" in answer.json()["error"]
        answer = client.post("/translate", content=b"text=" + b"%41" * 100_001, headers=form)
        assert answer.json()["error"] == "the form has more than 100,000 escaped bytes: send JSON"


def test_the_loop_checks_no_texts(monkeypatch):
    """Their names and inputs may be thousands."""
    service, threads = translations(), []
    items = service.items
    monkeypatch.setattr(
        service, "items", lambda asked: threads.append(threading.current_thread().name) or items(asked)
    )
    with asked(service) as client:
        for body in {"text": ["red"]}, {"q": "red", "source": "xx", "target": "yy"}, {"text": []}:
            client.post("/translate", json=body)
    assert [name.partition("_")[0] for name in threads] == ["prepare"] * 3


def test_strings_of_options_are_no_longer_than_a_text(monkeypatch):
    """All divisions of forbidden phrases into subwords take minutes if there are thousands."""
    limits = Limits(characters=20)
    service = translations(limits=limits, allowed=("forbidden", "prefix", "terms"))
    monkeypatch.setattr(service.decoder, "submit", lambda *text, **options: Future())
    kind = with_options(service.search, service.loads.extras, service.options)
    service.submit("red", kind(text="red", terms=["red"]), 1)
    for name, value in ("forbidden", ["red"] * 7), ("terms", ["green"] * 5), ("prefix", "r" * 21):
        with pytest.raises(UserError, match=f"{name}: 2[0-9] characters, and there may be 20: name less"):
            service.submit("red", kind(text="red", **{name: value}), 1)


def test_names_are_short(service):
    with asked(service) as client:
        for path in "/translate", "/score", "/choose":
            for field in "model", "source_language", "target_language":
                answer = client.post(path, json={"text": "red", field: "a " * 128})
                assert answer.json()["error"] == f"{field}: string should have at most 255 characters"
        answer = client.post("/translate", json={"q": "red", "target": "a " * 128})
        assert answer.json()["error"] == "target: string should have at most 255 characters"


def test_alignments_grow_as_the_square_of_a_text(monkeypatch):
    with pytest.raises(
        UserError, match="1,200 tokens by 1,200 are more than 1,000,000 numbers: divide the text"
    ):
        text._blocks([np.zeros((600, 600))] * 2)
    body = {"text": ["red", "green"], "alignments": True}
    with asked(translations()) as client:
        assert client.post("/translate", json=body).status_code == 200
        monkeypatch.setattr(answers, "NUMBERS", 5)
        answer = client.post("/translate", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("alignments: these outputs have more than 5 numbers")
        assert "event: error" in client.post("/translate", json=body | {"stream": True}).text
        monkeypatch.setattr(text, "MOST_ALIGNED", 5)
        answer = client.post("/translate", json=body | {"text": "red\ngreen"})
        assert (answer.status_code, "divide the text" in answer.json()["error"]) == (422, True)


def test_sentences_are_counted_until_there_are_too_many(service, monkeypatch):
    counted = []
    monkeypatch.setattr(service, "limits", Limits(sentences=100))
    sentences_of = service.decoder.sentences_of
    monkeypatch.setattr(
        service.decoder,
        "sentences_of",
        lambda *read, **options: counted.append(1) or sentences_of(*read, **options),
    )
    with asked(service) as client:
        answer = client.post("/translate", json={"text": ["red\n" * 60] * 20})
    message = "text: more than 100 sentences and lines in a request: divide them"
    assert (answer.status_code, answer.json()["error"]) == (422, message)
    assert len(counted) == 2


def test_scores_are_made_and_written_in_turns(monkeypatch):
    """In another thread: other requests are answered meanwhile, and a client that leaves ends them."""
    service, sizes, threads = translations(), [], set()
    score = service.decoder.score
    monkeypatch.setattr(
        service.decoder,
        "score",
        lambda several, *rest, **lines: sizes.append(len(several)) or score(several, *rest, **lines),
    )
    monkeypatch.setattr(
        app,
        "in_pieces",
        lambda value: threads.add(threading.current_thread().name) or refusals.in_pieces(value),
    )
    many = [f"red {word}" for word in WORDS]
    rows = service.settings.rows
    with asked(service) as client:
        expected = [service.decoder.score([one], [one])[0] for one in many]
        sizes.clear()
        scores = client.post("/score", json={"text": many, "target": many}).json()["scores"]
        assert [one["log_probability"] for one in scores] == pytest.approx(expected, abs=1e-4)
        assert len(sizes) > 1
        assert max(sizes) <= rows
        sizes.clear()
        client.post("/choose", json={"text": many[:4], "choices": many[:5]})
        assert {name.partition("_")[0] for name in threads} == {"score"}
        client.post("/translate", json={"q": many[:4], "source": "xx", "target": "yy"})
    assert {name.partition("_")[0] for name in threads} == {"score", "prepare"}


def test_a_long_answer_is_sent_in_pieces(monkeypatch):
    """That of a single text, too: other requests are answered between them, and a client that does not read
    takes no memory for the rest."""
    sizes = []
    monkeypatch.setattr(refusals, "AT_ONCE", 200)

    async def counted(scope, receive, send):
        async def count(message):
            sizes.append(len(message.get("body", b"")))
            await send(message)

        await served_app(scope, receive, count)

    with asked(translations()) as client:
        served_app = client.app
        client.app = client._transport.app = counted
        long = "red. " * 80
        own = {"text": long, "token_scores": True}
        other = {"q": long, "source": "xx", "target": "yy"}
        for asked_for in own, other, own | {"stream": True}:
            sizes.clear()
            answer = client.post("/translate", json=asked_for)
            assert answer.status_code == 200
            assert sum(sizes) == len(answer.content) > 1000, asked_for
            assert max(sizes) <= 200


def test_the_answer_of_hundreds_of_languages_is_made_once(service, monkeypatch):
    made = []
    monkeypatch.setattr(app, "languages", lambda able: made.append(1) or libretranslate.languages(able))
    with asked(service) as client:
        first, again = (client.get("/languages").json() for _ in range(2))
        assert first == again == libretranslate.languages([service])
    assert made == [1]


def test_an_answer_repeats_labels_up_to_a_bound(service, monkeypatch):
    monkeypatch.setattr(translation, "ANSWERED", 20)
    with asked(service) as client:
        body = {"text": ["red", "green"], "choices": ["a" * 5, "b" * 5]}
        assert client.post("/choose", json=body).status_code == 200
        answer = client.post("/choose", json=body | {"text": ["red"] * 3})
    message = "each label for each text, together 30 characters, and it may have 20: divide the texts"
    assert (answer.status_code, message in answer.json()["error"]) == (422, True)


def test_who_leaves_ends_what_is_scored(service):
    begun, released, made = threading.Event(), threading.Event(), []

    def parts():
        for number in range(3):
            made.append(number)
            begun.set()
            released.wait(10)
            yield [{"score": number}]

    async def leave():
        scoring = asyncio.ensure_future(app.in_turns(service, parts(), pool))
        await asyncio.to_thread(begun.wait, 10)
        scoring.cancel()
        released.set()
        await asyncio.wait({scoring})

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(leave())
    assert made == [0]


async def longest_turn(server, requests):
    """The most CPU seconds of one turn of the loop while requests are answered: so long /health waits."""
    worst, before = 0.0, time.thread_time()

    async def turns():
        nonlocal worst, before
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            worst, before = max(worst, now - before), now

    transport = httpx.ASGITransport(server)
    async with (
        server.router.lifespan_context(server),
        httpx.AsyncClient(transport=transport, base_url="http://a") as client,
    ):
        while not server.state.readiness.is_ready:
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
    assert asyncio.run(longest_turn(server_app([translations()], Limits(), ""), requests)) < 0.05
