"""Sound that is sent to a server while it arrives: what is heard, limits, and clients that do wrong."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
from served import asked
from starlette.websockets import WebSocketDisconnect
from test_live import EXPECTED, WORDS, heard, sound_of
from test_serving_clients import running
from test_serving_systems import one_run

from transformer.data.signals.audio import RATE
from transformer.serve import gate, listening
from transformer.serve.services.limits import ALLOWED, Limits
from transformer.serve.services.service import service_of
from transformer.systems.speech.long import live_texts

client_library = pytest.importorskip(
    "websockets.sync.client", reason="needs websockets: pip install '.[serve]'"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return one_run("speech", tmp_path_factory.mktemp("speech"))


@pytest.fixture
def service(run, monkeypatch):
    """A run whose words are tones, which differ by how long they are."""
    kind = service_of(run)
    served = kind("ears", kind.loads.load(run), ALLOWED, Limits())
    monkeypatch.setattr(
        served.decoder, "live", lambda sound, step, **options: live_texts(heard, sound, 8.0, step)
    )
    return served


def blocks_of(wave, rate=RATE, size=4096):
    samples = (np.clip(wave, -1, 1) * (2**15 - 1)).astype("<i2")
    return [samples[start : start + size].tobytes() for start in range(0, len(samples), size)]


def said(socket, wave, **fields):
    """What a client is told: messages until the connection is closed."""
    socket.send_text(json.dumps(fields))
    for block in blocks_of(wave):
        socket.send_bytes(block)
    socket.send_text("end")
    messages = []
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            messages.append(socket.receive_json())
    return messages


def test_words_are_final_as_if_all_sound_was_there(service):
    wave = sound_of(WORDS)
    with asked(service) as client, client.websocket_connect("/listen") as socket:
        messages = said(socket, wave, step=0.5)
    assert "".join(message["final"] for message in messages) == EXPECTED
    assert [message["seconds"] for message in messages[:3]] == [0.5, 1.0, 1.5]
    assert any(message["tentative"] for message in messages)


def test_a_run_hears_what_it_transcribes(run):
    kind = service_of(run)
    own = kind("ears", kind.loads.load(run), ALLOWED, Limits(), search={"min_length": 4})
    wave = sound_of(WORDS[:4])
    (expected,) = {text.final for text in own.decoder.live([wave], step=30.0, min_length=4) if text.final}
    with asked(own) as client, client.websocket_connect("/listen") as socket:
        messages = said(socket, wave, step=30, model="ears")
        assert "/listen" in client.get("/models").json()["models"][0]["endpoints"]
    assert "".join(message["final"] for message in messages) == expected


def test_other_rates_over_a_real_connection(service):
    wave = np.repeat(sound_of(WORDS), 2)
    with running(service) as address:
        with client_library.connect(address.replace("http", "ws") + "/listen") as socket:
            socket.send(json.dumps({"rate": 2 * RATE, "step": 2}))
            for block in blocks_of(wave):
                socket.send(block)
            socket.send("end")
            finals = [json.loads(message)["final"] for message in socket]
        assert "".join(finals) == EXPECTED


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ("no JSON", None, "the first message is not JSON"),
        (b"\0\0", None, "the first message must be JSON"),
        (f"[{'1,' * 20_000}1]", None, "the first message has lists of more than 20,000 values"),
        (json.dumps(dict.fromkeys(map(str, range(9000)), 1)), None, "the first message has 9,000 fields"),
        ("[" * 15_000, None, "the first message is not JSON: it is nested too deeply"),
        ("[]", None, "the first message must be JSON"),
        ('{"rate": 3}', None, "rate: input should be greater than or equal to 1000"),
        ('{"rate": 2147483648}', None, "rate: input should be less than or equal to 1000000"),
        ('{"step": NaN}', None, "step: input should be"),
        ('{"tempo": 3}', None, "tempo: there is no such field"),
        ('{"model": "eyes"}', None, "model 'eyes': no such run does this"),
        ("{}", "more", "only samples may follow"),
        ("{}", b"\0", "1 bytes of sound: a sample has 2, send whole ones"),
        ("{}", b"\0\0" * (4 * RATE), "more than 3 s of sound"),
        ("{}", None, "nothing arrived for 0.5 s"),
    ],
)
def test_a_client_that_does_wrong_is_told_so(service, first, then, message):
    limits = Limits(seconds=0.5, listening=3)
    with asked(service, limits=limits) as client, client.websocket_connect("/listen") as socket:
        for sent in filter(None, (first, then)):
            socket.send_bytes(sent) if isinstance(sent, bytes) else socket.send_text(sent)
        texts = []
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                texts.append(socket.receive_json())
        assert message in texts[-1]["error"]


def test_who_may_listen(service):
    def error_of(client, fields, **headers):
        with client.websocket_connect("/listen", headers=headers) as socket:
            socket.send_text(json.dumps(fields))
            return socket.receive_json()["error"]

    with asked(service, token="secret", limits=Limits(listeners=1)) as client:
        assert error_of(client, {"token": "guess"}) == "the token is missing or wrong"
        with client.websocket_connect("/listen", headers={"origin": "http://testserver"}) as socket:
            socket.send_text(json.dumps({"token": "secret"}))
            assert "1 clients are heard" in error_of(client, {}, authorization="Bearer secret")
        assert said_after_leaving(client, service) == EXPECTED


def test_silent_strangers_do_not_keep_out_who_sends_the_token(service):
    def silent(stack, client):
        return stack.enter_context(client.websocket_connect("/listen"))

    with asked(service, token="secret") as client, contextlib.ExitStack() as stack:
        strangers = [silent(stack, client) for _ in range(gate.STRANGERS)]
        with client.websocket_connect("/listen") as socket:
            heard_words = said(socket, sound_of(WORDS), token="secret", step=2)
        assert "".join(message["final"] for message in heard_words) == EXPECTED
        assert "others came meanwhile" in strangers[0].receive_json()["error"]
        strangers[-1].send_text(json.dumps({"token": "guess"}))  # it was still waited for
        assert strangers[-1].receive_json()["error"] == "the token is missing or wrong"


HANDSHAKE = (
    b"GET /listen HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n"
)


def test_clients_that_were_refused_make_room(service):
    """Though they do not close their connections: others are answered, also probes."""
    with running(service, limits=Limits(connections=4)) as address, contextlib.ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        for _ in range(12):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            first_message = b"\x81\x81\0\0\0\0x"
            for sent, end in (HANDSHAKE, b"\r\n\r\n"), (first_message, b"\x03\xe8"):
                one.sendall(sent)
                answer = b""
                while not answer.endswith(end):
                    part = one.recv(1000)
                    assert part, answer
                    answer += part
            assert b"is not JSON" in answer
        assert httpx.get(f"{address}/health").status_code == 200


@pytest.mark.parametrize(("content", "count", "is_heard"), [(b"ab", 1000, True), (b"", 1025, False)])
def test_a_message_has_few_fragments(service, content, count, is_heard):
    """Empty ones too, which no limit of its length counts: to join a million takes tenths of a second."""
    fragment = b"\x00" + bytes([0x80 | len(content), 0, 0, 0, 0]) + content
    first, begun = b"\x81\x82\0\0\0\0{}", b"\x02\x80\0\0\0\0"
    end = b"\x80\x80\0\0\0\0" + b"\x81\x83\0\0\0\0end"
    with running(service) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
            one.sendall(HANDSHAKE)
            answer = one.recv(4096)
            one.sendall(first + begun + fragment * count + end)
            while not (said := re.search(rb"\x03\xe8|more than 1,024 fragments", answer)):
                part = one.recv(4096)
                assert part, answer
                answer += part
    assert (said[0] == b"\x03\xe8") == is_heard  # the code of a connection that is closed as it should be


def said_after_leaving(client, service):
    """What the only thread hears after a client has left in the middle."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with client.websocket_connect("/listen") as socket:
            messages = said(socket, sound_of(WORDS), token="secret", step=2)
        if "error" not in messages[0]:
            return "".join(message["final"] for message in messages)
    return "the thread is still busy"


def test_sound_is_resampled_where_it_is_heard(monkeypatch):
    """Not in the loop of the connections, and a second at once: 1 MiB may be nine minutes, and many wait."""
    monkeypatch.setattr(listening, "Resampling", lambda *rates: pytest.fail("in the loop"))

    async def blocks():
        sound = listening.ArrivingSound(1000)
        await sound.put(bytes(2 * 524_288))
        await sound.end()
        monkeypatch.undo()
        return await asyncio.to_thread(list, sound)

    sizes = [len(block) for block in asyncio.run(blocks())]
    assert sum(sizes) == 524_288 * 16
    assert max(sizes) < 2 * RATE


CLIENT = """
import sys
from websockets.sync.client import connect
socket = connect(sys.argv[1])
socket.send("{}")
socket.send(bytes(2 * 3 * 16_000))
print(socket.recv(), flush=True)
input()
"""


def test_a_client_that_is_killed_leaves_its_place(service):
    with running(service, limits=Limits(listeners=1)) as address:
        address = address.replace("http", "ws") + "/listen"

        def first_answer():
            with client_library.connect(address) as socket:
                socket.send("{}")
                socket.send("end")
                return socket.recv()

        command, pipe = [sys.executable, "-c", CLIENT, address], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as client:
            try:
                assert "seconds" in client.stdout.readline()
                assert "1 clients are heard" in first_answer()
            finally:
                client.kill()
        end = time.monotonic() + 20
        while "1 clients are heard" in (answer := first_answer()):
            assert time.monotonic() < end
        assert "seconds" in answer
