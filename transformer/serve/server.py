"""Runs the application until a signal, and then until what was begun is answered; counts and times
connections."""

import asyncio
import contextlib
import gc
import itertools
import json
import logging
import math
import os
import re
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from operator import attrgetter
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response

from transformer.data.signals.waveforms import quiet_errors
from transformer.runtime.console import ProgressReporter, SteadyConsole
from transformer.runtime.errors import UserError, counted
from transformer.runtime.machine import release_memory
from transformer.serve.app import server_app
from transformer.serve.gate import EARLY, IS_GONE, KNOWN, UNCOUNTED, Origins, Turns, hosts_of, is_probe
from transformer.serve.listening import LONGEST_MESSAGE
from transformer.serve.metrics import Metrics, Readiness
from transformer.serve.refusals import (
    SAFE,
    UNAVAILABLE,
    App,
    Message,
    Receive,
    Refusal,
    Send,
    later,
    with_safe_headers,
)
from transformer.serve.services.limits import Limits
from transformer.serve.services.service import Service

# Connections of a server: how many there may be, and the time for the head of a request. A client that
# connects and sends nothing, or a line of a head now and then, takes no room from the others.


log = logging.getLogger("transformer")

HEAD = 10.0
"""Seconds in which the head of a request must arrive."""
HELD, HOLDING = 64 * 1024, 1.0
"""Bytes that are held of a client's next requests while one is answered. Beyond them it waits so many
seconds, and then is read on, since only who is read is noticed to leave: that answer is its last."""
OTHER_FILES = 128
"""Files that a server has open besides its connections."""
PIECE, LARGE = 4 * 1024, 256 * 1024
"""Bytes that are read of a connection before others have their turn: a body may be many short chunks, each of
which takes time. The second of a client with the token, which may wait for pieces of others."""
ACCEPTED = 32
"""Connections that are accepted before others have their turn, and before any gives way to them: each has an
open file."""
BACKLOG = 2048
"""Connections that wait in the system until they are accepted."""
LOGGED = 60.0
"""Seconds between two lines of the log about closed connections."""


MOST_UNREAD = 1024 * 1024
"""Bytes that a client may leave unread while it sends more, such as answers to its pings."""
BLANK, MOST_LINES = re.compile(rb"\n\r?\n"), 128
"""The end of the head of a request, and how many lines it may have before."""
FRAGMENTS = 1024
"""Of a message over a WebSocket. They are stored until it is whole, also empty ones, and joined at once."""
LEFT = getattr(select, "POLLRDHUP", 0)
"""What the system tells of a client that has left, besides errors."""
READING = 30.0
"""Seconds in which a client must read some of what is sent."""


class Read(asyncio.Protocol):
    """A connection whose client is left if it does not read what is sent, also if it is being closed: no
    answer would ever be complete, and it would keep its room from others."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    connections: set[Any]
    turns: Turns
    since = 0.0
    """When it began to wait for the client."""
    scope: Any = None
    _reading: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return False

    @property
    def is_known(self) -> bool:
        """Whether a request is being answered whose client has the server's token."""
        return not self.is_idle and KNOWN in (self.scope or {}).get("state", ())

    @property
    def can_give_way(self) -> bool:
        """Whether it may be closed when another one needs the room: it waits for the client, or for nothing
        that a client with the token or a probe asked for."""
        if self._reading is not None:
            return True
        return not self.is_known and (self.is_idle or not self.scope or not is_probe(self.scope))

    def give_way(self) -> None:
        """Closes it, which takes another turn of the loop. Its room is free at once."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def is_paused(self) -> bool:
        """Whether it is not read, since what has arrived waits for the application."""
        raise NotImplementedError

    def is_gone(self) -> bool:
        """Whether the connection is closed, which it is if its client has left, also while it is not read."""
        if not self.transport.is_closing():
            state = select.poll()
            state.register(self.transport.get_extra_info("socket"), LEFT)
            if state.poll(0):
                self.transport.abort()
        return self.transport.is_closing()

    def read_in_turn(self) -> None:
        """Lets others have their turn before more is read of a client that has not shown the token, as far as
        is known when its request has begun."""
        if not (self.transport.is_closing() or self.is_known):
            self.transport.pause_reading()
            self.loop.call_soon(self._wait_for_turn)

    def _wait_for_turn(self) -> None:
        if self.is_known:
            self._read_again()
        else:
            self.turns.add(self._read_again, self.is_gone)

    def _read_again(self) -> None:
        if not (self.is_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to notice what is not read at once."""
        self.since = self.loop.time()
        cast(asyncio.Transport, transport).set_write_buffer_limits(0)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """Waits for the client, since it has not read all."""
        super().pause_writing()
        self.since = self.loop.time()
        self._wait_for_reading()

    def resume_writing(self) -> None:
        """The client has read all."""
        self._stop_reading()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        self._stop_reading()
        super().connection_lost(exc)

    def _wait_for_reading(self, before: float = math.inf) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self.transport.abort()
        elif unread:
            self._reading = self.loop.call_later(READING, self._wait_for_reading, unread)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


INCOMPLETE = "ASGI callable returned without completing response."
"""What uvicorn says of an answer whose time is over, before its client has read all."""
NO_TEXT = "Invalid UTF-8 sequence received from client."
"""What it says of a message over a WebSocket."""


def is_ours(record: logging.LogRecord) -> bool:
    """Whether a message of uvicorn is about the server. A text that is not UTF-8 closes its connection, as an
    answer that takes too long does, and each would write to the log, so that a client could fill it."""
    return record.msg not in (INCOMPLETE, NO_TEXT)


logging.getLogger("uvicorn.error").addFilter(is_ours)

FEW, PERIOD = 10, 60.0
"""Lines of the log that the same line of code writes in so many seconds, of each kind of error."""


@contextlib.contextmanager
def few_lines() -> Iterator[None]:
    """Until the end of the context clients cannot fill the log: lines beyond `FEW` are only counted."""
    written: dict[tuple[str, int, type[BaseException] | None], tuple[float, int]] = {}

    def is_few(record: logging.LogRecord) -> bool:
        code = record.pathname, record.lineno, record.exc_info[0] if record.exc_info else None
        start, count = written.get(code, (record.created, 0))
        if not 0 <= record.created - start < PERIOD:  # before it: the clock was set back
            if count > FEW:
                more = f"{record.getMessage()} (and {count - FEW:,} more such lines)"
                record.msg, record.args = more, ()
            start, count = record.created, 0
        written[code] = start, count + 1
        return count < FEW

    loggers = log, logging.getLogger("uvicorn.error")
    for logger in loggers:
        logger.addFilter(is_few)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_few)


class SocketConnection(Read, WebSocketsSansIOProtocol):
    """A WebSocket whose client is left if it sends and does not read: memory would fill with answers. What is
    refused gets a sentence as JSON."""

    def __init__(self, config: uvicorn.Config, server_state: "State", *more: Any, **options: Any) -> None:
        super().__init__(config, server_state, *more, **options)
        self.turns = server_state.turns
        reject = self.conn.reject

        def reject_as_json(status: Any, text: str) -> Response:
            error = " ".join(text.split()) or "nothing listens at this address"
            response = reject(status, json.dumps({"error": error}))
            del response.headers["Content-Type"]
            for name, value in (b"Content-Type", b"application/json"), *SAFE:
                response.headers[name.decode()] = value.decode()
            return response

        self.conn.reject = reject_as_json  # type: ignore[method-assign]

    @property
    def is_idle(self) -> bool:
        """Whether it is refused or ended, while its client does not close it."""
        return bool(self.close_sent)

    @property
    def is_paused(self) -> bool:
        """As of all connections."""
        return bool(self.read_paused)

    async def send(self, message: ASGISendEvent) -> None:
        """Sends a message of the application."""
        await super().send(message)
        if self.close_sent:  # also a refusal, of which uvicorn would write an error to the log
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        """Reads a part of a message."""
        if self.transport.get_write_buffer_size() > MOST_UNREAD:
            self.transport.abort()
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(malformed(h11.Connection(h11.SERVER)))
            self.transport.close()
        self.read_in_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends it, also if it has given way."""
        self.connections.add(self)  # uvicorn removes it, and fails if it is not there
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        """Stores a fragment of a message, unless it has too many."""
        super().handle_cont(event)
        if len(self.frames) > FRAGMENTS and not self.close_sent:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has more than {FRAGMENTS:,} fragments")
            self.handle_parser_exception()


MALFORMED = Refusal(400, "the request is not HTTP as it should be, or its head is too long")


def malformed(conn: h11.Connection) -> bytes:
    """The answer `MALFORMED`, as a connection sends it."""
    answer = MALFORMED.response
    headers = [*answer.raw_headers, *SAFE, (b"connection", b"close")]
    head = h11.Response(status_code=MALFORMED.status, headers=headers, reason=b"Bad Request")
    events = head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()
    return b"".join(conn.send(event) or b"" for event in events)


FULL = later(UNAVAILABLE, "as many connections are open as may be: try again later")


def unless_full(app: App) -> App:
    """An application that refuses all but what is always answered, since there are too many connections."""
    refuse = with_safe_headers(FULL.response)

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        await (app if scope["path"] in UNCOUNTED else refuse)(scope, receive, send)

    return answer


class Heads(h11.Connection):
    """Reads requests, and no head of very many lines, each of which takes time."""

    def next_event(self) -> Any:
        """As that of `h11.Connection`."""
        if self.their_state is h11.IDLE:
            arrived = self.trailing_data[0]
            blank = BLANK.search(arrived)
            if arrived.count(b"\n", 0, blank.start() + 1 if blank else len(arrived)) > MOST_LINES:
                raise h11.RemoteProtocolError("too many lines")
        return super().next_event()


class Connection(Read, H11Protocol):
    """A connection that is closed if the head of a request takes too long. If there are as many as there may
    be (`limit_concurrency` of the server's config), the one that has waited longest for its client gives way
    to a new one; last those whose clients have the token. Refusals are JSON, as those of the application."""

    _head: asyncio.TimerHandle | None = None
    _logged = -LOGGED
    """When the log last had a line about closed connections; of the class, since it is about all of them."""

    def __init__(self, config: uvicorn.Config, server_state: "State", *more: Any, **options: Any) -> None:
        super().__init__(config, server_state, *more, **options)
        self.turns = server_state.turns
        self.conn = Heads(h11.SERVER, cast(int, config.h11_max_incomplete_event_size))
        self._most, self.limit_concurrency = cast(int, config.limit_concurrency), None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for a request, after making room."""
        if len(self.connections) >= self._most:
            self._make_room()
        transport.max_size = PIECE  # type: ignore[attr-defined]
        self.app_state = {**self.app_state, IS_GONE: self.is_gone}
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request, unless it comes after the last one that is answered."""
        if self._is_answering and not self.cycle.keep_alive:
            return
        if self.is_idle and self._head is None:
            self._wait_for_head()
        is_full = len(self.connections) > self._most and not self._make_room()
        self.app = unless_full(self.config.loaded_app) if is_full else self.config.loaded_app
        super().data_received(data)
        is_upgraded = self.transport.get_protocol() is not self  # a WebSocket from here on
        if is_upgraded or not self.is_idle:
            self._stop_waiting()
        if not is_upgraded and self.cycle is not None and self.cycle.more_body:
            has_token = self.is_known and self.scope["state"][KNOWN]
            self.transport.max_size = LARGE if has_token else PIECE  # type: ignore[attr-defined]
            self.read_in_turn()

    def handle_events(self) -> None:
        """Begins what has arrived, and reads on while it is answered."""
        super().handle_events()
        if self.transport.get_protocol() is not self:
            return
        held = len(self.conn.trailing_data[0])
        if self._is_answering and held <= HELD:
            self.flow.resume_reading()
        elif self._is_answering:
            self.loop.call_later(HOLDING, self._read_on, self.cycle)
        elif held and self.is_idle and self._head is None:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        """Begins the next request, if it has arrived already."""
        state = self.app_state
        self.app_state = {**state, EARLY: True}
        super().on_response_complete()
        self.app_state = state

    def _read_on(self, cycle: RequestResponseCycle) -> None:
        if cycle is self.cycle and not self.is_idle:
            cycle.keep_alive = False
            self.flow.resume_reading()

    @property
    def _is_answering(self) -> bool:
        """Whether what arrives belongs to later requests."""
        return not self.is_idle and not self.cycle.more_body

    def send_400_response(self, msg: str) -> None:
        """Refuses what cannot be read, unless an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(malformed(self.conn))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """As of all connections."""
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def is_paused(self) -> bool:
        """As of all connections."""
        return self.flow.read_paused

    def _make_room(self) -> bool:
        """Lets others give way if there are too many, with this one. Returns whether there is room then."""
        others = cast(set[Read], self.connections) - {self}
        missing = len(others) + 1 - self._most
        if missing <= 0:
            return True
        oldest_first = sorted(others, key=attrgetter("since"))
        strangers, known = itertools.tee(one for one in oldest_first if one.can_give_way)
        able = itertools.chain(
            (one for one in strangers if not one.is_known), (one for one in known if one.is_known)
        )
        giving_way = list(itertools.islice(able, missing))
        if giving_way and self.loop.time() - Connection._logged >= LOGGED:
            Connection._logged = self.loop.time()
            log.warning(
                "%d connections are open, as many as may: idle ones are closed (--limits.connections)",
                len(self.connections),
            )
        for one in giving_way:
            one.give_way()
        return len(giving_way) == missing

    def _wait_for_head(self) -> None:
        self.since = self.loop.time()
        self._head = self.loop.call_later(HEAD, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def room_for(connections: int) -> int:
    """How many connections there can be. Raises the limit of open files as far as the system allows.

    Args:
      connections: how many are needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            room = max(soft - OTHER_FILES, soft // 2)
            log.warning(
                "--limits.connections %d: the system allows %d open files, which is room for %d connections",
                *(connections, soft, room),
            )
            return room
    return connections


IDLE = 75
"""Seconds for which a connection without requests stays open: longer than clients and proxies usually keep it
themselves, so that none sends a request while it is closed here."""


LEAVING = 0.5
"""Seconds before the end of a server when it leaves clients that have not read all."""
ARRIVING = 16
"""Turns of the loop in which it accepts and reads what has arrived before: while it was busy, for example."""
BEAT = 0.25
"""Seconds between two looks at how many programs are compiled."""
LINES = 10.0
"""Seconds between lines about it."""


HANGUP = getattr(signal, "SIGHUP", None)
"""The signal of a terminal that is closed, where there is one. It often comes twice."""


class State(ServerState):
    """What the connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns(1)
        """Of clients that have not shown the token, to send more."""


class Server(uvicorn.Server):
    """A server that ends without an error if it is asked to end. It begins no request then, and answers those
    that it has begun. A second signal ends it at once."""

    left = 0
    """Connections that were closed before all was answered and read."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = State()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As that of `uvicorn.Server`, which lets as many wait as it accepts at once."""
        await super().startup(sockets)
        for listening in sockets or ():
            if not self.should_exit:
                listening.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As that of `uvicorn.Server`; connections that take too long are closed, not cancelled, which would
        write a traceback for each."""
        assert self.config.timeout_graceful_shutdown
        for _ in range(ARRIVING):
            await asyncio.sleep(0)
        time_left = self.config.timeout_graceful_shutdown - LEAVING
        leaving = asyncio.get_running_loop().call_later(time_left, self._leave)
        await super().shutdown(sockets)
        leaving.cancel()

    def _leave(self) -> None:
        for connection in list(self.server_state.connections):
            cast(Read, connection).transport.abort()
            self.left += 1

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As that of `uvicorn.Server`, without raising signals again at the end."""
        before: dict[int, Any] = {}
        try:
            for number in (int(signal.SIGTERM), int(signal.SIGINT)):
                before[number] = signal.signal(number, self.handle_exit)
            if HANGUP and signal.getsignal(HANGUP) is signal.SIG_DFL:  # not under nohup
                before[HANGUP] = signal.signal(HANGUP, self.handle_exit)
        except ValueError:  # not the main thread, as in tests
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server, and the process at once if it was asked before."""
        if self.should_exit and sig != HANGUP:
            with contextlib.suppress(OSError):  # the terminal may be closed
                print("Stopped: what was begun is lost", flush=True)
            os._exit(128 + sig)  # threads may be compiling
        self.should_exit = True


@contextlib.contextmanager
def start_shown(readiness: Readiness) -> Iterator[None]:
    """Shows in another thread how many programs are compiled, until all are or this context ends: before the
    server is ready as a bar on a terminal, otherwise in a line every ten seconds."""
    is_over = threading.Event()
    telling = threading.Thread(target=_tell, args=(readiness, is_over), name="tell", daemon=True)
    telling.start()
    try:
        yield
    finally:
        is_over.set()
        telling.join()


def _tell(readiness: Readiness, is_over: threading.Event) -> None:
    start = last_line = time.monotonic()
    watch = ProgressReporter(SteadyConsole(highlight=False, soft_wrap=True))
    while not (readiness.needed or readiness.is_ready or is_over.wait(BEAT)):
        pass
    with watch.training(0, readiness.needed, "preparing"):
        while not (readiness.is_ready or is_over.wait(BEAT)):
            watch.advance(readiness.done, readiness.seconds_left)
            if not watch.console.is_terminal and time.monotonic() - last_line > LINES:
                last_line = time.monotonic()
                print(f"Compiled {readiness.so_far}", flush=True)
        watch.advance(readiness.done, math.inf)
    if readiness.is_ready:
        print(
            f"Ready after {time.monotonic() - start:.0f} s with {readiness.needed} of {readiness.count} "
            "programs; the others are compiled while it answers",
            flush=True,
        )
        release_memory()
    gc.freeze()  # what lives as long as the server: to look through it takes tenths of a second
    while not (readiness.is_complete or is_over.wait(BEAT)):
        pass
    if readiness.is_complete:
        print(f"All programs are compiled after {time.monotonic() - start:.0f} s", flush=True)
        release_memory()  # of compilers
    gc.freeze()


def serve(
    services: Sequence[Service],
    limits: Limits,
    token: str,
    host: str,
    port: int,
    allowed_hosts: Collection[str] = (),
    metrics_port: int | None = None,
) -> None:
    """Serves runs until SIGTERM or SIGINT.

    Args:
      services: of the runs.
      limits: of requests.
      token: that requests must bring; empty: none.
      host: the address to listen at.
      port: 0: any free one.
      allowed_hosts: names of the server that are answered besides those of `hosts_of`.
      metrics_port: serves the metrics without a token too. None: no port does.

    Raises:
      UserError: the address cannot be listened at, or the programs cannot be compiled.
    """
    quiet_errors.separate()
    listening = bound(host, port)
    app = server_app(
        services, limits, token, hosts_of(host, listening.getsockname()[0], token, allowed_hosts)
    )
    with few_lines(), listening, measured(app.state.metrics, host, metrics_port, allowed_hosts):
        names = ", ".join(service.name for service in services)
        print(f"Serving {names} at {url_of(host, listening)}", flush=True)
        with start_shown(app.state.readiness):
            server = Server(config_of(app, limits))
            server.run([listening])
    if app.state.readiness.error:
        raise UserError(f"the programs could not be compiled: {app.state.readiness.error}")
    lost = f"{counted(server.left, 'connection')} took more than {limits.seconds:g} s" * bool(server.left)
    print(f"Stopped: {lost or 'all that was begun is answered'}", flush=True)


MEASURING = Limits(connections=16, seconds=1.0)
"""Of the port of the metrics."""


@contextlib.contextmanager
def measured(
    metrics: Metrics, host: str, port: int | None, allowed_hosts: Collection[str] = ()
) -> Iterator[int | None]:
    """Serves metrics at a port of their own, if one is given, and yields it. It has no token, so the names
    that it answers to are those of a server without one.

    Raises:
      UserError: it cannot be listened at.
    """
    if port is None:
        yield None
        return
    listening = bound(host, port, "--metrics-port")
    address = listening.getsockname()
    app = Origins(metrics.app, hosts_of(host, address[0], "", allowed_hosts))
    server = Server(config_of(app, MEASURING))
    thread = threading.Thread(target=server.run, args=([listening],), name="metrics")
    with listening:
        thread.start()
        print(f"Metrics at {url_of(host, listening)}/metrics", flush=True)
        try:
            yield address[1]
        finally:
            server.should_exit = True
            thread.join()


def config_of(app: App, limits: Limits) -> uvicorn.Config:
    """How an application is served."""
    return uvicorn.Config(
        with_safe_headers(app),
        http=Connection,
        ws=SocketConnection,
        loop="asyncio",  # whose transports read as much at once as they are told
        limit_concurrency=room_for(limits.connections),
        backlog=ACCEPTED,
        log_level="error",  # warnings are about clients, who could fill the log
        access_log=False,
        lifespan="on",
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        h11_max_incomplete_event_size=64 * 1024,
        ws_max_size=LONGEST_MESSAGE,
        ws_ping_interval=None,  # while sound waits to be heard, nobody reads answers to pings
        server_header=False,
    )


def url_of(host: str, listening: socket.socket) -> str:
    """The address of a server, as a browser takes it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def bound(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens at an address. Raises UserError with the port's option if there can be none."""
    if not host:
        raise UserError("--host is empty: give an address, such as 127.0.0.1; 0.0.0.0: all of this machine")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, ValueError) as error:  # the second: no name, or a null character in it
        reason = getattr(error, "strerror", "") or "no name or address of this machine"
        raise UserError(f"--host {host} {option} {port}: {reason}; choose another one") from error
