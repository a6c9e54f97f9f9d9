"""Bodies of requests as clients send them: curl without a header, forms, files of forms."""

import gzip
import importlib.metadata
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from pydantic import ValidationError
from served import asked, translations
from test_serving_systems import one_run, recording, served

import transformer
from transformer import UserError
from transformer.decoding.service.lanes import Preparation
from transformer.serve import bodies
from transformer.serve.bodies import FORM, form_of, parameters_of
from transformer.serve.refusals import Refusal, refusal_of
from transformer.serve.services.messages import with_options
from transformer.serve.services.translation import Translations

SERVED = {"transformer": "/translate", "language-model": "/generate", "speech": "/transcribe"}
PAIR = {"text": "red", "target": "cat"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    with asked(*(served(one_run(name, folder), name) for name in SERVED)) as client:
        yield client


def post(client, path: str, body: bytes, content: str | None) -> httpx.Response:
    headers = {} if content is None else {"content-type": content}
    request = client.build_request("POST", path, content=body, headers=headers)
    assert request.headers.get("content-type") == content
    return client.send(request)


def test_every_endpoint_reads_what_curl_sends(client):
    """curl -d sends the header of a form, and libraries none."""
    paths = client.get("/openapi.json").json()["paths"]
    posted = {path for path, methods in paths.items() if "post" in methods}
    assert posted == {*SERVED.values(), "/score", "/choose"}
    bodies = {path: json.dumps({"text": "7 and "} if path != "/score" else PAIR).encode() for path in posted}
    bodies["/choose"] = json.dumps({"text": "red", "choices": ["cat", "dog"]}).encode()
    bodies["/transcribe"] = recording()
    for path, body in bodies.items():
        answers = [post(client, path, body, content) for content in (None, FORM, f"{FORM}; charset=utf-8")]
        assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
        declared = post(client, path, body, "audio/wav" if path == "/transcribe" else "application/json")
        assert {answer.text for answer in answers} == {declared.text}


def test_a_form_has_fields(client):
    whole = client.post("/translate", json={"text": "red", "n_best": 1}).json()
    assert client.post("/translate", data={"text": "red", "n_best": "1"}).json() == whole
    assert client.post("/translate", files={"text": (None, "red")}).json() == whole
    assert client.post("/score", data=PAIR).json() == client.post("/score", json=PAIR).json()


def test_what_programs_put_around_json_is_read_or_refused(client):
    body = json.dumps({"text": "red: 7", "n_best": 1}).encode()
    whole = client.post("/translate", content=body)
    for content in None, FORM, "application/json":
        assert post(client, "/translate", b"\xef\xbb\xbf" + body, content).text == whole.text
    for encoding, path in ("gzip", "/translate"), ("br", "/score"), ("deflate", "/transcribe"):
        headers = {"content-encoding": encoding}
        answer = client.post(path, content=gzip.compress(body), headers=headers)
        message = f"the body has Content-Encoding {encoding!r}: send it as it is, not compressed"
        assert (answer.status_code, answer.json()["error"]) == (415, message)
    plain = client.post("/translate", content=body, headers={"content-encoding": "identity"})
    assert plain.status_code == 200
    twice = post(client, "/translate", b"text=red&text=cat", FORM)
    assert (twice.status_code, twice.json()["error"]) == (422, "text: the form has it twice; send it once")
    twice = client.post("/translate", files=[("text", (None, "red")), ("text", (None, "cat"))])
    assert (twice.status_code, twice.json()["error"]) == (422, "text: the form has it twice; send it once")


def test_true_is_no_number_in_a_list_either():
    fields = with_options(Translations.search, (), ["suppress"])
    assert fields.model_validate({"text": "a", "suppress": [1, 2]}).suppress == (1, 2)
    with pytest.raises(ValidationError, match="must be a number, not true"):
        fields.model_validate({"text": "a", "suppress": [2, True]})


def test_a_field_that_an_address_has_twice_is_refused(client):
    """The last one would be taken silently. Those of a form with a file are among them."""
    error = {"error": "n_best: the address has it twice; send it once"}
    file, wave = {"file": ("a.wav", recording())}, {"content": recording()}
    for answer in (
        client.post("/transcribe?n_best=1&n_best=2", **wave),
        client.post("/transcribe?n_best=1", files=file, data={"n_best": "1"}),
    ):
        assert (answer.status_code, answer.json()) == (422, error)
    assert client.post("/transcribe?n_best=1", **wave).status_code == 200


def test_fields_of_an_address_are_refused_where_the_body_has_them(client):
    """They would be ignored silently."""
    for path, fields in (
        ("/translate", {"text": "red"}),
        ("/generate", {"text": "7"}),
        ("/score", PAIR),
        ("/choose", {"text": "red", "choices": ["cat"]}),
    ):
        for answer in (
            client.post(f"{path}?beam=3", json=fields),
            client.post(f"{path}?beam=", data=fields),
            client.post(f"{path}?beam=3&beam=4&n_best=2", json=fields),
        ):
            error = "beam: the address has it, and fields are read from the body: put it there"
            assert (answer.status_code, answer.json()) == (422, {"error": error})


def test_options_of_commands_are_named_as_clients_or_trainers_know_them():
    """Fields of requests without dashes, and options of sections as they are written."""
    sentences = {
        "--max-length 3: give --decoding.extra-length.": "max_length 3: give extra_length.",
        "--decoding.method mbr": "method mbr",
        "unknown: --data.add-tokens adds it": "unknown: --data.add-tokens adds it",
    }
    for said, told in sentences.items():
        assert refusal_of(UserError(said)).message == told


def test_health_is_answered_while_scores_are_computed(monkeypatch):
    service, may_end, has_begun = translations(), threading.Event(), threading.Event()

    def score(*_, **__):
        has_begun.set()
        assert may_end.wait(20)
        return [-1.0]

    monkeypatch.setattr(service.decoder, "score", score)
    with asked(service) as client, ThreadPoolExecutor(1) as other:
        answer = other.submit(client.post, "/score", json=PAIR)
        assert has_begun.wait(20)
        assert client.get("/health").status_code == 200
        may_end.set()
        assert answer.result().json()["scores"] == [{"log_probability": -1.0}]


@pytest.mark.thorough("language-model")
@pytest.mark.parametrize("name", ["transformer", "language-model"])
def test_scores_are_compiled_by_its_start(name, tmp_path, monkeypatch, compiled):
    service = served(one_run(name, tmp_path), name)
    monkeypatch.setattr(service.decoder, "_preparation", lambda *_: Preparation(()))  # the searches
    words = ["red", "red green blue " * 40]
    asks = {"text": words} | ({"target": words[::-1]} if name == "transformer" else {})
    with asked(service, warm=True) as client:
        assert compiled
        compiled.clear()
        assert client.post("/score", json=asks).status_code == 200
        if name == "transformer":
            choices = {"text": words, "choices": ["cat", "dog"]}
            assert client.post("/choose", json=choices).status_code == 200
        assert compiled == []


def test_a_recording_is_a_file_of_a_form(client):
    """As curl -F file=@a.wav -F times=true."""
    whole = client.post("/transcribe?times=true", content=recording()).json()
    files = {"file": ("a.wav", recording(), "audio/wav")}
    assert client.post("/transcribe", files=files, data={"times": "true"}).json() == whole
    assert client.post("/transcribe?times=true", files=files).json() == whole
    wrong = client.post("/transcribe", files=files, data={"beams": "3"})
    assert (wrong.status_code, wrong.json()["error"]) == (422, "beams: there is no such field")
    for several in [("file", (None, "red"))], [("file", files["file"]), ("other", files["file"])]:
        wrong = client.post("/transcribe", files=several)
        assert wrong.status_code == 422
        assert "send one, in a form or as the whole body" in wrong.json()["error"]
    wrong = post(client, "/transcribe", b"--x", "multipart/form-data")
    assert (wrong.status_code, "boundary" in wrong.json()["error"]) == (422, True)


def test_a_form_is_searched_in_pieces_by_another_thread(client, monkeypatch):
    """All others wait while one call looks through 25 MB."""
    threads = set()
    divided = bodies._divided
    monkeypatch.setattr(
        bodies, "_divided", lambda *form: threads.add(threading.current_thread()) or divided(*form)
    )
    dumps = json.dumps
    named = SimpleNamespace(loads=json.loads)
    named.dumps = lambda *form, **options: threads.add(threading.current_thread()) or dumps(*form, **options)
    monkeypatch.setattr(bodies, "json", named)
    body = b"--ab\r\nContent-Disposition: form-data; name=text\r\n\r\nred\r\n--ab--"
    for size in 1, 3, 50, 10**6:
        monkeypatch.setattr(bodies, "SEARCHED", size)
        assert list(divided(b"\r\n" + body, b"\r\n--ab")) == (b"\r\n" + body).split(b"\r\n--ab")[1:]
        assert list(divided(b"aaaaaaa", b"aa")) == b"aaaaaaa".split(b"aa")[1:]
    expected = client.post("/translate", json={"text": "red"}).json()
    assert post(client, "/translate", body, "MULTIPART/form-data; boundary=ab").json() == expected
    assert post(client, "/translate", b"text=red", FORM.upper()).json() == expected
    assert threading.main_thread() not in threads
    assert {thread.name.partition("_")[0] for thread in threads} == {"asyncio"}


def test_another_type_of_body_is_named(client):
    for content in "text/plain", "application/xml":
        for path in "/translate", "/score", "/generate":
            wrong = post(client, path, b'{"text": "red"}', content)
            assert wrong.status_code == 422
            assert wrong.json()["error"].endswith(
                "must be a JSON object, and its Content-Type application/json"
            )


def test_fields_beside_a_file_are_few_and_short(client):
    files = {"file": ("a.wav", recording(), "audio/wav")}
    wrong = client.post("/transcribe", files=files, data={"language": "a" * 10_001})
    assert (wrong.status_code, "more than 10,000 characters" in wrong.json()["error"]) == (422, True)
    part = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\n"
    with pytest.raises(Refusal, match="more than 10 characters"):
        form_of(part + b"\xff" * 41, "multipart/form-data; boundary=b", 10)  # which are not decoded
    wrong = client.post("/transcribe?" + "a&" * 100, content=recording())
    assert (wrong.status_code, wrong.json()["error"]) == (422, "the address has more than 100 fields")


def test_parameters_of_headers():
    """In one pass, also where a quote is not closed."""
    read = parameters_of(r'form-data; Name="a;\"b\\" ; filename*=x;c = d; c=e; ="' + ";" * 10**6)
    assert read == {"name": 'a;"b\\', "filename*": "x", "c": "d", "": ";" * 10**6}


def test_the_head_of_a_part_is_short():
    body = b'--x\r\nContent-Disposition: form-data; name="a"; b="%s\r\n\r\nred\r\n--x--\r\n'
    content = 'multipart/form-data; boundary="x"'
    assert form_of(body % b"", content) == ({"a": "red"}, [])
    with pytest.raises(Refusal, match="a head of more than 4,096 bytes"):
        form_of(body % (b";" * 4096), content)
    part = b"--b\r\nContent-Disposition:" + b';=""' * 1000 + b"\r\n\r\nx\r\n"
    with pytest.raises(Refusal, match="the heads of the form's parts have more than 32,768 bytes together"):
        form_of(part * 99 + b"--b--", "multipart/form-data; boundary=b")


def test_bytes_of_a_file_stay_as_they_are():
    content = b"\r\n--\r\n\x00\xff--x\r\n\r\n--y"
    about = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n'
    body = about + content + b"\r\n--x--\r\n"
    form = form_of(body, "multipart/form-data; boundary=x")
    assert form == ({}, [content])


def test_languages_are_known_while_programs_are_compiled():
    with asked(translations()) as client:
        client.app.state.readiness.is_ready = False
        assert client.get("/languages").json() == [{"code": "xx", "name": "xx", "targets": ["yy"]}]
        assert client.get("/models").status_code == 200


def test_a_checkout_that_is_not_installed_is_served(monkeypatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert transformer.__version__ == "not installed"
    with asked(translations()) as client:
        assert client.get("/openapi.json").json()["info"]["version"] == "not installed"
