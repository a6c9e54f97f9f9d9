"""The server: what it answers is what the library returns, and what it refuses it says in a sentence."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from served import asked, translations

from transformer.decoding.service.lanes import Preparation
from transformer.serve import metrics
from transformer.serve.app import server_app
from transformer.serve.refusals import Refusal
from transformer.serve.services.limits import ALLOWED, Limits

LIMITS = Limits(texts=4, characters=40, body=2_000)
TEXT = "red green blue"


@pytest.fixture(scope="module")
def service():
    return translations(limits=LIMITS)


@pytest.fixture(scope="module")
def client(service):
    with asked(service, limits=LIMITS) as client:
        yield client


def test_translations_are_those_of_the_library(service, client):
    texts = [TEXT, "cat", ""]
    more = {"alignments": True, "token_scores": True}
    answer = client.post("/translate", json={"text": texts, "n_best": 2, **more})
    assert answer.status_code == 200
    expected = service.decoder.search(texts, n_best=2, **more)
    found = answer.json()
    assert found["model"] == "small"
    assert [output["hypotheses"] for output in found["outputs"]] == [
        [hypothesis.to_json() for hypothesis in some] for some in expected
    ]
    assert [output["source_tokens"] for output in found["outputs"]] == [TEXT.split(), ["cat"], []]


def events(text: str) -> list[tuple[str, dict]]:
    """Server-sent events."""
    parts = [block.split("\n") for block in text.split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def test_outputs_are_seen_as_they_grow(service, client):
    long = {"extra_length": 3, "min_length": 5}
    answer = client.post("/translate", json={"text": [TEXT, "cat"], "stream": True, **long})
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    assert found[-1] == ("done", {"model": "small"})
    outputs = {data["index"]: data["hypotheses"][0]["text"] for name, data in found if name == "output"}
    expected = service.decoder.translate([TEXT, "cat"], **long)
    assert outputs == dict(enumerate(expected))
    for name, data in found:
        if name == "partial":
            assert len(data["text"].split()) <= 8


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 422, "the body is not JSON: "),
        (b"", 422, "the body is missing"),
        (b"[]", 422, "the body must be a JSON object"),
        (b"[%s1]" % (b"1," * 900), 422, "the body must be a JSON object"),
        (b"[" * 1_900, 422, "the body is not JSON: it is nested too deeply"),
        (b'{"text": "\\ud800"}', 422, "the body is not JSON: it has half of a surrogate pair"),
        (b'{"text": "\xff"}', 422, "the body is not UTF-8: byte 11"),
        (b'{"text": "a", "seed": %s}' % (b"9" * 18), 422, "seed must be from 0"),
        (b'{"text": "a", "seed": %s}' % (b"9" * 1_900), 422, "the body has a number of more than 64 bits"),
        (b'{"text": "a", "seed": NaN}', 422, "seed: "),
        (b'{"text": "a", "max_length": true}', 422, "max_length: must be a number, not true"),
        (b'{"text": "a", "n_best": false}', 422, "n_best: must be a number, not false"),
        (b'{"text": "a", "length_penalty": true}', 422, "length_penalty: must be a number, not true"),
        (b'{"text": "a", "text" : "b"}', 422, "text: the body has it twice; send it once"),
        (b'{"text": {"source": "a:", "source": "b"}}', 422, "source: the body has it twice"),
        (b'{"text": 1}', 422, "text: input should be a valid string"),
        (b"{}", 422, "text is missing"),
        (b'{"text": []}', 422, "text: the list is empty"),
        (b'{"text": "a", "rows": 1000}', 422, "rows: there is no such field"),
        (
            rb'{"text": "a", "\u001b[2J\n\u202e": 1}',
            422,
            r"\x1b[2J\n\u202e: there is no such field",
        ),
        (rb'{"text": "a", "\u001b": 1, "\u001b": 2}', 422, r"\x1b: the body has it twice"),
        (b'{"text": "a", "beam_size": 8}', 422, "beam_size: there is no such field"),
        (b'{"text": "a", "model": "/etc/passwd"}', 422, "model '/etc/passwd': no such run does this"),
        (b'{"text": "a", "n_best": 9}', 422, "n_best 9: must be at least 1 and at most 3"),
        (
            b'{"text": "a", "extra_length": 9}',
            422,
            "extra_length 9, max_length None: there is room for 3",
        ),
        (b'{"text": "a", "max_length": 0}', 422, "max_length must be from 1 to 100,000"),
        (b'{"text": "a", "temperature": 1}', 422, "temperature: there is no such field"),
        (b'{"text": "a", "source_language": "de"}', 422, "source_language: the texts of this model begin"),
        (b'{"text": ["a", "b", "c", "d", "e"]}', 422, "text: 5 texts, and a request may have 4: divide them"),
        (b'{"text": "%s"}' % (b"a" * 41), 422, "text 1: 41 characters, and it may have 40: divide it"),
        (b'{"text": "%s"}' % (b"a" * 2_000), 413, "the body has more than 2,000 bytes: send less"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(client, body, status, message):
    answer = client.post("/translate", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert message in answer.json()["error"]
    assert answer.json()["error"].isprintable()


def test_scores_are_those_of_the_library(service, client):
    pairs = {"text": ["red green", "cat"], "target": ["blue dog", "bird"]}
    found = client.post("/score", json=pairs).json()
    expected = service.decoder.score(pairs["text"], pairs["target"])
    assert [score["log_probability"] for score in found["scores"]] == pytest.approx(expected.tolist())
    answer = client.post("/score", json={"text": "cat"})
    assert (answer.status_code, answer.json()) == (
        422,
        {"error": "target is missing: run small scores translations"},
    )


def test_it_says_what_it_is_and_what_it_does(client):
    assert client.get("/health").json() == client.get("/ready").json() == {"status": "ok"}
    (model,) = client.get("/models").json()["models"]
    assert model["endpoints"] == ["/translate", "/score", "/choose"]
    assert model["options"] == [name for name in ALLOWED if name not in ("temperature", "top_p")]
    described = client.get("/openapi.json").json()
    others = {"/languages", "/models", "/health", "/ready", "/metrics"}
    assert set(described["paths"]) == {"/translate", "/score", "/choose"} | others
    for path in "/translate", "/score", "/choose":
        content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            text = json.dumps(example["value"])
            assert client.post(path, content=text).status_code in (200, 422)
    assert "alignments" in described["components"]["schemas"]["AskedTranslations"]["properties"]
    metrics = client.get("/metrics").text
    assert 'transformer_requests_total{endpoint="/score",status="200"}' in metrics
    assert 'transformer_slots_in_use{run="small"} 0.0' in metrics
    assert 'transformer_waiting_texts{run="small"} 0.0' in metrics
    assert 'transformer_request_seconds_bucket{endpoint="/translate",le="0.01"}' in metrics
    assert client.get("/generate").status_code == client.post("/transcribe").status_code == 404
    assert client.get("/nothing").json() == {"error": "/nothing: there is no such address"}
    wrong = client.get("/translate")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json() == {"error": "/translate: send POST to this address"}
    for path in "/", "/health", "/models":
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(client.get(path).content))


def test_a_token_is_needed_if_the_server_has_one(service):
    with asked(service, token="secret") as client:
        for path in "/translate", "/score":
            for headers in {}, {"Authorization": "Bearer wrong"}:
                answer = client.post(path, json={"text": "cat"}, headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (401, "the token is missing or wrong")
        assert client.get("/metrics").status_code == 401
        assert client.get("/health").status_code == client.get("/").status_code == 200
        assert '"hasToken":true' in client.get("/").text  # so that the form asks for it
        known = {"Authorization": "Bearer secret"}
        assert client.post("/translate", json={"text": "cat"}, headers=known).status_code == 200
        own = {"q": "cat", "source": "xx", "target": "yy"}
        assert client.post("/translate", json={**own, "api_key": "secret"}).status_code == 200
        assert client.post("/translate", data={**own, "api_key": "wrong"}).status_code == 401


def test_it_says_how_much_is_prepared_and_whether_it_ever_will_be(monkeypatch):
    refusals, now = [], [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])

    def prepare():
        now[0] += 5
        with pytest.raises(Refusal) as refused:
            asyncio.run(readiness.check())
        refusals.append(refused.value)
        now[0] += 60
        if len(refusals) == 3:
            raise ValueError("damaged")

    service = SimpleNamespace(preparation=lambda: Preparation([[prepare]] * 3))
    readiness = metrics.Readiness([service])
    readiness.warm_up()
    assert [refusal.message.partition(": ")[2] for refusal in refusals] == [
        "0 of 3 programs",
        "1 of 3 programs, about 2 min 5 s left",
        "2 of 3 programs, about 1 min 0 s left",
    ]
    with pytest.raises(Refusal, match="could not be prepared") as refused:
        asyncio.run(readiness.check())
    assert "Retry-After" in refusals[0].headers
    assert "Retry-After" not in refused.value.headers


def test_it_is_ready_before_the_programs_of_some_requests_are_compiled(service, monkeypatch, caplog):
    """Whoever wants to wait for all asks for /ready?all=true."""
    statuses = list[tuple[int, ...]]()
    other = translations("other")

    def look() -> None:
        statuses.append(tuple(client.get(path).status_code for path in ("/ready", "/ready?all=true")))

    def fail() -> None:
        raise ValueError("damaged")

    of_first = Preparation([[look]], [[look], [fail]])
    monkeypatch.setattr(service, "preparation", lambda: of_first)
    monkeypatch.setattr(other, "preparation", lambda: Preparation([], [[look]]))
    app = server_app([service, other], Limits())
    client = TestClient(app)  # outside of a context, in which it would compile
    app.state.readiness.warm_up()
    assert statuses == [(503, 503), (200, 503), (200, 503)]
    assert (app.state.readiness.needed, app.state.readiness.count) == (1, 4)
    refusal = client.get("/ready?all=true")
    assert (refusal.status_code, "could not be prepared" in refusal.json()["error"]) == (503, True)
    assert client.get("/ready").status_code == 200
    assert "the programs could not be compiled" in caplog.text


def test_before_it_is_ready_it_says_so(service):
    with asked(service) as client:
        client.app.state.readiness.is_ready = False
        for answer in client.get("/ready"), client.post("/translate", json={"text": "cat"}):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert client.get("/health").status_code == 200
