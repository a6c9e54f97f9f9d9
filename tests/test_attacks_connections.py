"""Attacks by connections: too many, too slow, without a request, and by clients that do not read."""

import contextlib
import json
import logging
import select
import socket
import threading
import time
from unittest.mock import Mock

import httpx
import pytest
from served import all_of, served, translations

from transformer.serve import gate
from transformer.serve import server as connections
from transformer.serve.services.limits import Limits

TEXT = {"text": []}


@pytest.fixture(scope="module")
def service():
    return translations()


def test_connections_of_strangers_give_way_to_those_who_have_the_token(service):
    """Also while they are answered; and who reads a long answer slowly is not cut off for them."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n%s\r\n"
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
    with served(service, Limits(connections=4), "secret") as port, contextlib.ExitStack() as stack:
        slow = stack.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", port))
        slow.sendall(asked % b"" * 200 + asked % b"Connection: close\r\n")
        time.sleep(0.1)
        for _ in range(10):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(head)
            answer = httpx.get(f"http://127.0.0.1:{port}/models", headers={"Authorization": "Bearer secret"})
            assert answer.status_code == 200
        assert all_of(slow).count(b"HTTP/1.1 200") == 201


def test_few_connections_are_accepted_at_once(service, monkeypatch):
    """Before others give way to them: each has a file, and without any no connection would be accepted for a
    second."""
    backlogs, listen = [], socket.socket.listen
    monkeypatch.setattr(
        socket.socket, "listen", lambda one, *most: backlogs.append(most) or listen(one, *most), raising=False
    )
    with served(service):
        assert backlogs[-2:] == [(connections.ACCEPTED,), (connections.BACKLOG,)]
    assert 2 * connections.ACCEPTED < connections.OTHER_FILES


def test_idle_connections_give_way_to_new_ones(service, caplog):
    with served(service, Limits(connections=8)) as port, contextlib.ExitStack() as stack:
        monkey = stack.enter_context(pytest.MonkeyPatch.context())
        monkey.setattr(connections.Connection, "_logged", -connections.LOGGED)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client, caplog.at_level(logging.WARNING):
            for _ in range(40):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                assert client.get("/health").status_code == 200
        lines = [record.message for record in caplog.records if "connections are open" in record.message]
        assert len(lines) == 1
        assert "--limits.connections" in lines[0]


def test_the_head_of_a_request_has_a_time(service, monkeypatch):
    monkeypatch.setattr(connections, "HEAD", 0.5)
    with served(service) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(OSError):
                for _ in range(50):  # a line now and then
                    one.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n" if not _ else b"X: y\r\n")
                    time.sleep(0.1)
                    one.settimeout(0.001)
                    try:
                        if one.recv(1000) == b"":
                            break
                    except TimeoutError:
                        continue
                else:
                    pytest.fail("the connection stayed open")


def test_the_head_of_a_request_that_comes_early_has_a_time(service, monkeypatch):
    monkeypatch.setattr(connections, "HEAD", 0.5)
    with served(service) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\nHo")
        assert all_of(one).count(b"HTTP/1.1 200") == 1


def test_requests_that_come_early_are_answered(service, monkeypatch):
    """Also if they are more than is held of them, and answers take no long time."""
    monkeypatch.setattr(connections, "HELD", 1024)
    asked = b"GET /health HTTP/1.1\r\nHost: a\r\n%s\r\n"
    count = 6 * connections.PIECE // len(asked)
    with served(service) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(asked % b"" * count + asked % b"Connection: close\r\n")
        assert all_of(one).count(b"HTTP/1.1 200") == count + 1


def test_as_many_connections_as_the_system_allows(monkeypatch, caplog):
    limit = (256, 512)
    monkeypatch.setattr(connections.resource, "getrlimit", lambda kind: limit)
    changed = []
    monkeypatch.setattr(connections.resource, "setrlimit", lambda kind, new: changed.append(new))
    assert connections.room_for(100) == 100
    assert changed == []
    assert connections.room_for(300) == 300
    assert changed == [(428, 512)]
    assert connections.room_for(1000) == 512 - connections.OTHER_FILES
    assert changed[-1] == (512, 512)
    assert "--limits.connections 1000: the system allows 512 open files" in caplog.text


@pytest.mark.parametrize("more", [b"", b"G", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"G" * 200_000])
def test_a_client_that_has_gone_leaves_its_place_at_once(service, monkeypatch, more):
    """Also if it has sent more meanwhile, such as the next request."""
    monkeypatch.setattr(connections, "HOLDING", 0.1)
    released = threading.Event()
    monkeypatch.setattr(type(service), "submit", lambda *arguments: released.wait(60))
    body = json.dumps({"text": "cat"}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % len(body)
    limits = Limits(seconds=20)
    with served(service, limits) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def wait_for(count):
            while f"transformer_open_requests {count}.0" not in client.get("/metrics").text:
                time.sleep(0.01)

        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for one in waiting:
            one.sendall(head + b"Content-Type: application/json\r\n\r\n" + body)
        wait_for(20)
        for one in waiting:
            one.sendall(more)
        client.get("/health")  # while more arrives
        for one in waiting:
            one.close()
        wait_for(0)  # while all threads that prepare searches are busy
        released.set()
        counted = 'transformer_requests_total{endpoint="/translate",status="499"} 20.0'
        assert counted in client.get("/metrics").text


def test_what_has_arrived_before_a_stop_is_answered(service, monkeypatch):
    """Also if the server was busy and has not accepted the connections."""
    arrived = list[socket.socket]()

    async def stop(server, counter):
        address = server.servers[0].sockets[0].getsockname()
        for _ in range(2 * connections.ACCEPTED):
            arrived.append(socket.create_connection(address))
            arrived[-1].sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        return True

    monkeypatch.setattr(connections.Server, "on_tick", stop)
    with served(service):
        pass
    for one in arrived:
        with one:
            assert all_of(one).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begin", [b"POST /translate", b"GET /health", b"GET /", b"GET /nothing%0a"])
def test_two_lengths_of_a_body_are_refused(service, begin):
    """And the connection is closed: a proxy may have read another one, and what follows was a stranger's."""
    with served(service) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        lengths = b"Content-Length: 3\r\nTransfer-Encoding: chunked"
        after = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"  # at once, or it may meet a closed connection
        one.sendall(begin + b" HTTP/1.1\r\nHost: a\r\n" + lengths + b"\r\n\r\n0\r\n\r\n" + after)
        answer = all_of(one)
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1


def test_little_is_read_of_a_connection_at_once(service, monkeypatch):
    """Short chunks take long to read."""
    sizes = []
    received = connections.Connection.data_received
    monkeypatch.setattr(
        connections.Connection, "data_received", lambda *read: sizes.append(len(read[1])) or received(*read)
    )
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served(service) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(head + b"1\r\n,\r\n" * 10_000 + b"0\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 422")
    assert sum(sizes) > 3 * connections.PIECE
    assert max(sizes) == connections.PIECE
    shortest = len(b"1\r\n,\r\n")  # as long as the shortest frame of a WebSocket
    assert connections.PIECE / shortest < 700  # which take 10 ms


@pytest.mark.parametrize(("unread", "is_left"), [(0, False), (2**20, False), (2**20 + 1, True)])
def test_who_sends_and_does_not_read_is_left(monkeypatch, unread, is_left):
    """Such as a client that sends pings to /listen."""
    read = []
    monkeypatch.setattr(
        connections.WebSocketsSansIOProtocol, "data_received", lambda self, data: read.append(data)
    )
    socket_connection = object.__new__(connections.SocketConnection)
    socket_connection.conn = Mock(handshake_exc=None)
    transport = socket_connection.transport = Mock()
    transport.get_write_buffer_size.return_value = unread
    socket_connection.data_received(b"ping")
    assert (transport.abort.called, read) == (is_left, [] if is_left else [b"ping"])


def test_who_asks_and_does_not_read_is_left(service, monkeypatch):
    """Also if it asks for what is always answered: it would keep its connection for ever."""
    monkeypatch.setattr(connections, "READING", 0.1)
    with served(service) as port, contextlib.ExitStack() as stack:
        for path in (b"/", b"/openapi.json"):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.connect(("127.0.0.1", port))
            with contextlib.suppress(TimeoutError, ConnectionError):
                one.settimeout(0.5)
                while True:
                    one.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path * 1000)
            left = select.poll()
            left.register(one, select.POLLHUP)
            assert left.poll(20_000), path


def test_who_reads_slowly_is_not(monkeypatch):
    connection = object.__new__(connections.Connection)
    transport, loop, connection.flow = Mock(), Mock(), Mock()
    connection.transport, connection.loop, connection.scope = transport, loop, {"state": {gate.KNOWN: True}}
    transport.get_write_buffer_size.return_value = 3
    connection.pause_writing()
    for unread in 2, 1, 1:
        assert not transport.abort.called
        transport.get_write_buffer_size.return_value = unread
        _, again, before = loop.call_later.call_args.args
        again(before)
    assert transport.abort.called
    connection.connections, connection.cycle = set(), Mock(response_complete=False)
    assert connection.can_give_way  # while it has not read all
    connection.resume_writing()
    assert loop.call_later.return_value.cancel.called
    assert not connection.can_give_way
