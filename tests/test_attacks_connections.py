"""Attacks by connections: too many, too slow, without a request, and by clients that do not read."""

import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from unittest.mock import Mock

import httpx
import pytest
from served import all_of, served, translations
from uvicorn.protocols.utils import ClientDisconnected

from transformer.serve import gate, listening
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


OPEN = {
    "is_closing.return_value": False,
    "get_extra_info.return_value": None,
    "get_write_buffer_size.return_value": 0,
}
CLOSING = {"is_closing.return_value": True, "get_write_buffer_size.return_value": 9}


def opened(kind, config, shared):
    """A connection of a kind, and its transport, which is none."""
    transport = Mock(**OPEN)
    one = kind(config, shared, {})
    transport.get_protocol.return_value = one
    one.connection_made(transport)
    return one, transport


@pytest.mark.parametrize(
    ("kind", "limits", "state"),
    [
        (connections.Connection, Limits(connections=8), {}),
        (connections.Connection, Limits(connections=8), CLOSING),
        (connections.Connection, connections.MEASURING, {}),
        (connections.SocketConnection, Limits(connections=8), {}),
        (connections.SocketConnection, Limits(connections=8), CLOSING),
    ],
)
@pytest.mark.parametrize("is_upgraded", [False, True])
def test_who_gives_way_leaves_its_room_in_the_same_turn(kind, limits, state, is_upgraded):
    """Or those would be refused whose requests arrive before it is closed, also with the token."""
    config, shared = connections.config_of(Mock(), limits), connections.State()
    config.load()

    async def in_one_turn():
        strangers = [opened(kind, config, shared) for _ in range(limits.connections)]
        for one, transport in strangers:
            if is_upgraded and kind is connections.SocketConnection:
                one.data_received(UPGRADE % b"")
            transport.configure_mock(**state)
        for count in range(1, limits.connections + 1):
            new, _ = opened(connections.Connection, config, shared)
            assert len(shared.connections) == limits.connections
            assert [transport.abort.called for _, transport in strangers].count(True) == count
            new.data_received(b"GET /models HTTP/1.1\r\nHost: a\r\n\r\n")
            assert new.app is config.loaded_app
        for one, _ in strangers:
            one.connection_lost(None)
        assert len(shared.connections) == limits.connections

    asyncio.run(in_one_turn())


UPGRADE = (
    b"GET /listen HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)


def test_a_handshake_that_is_refused_writes_nothing_to_the_log(service, caplog):
    with served(service) as port:
        for more in b"", b"Origin: http://other.example\r\n":
            with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
                one.sendall(UPGRADE % more)
                assert all_of(one).startswith(b"HTTP/1.1 403")
    assert caplog.records == []


def test_a_client_that_has_gone_before_its_handshake_writes_nothing_to_the_log(caplog):
    gone = Mock(**{"accept.side_effect": ClientDisconnected})
    asyncio.run(listening.Listening([], None, Limits(), "secret", None).serve(gone))
    assert caplog.records == []


def test_few_strangers_continue_at_a_turn_and_who_has_the_token_does_not_wait():
    """So that many requests of strangers, also in one connection, do not make every turn long."""
    begun = []

    async def app(scope, receive, send):
        begun.append(scope["path"])

    def asked(path, token):
        headers = [(b"authorization", b"Bearer " + token)]
        return gated({"type": "http", "path": path, "headers": headers}, None, None)

    async def ask():
        strangers = [asyncio.ensure_future(asked(f"/{number}", b"wrong")) for number in range(100)]
        await asyncio.sleep(0)
        while begun != order:
            before = len(begun)
            known = asyncio.ensure_future(asked("/known", b"secret"))
            await asyncio.sleep(0)
            assert begun[before:].count("/known") == 1
            assert known.done()
            begun.remove("/known")
            assert len(begun) - before <= gate.AT_ONCE
        await asyncio.gather(*strangers)

    gated, order = gate.InTurn(app, "secret"), [f"/{number}" for number in range(100)]
    asyncio.run(ask())


def test_requests_that_are_sent_early_wait_for_those_that_are_not(service, monkeypatch):
    """So that one connection cannot ask for a thousand pages before others get their first."""
    early, waiting = [], gate.InTurn.__call__

    async def note(gated, scope, receive, send):
        if scope["type"] == "http":
            early.append(gate.EARLY in scope["state"])
        await waiting(gated, scope, receive, send)

    monkeypatch.setattr(gate.InTurn, "__call__", note)
    asked = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    with served(service) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(asked * 3)
        while early != [False, True, True]:
            time.sleep(0.01)
        time.sleep(0.1)
        one.sendall(asked)
        while len(early) < 4:
            time.sleep(0.01)
        assert early == [False, True, True, False]

    async def app(scope, receive, send):
        begun.append(scope["path"])

    async def ask():
        for is_early in [True] * 20 + [False] * 20:
            state = {gate.EARLY: True} if is_early else {}
            scope = {"type": "http", "path": is_early, "state": state}
            tasks.append(asyncio.ensure_future(gated(scope, None, None)))
        await asyncio.gather(*tasks)

    begun, tasks, gated = [], [], gate.InTurn(app, "")
    asyncio.run(ask())
    assert begun[:25].count(False) == 20


@pytest.mark.parametrize("token", ["", "secret"])
def test_probes_do_not_wait_for_a_turn(token):
    """Nor does anyone at a server without a token, unless a request is sent early."""

    async def app(scope, receive, send):
        begun.append(scope["path"])

    async def ask():
        for path, state in requests:
            scope = {"type": "http", "path": path, "headers": [], "state": dict.fromkeys(state, True)}
            tasks.append(asyncio.ensure_future(gated(scope, None, None)))
        await asyncio.sleep(0)
        assert begun == ["/health", "/ready"] if token else ["/models"] * 50 + ["/health", "/ready"]
        await asyncio.gather(*tasks)
        assert len(begun) == len(requests)

    requests = [("/models", [])] * 50 + [("/health", [gate.EARLY])] * 50 + [("/health", []), ("/ready", [])]
    begun, tasks, gated = [], [], gate.InTurn(app, token)
    asyncio.run(ask())


def test_probes_do_not_give_way():
    config, shared = connections.config_of(Mock(), Limits(connections=8)), connections.State()
    config.load()

    async def in_one_turn():
        paths = b"/health", b"/ready", b"/models", b"/", b"/health"
        asked = [opened(connections.Connection, config, shared) for _ in paths]
        for (one, _), path in zip(asked, paths, strict=True):
            one.data_received(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
        asked[-1][0].scope["state"][gate.EARLY] = True
        for _ in range(20):
            opened(connections.Connection, config, shared)
        closed = [transport.abort.called for _, transport in asked]
        assert closed == [False, False, True, True, True]

    asyncio.run(in_one_turn())


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_who_has_gone_takes_no_turn(kind):
    async def app(scope, receive, send):
        begun.append(scope["path"])

    async def receive():
        return {"type": f"{kind}.disconnect"}

    async def ask(count):
        for number in range(count):
            scope = {"type": kind, "path": number, "headers": []}
            scope["state"] = {gate.IS_GONE: lambda number=number: number < count - 1}
            tasks.append(asyncio.ensure_future(gated(scope, receive, None)))
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert begun == [count - 1]

    begun, tasks, gated = [], [], gate.InTurn(app, "secret")
    asyncio.run(ask(100))

    async def take_turns():
        turns, taken = gate.Turns(1), []
        for is_gone in [True] * 100 + [False, True, False]:
            turns.add(lambda is_gone=is_gone: taken.append(is_gone), lambda is_gone=is_gone: is_gone)
        await asyncio.sleep(0)
        assert taken == [True] * 100 + [False]
        await asyncio.sleep(0)
        assert taken[101:] == [True, False]

    asyncio.run(take_turns())


@pytest.mark.parametrize("how", ["stays", "resets", "closes"])
def test_a_client_is_noticed_to_leave_while_it_is_not_read(how):
    if how == "closes" and not connections.LEFT:
        pytest.skip("the system does not tell")
    config = connections.config_of(Mock(), Limits())
    config.load()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        here, _ = listening.accept()
    client.sendall(b"x" * 1000)
    if how == "resets":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how != "stays":
        client.close()

    async def notice():
        one, transport = opened(connections.Connection, config, connections.State())
        transport.is_closing.side_effect = lambda: transport.abort.called
        transport.get_extra_info.return_value = here
        select.select([here], [], [], 10)
        assert one.app_state[gate.IS_GONE]() is (how != "stays")

    with here, client:
        asyncio.run(notice())


def test_a_request_that_ends_before_its_turn_harms_no_other():
    async def app(scope, receive, send):
        scope["done"].append(True)

    async def ask():
        gated, done = gate.InTurn(app, "secret"), [[], []]
        first, last = (
            asyncio.ensure_future(
                gated({"type": "http", "path": "/", "headers": [], "done": one}, None, None)
            )
            for one in done
        )
        await asyncio.sleep(0)
        first.cancel()
        await last
        assert done == [[], [True]]

    asyncio.run(ask())


@pytest.mark.parametrize("begin", [b"", b"1\r\n,\r\n"])
def test_bodies_of_strangers_are_read_one_at_a_turn_and_others_do_not_wait_for_them(begin, monkeypatch):
    """A piece of a body may be many short chunks. Who has the token is read in large pieces, also if a part
    of its body came with its head; at a server without a token nobody."""

    async def app(scope, receive, send):
        await gate.disconnected(receive)

    monkeypatch.setattr(connections.Connection, "is_gone", lambda one: False)
    config, shared = connections.config_of(app, Limits()), connections.State()
    config.load()
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

    def sent(state):
        one, transport = opened(connections.Connection, config, shared)
        one.data_received(head + begin)
        one.scope["state"].update(state)
        return one, transport

    async def send():
        strangers = [sent({}) for _ in range(20)]
        known = [sent({gate.KNOWN: has_token}) for has_token in (True, False)]
        read = [transport.resume_reading for _, transport in strangers]
        for turn in range(1, 6):
            await asyncio.sleep(0)
            assert [one.called for one in read].count(True) < turn
            assert all(transport.resume_reading.called for _, transport in known)
        assert read[0].called
        sizes = []
        for one, transport in (strangers[0], *known):
            transport.pause_reading.reset_mock()
            one.data_received(b"1\r\n,\r\n")
            sizes.append((transport.max_size, transport.pause_reading.called))
        assert sizes == [(connections.PIECE, True), (connections.LARGE, False), (connections.PIECE, False)]

    asyncio.run(send())


def test_a_head_of_many_lines_is_refused_before_it_is_read(service):
    """Each takes time, also of a request that comes early, or after one that was answered before its body
    had arrived."""
    head = b"GET /health HTTP/1.1\r\nHost: a\r\n%s\r\n"
    most = connections.MOST_LINES - 2  # besides those above
    before = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    with served(service) as port:
        for end in b"a:\r\n", b"a:\n":
            for early in b"", head % b"":
                with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
                    one.sendall(early + head % (end * most) + head % (end * (most + 1)))
                    answer = all_of(one)
                    assert answer.count(b"HTTP/1.1 200") == 1 + bool(early)
                    assert answer.count(b"HTTP/1.1 400") == 1
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(before)
            assert one.recv(1000).startswith(b"HTTP/1.1 405")
            one.sendall(b"x" + head % (b"a:\r\n" * 2 * most))
            assert b"HTTP/1.1 400" in all_of(one)


def test_a_closed_terminal_ends_a_server_as_a_request_to_end_does(monkeypatch):
    """It often sends its signal twice; and a server that ignores it, under nohup, continues."""
    server = connections.Server(connections.config_of(Mock(), Limits()))
    monkeypatch.setattr("os._exit", lambda status: pytest.fail("it ended at once"))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server.capture_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert not server.should_exit
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with server.capture_signals():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
        assert server.should_exit
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


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
