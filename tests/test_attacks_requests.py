"""Attacks on a server: what a page, a stranger without the token, and somebody who connects and says nothing
can do to those who use it."""

import contextlib
import itertools
import json
import logging
import re
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from served import all_of, asked, served, translations
from starlette.websockets import WebSocketDisconnect

from transformer import UserError
from transformer.serve import gate, refusals
from transformer.serve import server as connections
from transformer.serve.app import server_app
from transformer.serve.gate import hosts_of
from transformer.serve.server import bound, measured
from transformer.serve.services.limits import Limits

TEXT = {"text": []}
READ = 422
"""The status of that request, which needs no search, if it is admitted."""


@pytest.fixture(scope="module")
def service():
    return translations()


def paths_of(client):
    """All endpoints, as (method, path)."""
    described = client.get("/openapi.json", headers={"host": "localhost"}).json()["paths"]
    return [(method, path) for path, methods in described.items() for method in methods] + [("get", "/")]


def test_every_refusal_is_described(service):
    """At each address, also of what nobody would send there."""
    refusals = (
        {"headers": {"content-length": "1", "transfer-encoding": "chunked"}},
        {"headers": {"authorization": "Bearer wrong"}},
        {"headers": {"origin": "null"}},
        {"headers": {"content-encoding": "gzip"}},
        {"content": b"a" * 200},
        {"params": [("all", "neither")] * 101},
        {"params": {"all": "neither"}, "json": {}},
    )
    with asked(service, limits=Limits(body=100), token="secret") as client:
        known = {"authorization": "Bearer secret", "content-type": "application/json"}
        paths = client.get("/openapi.json", headers=known).json()["paths"]
        statuses = set()
        for path, method, sent in itertools.product(paths, ("get", "post"), refusals):
            if method not in paths[path]:
                continue
            answer = client.request(method, path, **{**sent, "headers": {**known, **sent.get("headers", {})}})
            statuses.add(answer.status_code)
            content = paths[path][method]["responses"][str(answer.status_code)]["content"]
            if answer.status_code != 200:
                required = content["application/json"]["schema"]["required"]
                assert required == list(answer.json()) == ["error"], (path, sent)
    assert {400, 401, 403, 413, 415, 422} <= statuses


def test_names_that_are_answered():
    own = {"localhost", "127.0.0.1", "::1"}
    assert hosts_of("127.0.0.1", "127.0.0.1", "", ()) == hosts_of("LOCALHOST", "::1", "", ()) == own
    for host in "127.1", "2130706433", "laptop":  # they lead to this machine alone, too
        assert hosts_of(host, "127.0.0.1", "", ()) == own | {host}
    for address in "127.0.0.2", "::ffff:127.0.0.1":
        assert hosts_of(address, address, "", ()) == own | {address}
    assert hosts_of("0.0.0.0", "0.0.0.0", "", ()) is hosts_of("127.0.0.1", "127.0.0.1", "secret", ()) is None
    names = "Example.org", "mt.example.org:8000", "mt.example.com.", "[::1]", "fd00::5"
    others = {"example.org", "mt.example.org", "mt.example.com", "fd00::5"}
    assert hosts_of("0.0.0.0", "0.0.0.0", "", names) == own | others
    assert hosts_of("::", "::", "", ["Bücher.example"]) == own | {"xn--bcher-kva.example"}
    for wrong in "", "https://mt.example.org", "a@b", "a..b", ".a.org", "*.a.org", "l" * 70, "a b":
        with pytest.raises(UserError, match=f"^--allow-host {re.escape(wrong)}: must be a name"):
            hosts_of("::", "::", "", ["name", wrong])


def test_the_address_that_is_printed_can_be_opened():
    listening = Mock()
    listening.getsockname.return_value = ("::1", 80, 0, 0)
    assert connections.url_of("::1", listening) == "http://[::1]:80"
    assert connections.url_of("localhost", listening) == "http://localhost:80"


def test_a_name_of_a_stranger_that_leads_here_is_not_answered(service):
    with asked(service, hosts=hosts_of("localhost", "127.0.0.1", "", ["mt.example"])) as client:
        for host in (
            "rebound.example",
            "rebound.example:8000",
            "localhost.example",
            "127.0.0.1.example",
            "127.0.0.1:80@evil",
            "evil@127.0.0.1",
            "127.0.0.1/evil",
            "[::1]evil",
            "evil[::1]",
            "[::1]:80evil",
            "localhost:evil",
            "localhost:80:90",
            "localhost..",
            "[::1%lo]",
            "[",
            "",
        ):
            for method, path in paths_of(client):
                answer = client.request(method, path, headers={"host": host})
                assert answer.status_code == 403, (method, path)
                assert answer.json()["error"].startswith("the server is not called ")
        for host in "localhost", "LOCALHOST:8000", "127.0.0.1.:9", "[::1]:8000", "[::1]", "mt.example:80":
            assert client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "file://", "data:", "http://elsewhere.example", "http://[", "http://testserver:81", "x"),
        *("x://testserver", "//testserver", "http://testserver/path", "http://x@testserver"),
    ],
)
def test_a_page_of_another_server_is_not_answered(service, origin):
    with asked(service) as client:
        for method, path in paths_of(client):
            answer = client.request(method, path, headers={"origin": origin})
            assert (answer.status_code, list(answer.json())) == (403, ["error"])
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("/listen", headers={"origin": origin}),
        ):
            pass
        assert client.get("/health", headers={"origin": origin, "host": ""}).status_code == 403
        assert client.get("/health", headers={"origin": "http://testserver"}).status_code == 200
        for own in "http://testserver", "":
            several = [("origin", own), ("origin", origin)]
            assert client.get("/health", headers=several).status_code == 403


def test_a_form_of_another_site_makes_nobody_work(service):
    with asked(service) as client:
        refused = dict.fromkeys(("cross-site", "Cross-Site", "none, cross-site", "same-site"), 403)
        for site, status in {**refused, "same-origin": READ, "none": READ}.items():
            answer = client.post("/translate", json=TEXT, headers={"sec-fetch-site": site})
            assert answer.status_code == status, site
        opened = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert client.get("/", headers=opened).status_code == 200  # a link to the form


def test_browsers_are_told_what_not_to_do(service):
    with served(service) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for method, path in [*paths_of(client), ("get", "/nothing")]:
            for headers in {}, {"origin": "http://evil.example"}:
                answer = client.request(method, path, headers=headers)
                assert {name: answer.headers[name] for name in SAFE} == SAFE, (path, headers)


SAFE = {name.decode(): value.decode() for name, value in refusals.SAFE}
UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = b"Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n"
REFUSED = {
    "no HTTP": (b"hello\r\n\r\n", 400, "not HTTP as it should be"),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400, "not HTTP as it should be"),
    "no length": (b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "not HTTP"),
    "long head": (b"GET / HTTP/1.1\r\nHost: a\r\nX: ".ljust(64 * 1024 + 1, b"a"), 400, "head is too long"),
    "bad chunk": (
        b"POST /score HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        *(400, "not HTTP as it should be"),
    ),
    "21 digits": (
        b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: 1%s\r\n\r\n" % (b"0" * 20),
        *(400, "not HTTP as it should be"),
    ),
    "20 digits": (
        b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n" % (b"9" * 20),
        *(413, "the body has more than 1,000,000 bytes"),
    ),
    "long": (
        b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 8000001\r\n\r\n",
        *(413, "the body has more than 1,000,000 bytes"),
    ),
    "a page": (
        b"GET /listen HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\n%s%s\r\n" % (UPGRADE, KEY),
        *(403, "the page is of 'http://b'"),
    ),
    "no endpoint": (
        b"GET /nothing HTTP/1.1\r\nHost: a\r\n%s%s\r\n" % (UPGRADE, KEY),
        *(403, "nothing listens at this address"),
    ),
    "no key": (
        b"GET /listen HTTP/1.1\r\nHost: a\r\n%s\r\n" % UPGRADE,
        *(400, "missing Sec-WebSocket-Key header"),
    ),
    "a WebSocket by POST": (
        b"POST /listen HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n%s%s\r\na" % (UPGRADE, KEY),
        *(400, "not HTTP as it should be"),
    ),
    "a WebSocket with a body": (
        b"GET /listen HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n%s%s\r\na" % (UPGRADE, KEY),
        *(400, "not HTTP as it should be"),
    ),
    "a long line": (
        b"GET /listen HTTP/1.1\r\nHost: a\r\nX: %s\r\n%s%s\r\n" % (b"a" * 20_000, UPGRADE, KEY),
        *(400, "its head is too long"),
    ),
    "a line break": (  # at the end of an address that a proxy does not pass on
        b"GET /metrics%0a HTTP/1.0\r\nHost: a\r\n\r\n",
        *(404, "there is no such address"),
    ),
    "a slash": (
        b"POST /translate/ HTTP/1.0\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}",
        *(404, "/translate/: there is no such address"),
    ),
}


def test_all_refusals_are_json_with_the_same_headers(service):
    """Those of what is no HTTP, and of WebSockets, too; and none waits for a body that is too long."""
    with served(service) as port:
        for name, (request, status, message) in REFUSED.items():
            with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
                one.sendall(request)
                head, _, body = all_of(one).partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines[1:])}
            assert lines[0].split()[1] == str(status), name
            assert headers["content-type"] == "application/json", name
            assert {key: headers.get(key) for key in SAFE} == SAFE, name
            answer = json.loads(body)
            assert list(answer) == ["error"]
            assert message in answer["error"], name


def test_a_connection_beyond_all_is_refused_as_a_request(service, monkeypatch):
    monkeypatch.setattr(connections.Connection, "is_known", True)  # none gives way
    with served(service, Limits(connections=2)) as port, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        answer = httpx.get(f"http://127.0.0.1:{port}/models")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"error": "as many connections are open as may be: try again later"}
        assert {name: answer.headers[name] for name in SAFE} == SAFE
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200  # as always


def test_health_depends_on_nothing_that_is_sent(service):
    multipart = {"content-type": "multipart/form-data"}
    with asked(service, token="secret") as client:
        for path in "/health", "/ready", "/":
            assert client.get(path + "?" + "&" * 200).status_code == 200
            assert client.get(path + "?a=" + "%" * 2000, headers=multipart).status_code == 200
            assert client.request("get", path, content=b"x", headers=multipart).status_code == 200
            answer = client.post(path, content=b"x", headers=multipart)
            assert (answer.status_code, [*answer.json()]) == (405, ["error"])


def test_what_a_client_sent_is_shortened_in_messages(service):
    for long in "a" * 20_000, "a " * 8_000, "a/" * 8_000:
        with asked(service, hosts=["localhost"]) as client:
            known = {"host": "localhost"}
            for headers in {"host": long}, known | {"origin": long}, known | {"content-encoding": long}:
                answer = client.post("/score", json=TEXT, headers=headers)
                assert len(answer.json()["error"]) < 200, headers
            for method, path in paths_of(client):
                body = {"text": "red", "q": "red", long: 1}
                for address in path, f"{path}?{long}=1&{long}=2":
                    answer = client.request(method, address, json=body, headers=known)
                    assert answer.is_success or len(answer.json()["error"]) <= 1000, path


def test_text_that_is_not_utf_8_fills_no_log(monkeypatch):
    """Of clients; what fails in the application is told."""
    logger, lines = logging.getLogger("uvicorn.error"), []
    monkeypatch.setattr(logger, "handle", lambda record: logger.filter(record) and lines.append(record))
    connection = object.__new__(connections.SocketConnection)
    connection.logger, connection.frames, connection.close_sent = logger, [b"\xff"], False
    connection.conn, connection.transport, connection.queue = Mock(), Mock(), Mock()
    connection.read_paused, connection.curr_msg_data_type = True, "text"
    connection.conn.data_to_send.return_value = []
    connection.send_receive_event_to_app()
    assert not lines
    try:
        b"\xff".decode()
    except UnicodeDecodeError:
        logger.exception("Exception in ASGI application")
    assert len(lines) == 1


def test_clients_do_not_fill_the_log(caplog):
    """With lines of any part of the server; other errors of the same line of code are told."""
    logger = logging.getLogger("uvicorn.error")
    with connections.few_lines(), caplog.at_level(logging.WARNING):
        for error in ValueError, KeyError:
            for number in range(64):
                try:
                    raise error(number)
                except error:
                    logger.exception("request %d", number)
        written = [record.exc_info[0] for record in caplog.records]
        assert written == [ValueError] * connections.FEW + [KeyError] * connections.FEW
        (is_few,) = set(logger.filters) & set(logging.getLogger("transformer").filters)
        for minute in 10, 11, 1:  # the last: the clock is set back
            for number in range(64):
                record = logging.LogRecord("", logging.WARNING, "a.py", 1, "line %d", (number,), None)
                record.created = connections.PERIOD * minute
                if is_few(record):
                    caplog.handler.emit(record)
    lines = [record.getMessage() for record in caplog.records[-3 * connections.FEW :]]
    assert lines[: connections.FEW] == [f"line {number}" for number in range(connections.FEW)]
    assert lines[connections.FEW] == lines[-connections.FEW] == "line 0 (and 54 more such lines)"
    assert is_few not in logger.filters


def test_no_request_writes_to_the_log(service, monkeypatch):
    """What is no HTTP, or asks for another protocol: strangers could fill the disk."""
    logger, records = logging.getLogger("uvicorn.error"), []
    monkeypatch.setattr(logger, "handle", records.append)
    head = b"GET /health HTTP/1.1\r\nHost: a\r\n"
    with served(service) as port:
        for sent in b"x\r\n\r\n", head + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n":
            with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
                one.sendall(sent)
                assert one.recv(1000).startswith(b"HTTP/1.1 ")
    assert not records


def test_an_answer_that_takes_too_long_writes_to_no_log(service, monkeypatch):
    lines = Mock(level=logging.NOTSET)
    monkeypatch.setattr(type(service), "submit", lambda *arguments: Future())
    with served(service, Limits(seconds=0.2)) as port:
        monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [lines])
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"http://127.0.0.1:{port}/translate", json={"text": "cat", "stream": True})
        counted = 'transformer_requests_total{endpoint="/translate",status="503"} 1.0'
        assert counted in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert not lines.handle.called


def test_a_stop_leaves_who_does_not_read(service, monkeypatch):
    logger, records = logging.getLogger("uvicorn.error"), []
    monkeypatch.setattr(logger, "handle", records.append)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        with served(service, Limits(seconds=0.1)) as port:
            one.connect(("127.0.0.1", port))
            one.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                while True:
                    one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
    assert not records


def test_how_a_token_is_written(service):
    with asked(service, token="secret") as client:
        for value in "secret", "Basic secret", "Bearer", "Bearer ", "Bearersecret", "Bearer secret x":
            answer = client.post("/translate", json=TEXT, headers={"authorization": value})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), value
        twice = [("authorization", "Bearer secret"), ("authorization", "Bearer other")]
        assert client.post("/translate", json=TEXT, headers=twice).status_code == 401
        for value in "Bearer secret", "bearer secret", "BEARER  secret":
            answer = client.post("/translate", json=TEXT, headers={"authorization": value})
            assert answer.status_code == READ, value


def test_strangers_do_not_take_the_places_of_those_who_have_the_token(service, monkeypatch):
    monkeypatch.setattr(gate, "STRANGER_SECONDS", 0.5)
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
    with served(service, Limits(requests=4), "secret") as port, contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(gate.STRANGERS)
        ]
        for stranger in strangers:
            stranger.sendall(head)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            known = {"Authorization": "Bearer secret"}
            assert client.post("/score", json=TEXT, headers=known).status_code == READ
            assert client.get("/health").status_code == 200
        answers = [all_of(stranger) for stranger in strangers]
        assert {answer[:12] for answer in answers} == {b"HTTP/1.1 408"}
        assert all(b"nothing arrived within 0.5 s" in answer for answer in answers)


def test_bodies_of_all_requests_are_bounded(service):
    """Of those that are known: 40 recordings of 25 MB may arrive at once."""
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n"
    known, body = {"Authorization": "Bearer secret"}, TEXT | {"field": "a" * 60}
    limits = Limits(body=200, recording=200, bodies=250)
    with served(service, limits, "secret") as port, contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=known))

        def wait_for(requests, stored):
            state = {f"transformer_open_requests {requests}.0", f"transformer_stored_bytes {stored}.0"}
            for _ in range(2000):
                if state <= set(client.get("/metrics").text.splitlines()):
                    return
            raise AssertionError(state)

        for line in b"", b"Authorization: Bearer secret\r\n":
            assert client.post("/score", json=body).status_code == READ
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(head + line + b"\r\n" + b"{" * 180)
        wait_for(1, 180)
        answer = client.post("/score", json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (gate.BUSY, "1")
        assert answer.json()["error"] == "180 bytes of requests are stored, as many as may: try again later"
        assert client.post("/score", json=TEXT).status_code == READ
        slow.sendall(b"{" * 20)
        assert slow.recv(12) == b"HTTP/1.1 422"  # all has arrived
        slow.close()
        wait_for(0, 0)
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        slow.sendall(head.replace(b"200", b"900") + line + b"\r\n" + b"{" * 180)
        wait_for(1, 180)
        slow.sendall(b"{" * 180)
        wait_for(1, 0)  # nothing is stored of a body that is too long, while the rest of it arrives
        assert client.post("/score", json=body).status_code == READ
    with pytest.raises(UserError, match="--limits.bodies 99 is less than a body may have, 100: raise it"):
        Limits(body=1, recording=100, bodies=99)


def test_metrics_have_a_port_and_no_place_among_the_requests(service):
    with asked(service, token="secret", limits=Limits(requests=1)) as client:
        app = client.app
        assert client.get("/metrics").status_code == 401
        with measured(app.state.metrics, "127.0.0.1", 0) as port:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            assert 'transformer_slots_in_use{run="small"} 0.0' in text
            for path in "/models", "/metrics/", "/":
                missing = httpx.get(f"http://127.0.0.1:{port}{path}")
                assert (missing.status_code, missing.json()) == (
                    404,
                    {"error": f"{path}: there is no such address"},
                )


def test_the_port_of_metrics_is_guarded_as_the_other(service):
    """By the names that it answers to, the pages, and the number of connections."""
    metrics = server_app([service], Limits()).state.metrics
    with measured(metrics, "127.0.0.1", 0, ["name"]) as port:
        address = f"http://127.0.0.1:{port}/metrics"
        refused = httpx.get(address, headers={"host": "evil.example"})
        assert refused.status_code == 403
        assert "the server is not called 'evil.example'" in refused.json()["error"]
        assert httpx.get(address, headers={"origin": "http://evil.example"}).status_code == 403
        assert httpx.get(address, headers={"host": "name"}).status_code == 200
        threads = threading.active_count()
        idle = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(120)]
        assert httpx.get(address).status_code == 200
        assert threading.active_count() <= threads
        most = connections.MEASURING.connections
        closed = [one for one in idle[: -2 * most] if one.recv(1) == b""]  # or it waits until this fails
        assert len(closed) == 120 - 2 * most
        for one in idle:
            one.close()
    for host in "", "a..b", ".example.org", "l" * 70, "a b", "\udcff":
        with pytest.raises(UserError, match="^--host (is empty|.*choose another one)"):
            bound(host, 0)
    with bound("127.0.0.1", 0) as taken:
        taken_port = taken.getsockname()[1]
        message = f"--metrics-port {taken_port}: Address already in use"
        with pytest.raises(UserError, match=message), measured(metrics, "127.0.0.1", taken_port):
            pass


PROXY = Path(__file__).parent.parent / "deploy" / "nginx.conf"


def test_the_connections_of_one_address_do_not_fill_the_proxy():
    """It counts by address only requests whose heads have arrived."""
    options = dict(re.findall(r"\b(worker_\w+) (\d+);", PROXY.read_text()))
    ports = 2**16
    assert int(options["worker_connections"]) > ports
    assert int(options["worker_rlimit_nofile"]) >= ports + int(options["worker_connections"])


@pytest.mark.skipif(
    not shutil.which("nginx") or not shutil.which("openssl"), reason="needs nginx and openssl"
)
def test_the_proxy_of_the_page(service, tmp_path):
    with bound("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    certificate = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem"
    command = [*certificate.split(), "-out", "certificate.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with served(service, token="secret") as backend:
        config = (
            PROXY.read_text()
            .replace("127.0.0.1:8000", f"127.0.0.1:{backend}")
            .replace("443 ssl", f"{port} ssl")
        )
        (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/nginx.pid;\n" + config)
        command = ["nginx", "-p", tmp_path, "-c", "nginx.conf", "-g", "daemon off; error_log stderr;"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as proxy:
            try:
                address = f"https://localhost:{port}"
                with httpx.Client(
                    base_url=address, verify=False, headers={"authorization": "Bearer secret"}
                ) as client:
                    for _ in range(500):
                        with contextlib.suppress(httpx.ConnectError):
                            client.get("/health")
                            break
                        time.sleep(0.01)
                    assert (
                        client.post("/translate", json=TEXT, headers={"origin": address}).status_code == READ
                    )
                    assert (
                        client.post("/translate", json=TEXT, headers={"origin": "https://x.org"}).status_code
                        == 403
                    )
                    for path in ("/metrics", "/metrics%0a"):
                        assert client.get(path).status_code == 404
                    assert client.post("/translate", content=b"a" * 26_000_000).status_code == 413
            finally:
                proxy.terminate()
