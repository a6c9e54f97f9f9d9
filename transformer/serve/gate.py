"""What every request passes: names of the server, origins, token, limits of size, time and number."""

import asyncio
import hmac
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from transformer.runtime.errors import UserError
from transformer.runtime.files import ascii_host, brief
from transformer.serve.metrics import Metrics
from transformer.serve.refusals import (
    BUSY,
    FAILED,
    GONE,
    TOO_LARGE,
    UNAVAILABLE,
    App,
    Message,
    Receive,
    Refusal,
    Send,
    begun,
    header,
    later,
    replayed,
)
from transformer.serve.services.limits import Limits

# Which names of the server and which pages are answered. A stranger's page in somebody's browser can reach
# a server on that person's machine: by its address, or by a stranger's name that leads there (DNS
# rebinding). So a server without a token answers only its own names, and none answers pages of other
# servers.


LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of a machine that only the machine itself reaches."""
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:@/\\?#]*)(?::[0-9]*)?")
"""Of a request, in small letters: a name or an address, and a port."""
ORIGIN = re.compile(r"https?://([^/?#]+)")
FORBIDDEN = 403
OF_OTHERS = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site by which a browser says that a page of another server asks. Another port of the
same machine is the same site."""


class Origins:
    """An ASGI application around another one.

    Args:
      app: the other one.
      hosts: names of the server that are answered, without ports. None: all.
    """

    def __init__(self, app: App, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] in ("http", "websocket"):
            try:
                self._check(scope)
            except Refusal as refusal:
                await refusal.response(scope, receive, send)
                return
        if scope.get("method") == "HEAD":  # as GET; the connection leaves the body out
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)

    def _check(self, scope: Message) -> None:
        """Raises Refusal if a request is not answered."""
        if header(scope, b"transfer-encoding") and header(scope, b"content-length"):
            both = "the body has a Content-Length and a Transfer-Encoding: send one"
            raise Refusal(400, both, {"Connection": "close"})
        path = scope["path"]
        if not path.isprintable():  # a route would also match its address with a line break at the end
            raise Refusal(404, f"{path!r}: there is no such address")
        host = header(scope, b"host")
        if self.hosts is not None and name_of(host) not in self.hosts:
            raise Refusal(
                FORBIDDEN,
                f"the server is not called {brief(name_of(host))}: start it with --allow-host or a token",
            )
        origin = header(scope, b"origin")
        if origin and (not host or address_of(origin) != host.lower()):
            raise Refusal(
                FORBIDDEN, f"the page is of {brief(origin)}, and only pages of this server are answered"
            )
        is_opened = scope.get("method") == "GET" and header(scope, b"sec-fetch-mode") == "navigate"
        sites = header(scope, b"sec-fetch-site").lower()
        if not origin and not is_opened and any(site in sites for site in OF_OTHERS):
            raise Refusal(
                FORBIDDEN, "the page is of another server, and only pages of this server are answered"
            )


def hosts_of(host: str, address: str, token: str, allowed: Collection[str]) -> Collection[str] | None:
    """The names of a server that are answered; None: all.

    Args:
      host: what it is told to listen at, a name or an address.
      address: at which it listens.
      token: that requests must bring; empty: none.
      allowed: further names. If there are some, no others are answered.

    Raises:
      UserError: one of them is none.
    """
    here = (host, address) if is_loopback(address) else ()
    if not allowed and (token or not here):
        return None
    names = {name: name_of(name) or name_of(f"[{name}]") for name in (*LOOPBACK, *here, *allowed)}
    for name in allowed:
        names[name] = ascii_host(names[name]) or ascii_host(f"[{names[name]}]").strip("[]")
        if not names[name]:
            raise UserError(f"--allow-host {name}: must be a name, such as mt.example.org")
    return set(names.values())


def is_loopback(address: str) -> bool:
    """Whether only the machine itself reaches an address."""
    parsed: Any = ip_address(address.partition("%")[0])
    return bool((getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback)


def name_of(host: str) -> str:
    """The name in a Host header, without port and brackets; empty if there is none, or more than a name."""
    parts = HOST.fullmatch(host.lower())
    return parts[1].strip("[]").removesuffix(".") if parts else ""


def address_of(origin: str) -> str:
    """The host and port of the origin of a page; empty if it has none, as `null`."""
    parts = ORIGIN.fullmatch(origin.lower())
    return parts[1] if parts else ""


DISCARDED = 8  # bodies that are longer than this many allowed ones are not even read to their end
MOST_DIGITS = 20  # of a length, as h11 reads it
PROBES = ("/health", "/ready")
"""What is answered at once, whoever asks."""
OPEN = ("/", *PROBES)
"""What probes and browsers get without a token."""
UNCOUNTED = (*OPEN, "/metrics")
"""What is answered however many requests there are."""
STRANGERS = 16
"""Clients that may be heard at the same time before they have sent the token."""
STRANGER_SECONDS = 5.0
"""Time for a client to send the token."""


KNOWN = "known"
"""In the state of the scope of a request: its client has the server's token; False: the server has none."""


class Disconnected(Exception):
    """The client is gone."""


class Places:
    """A number of places, each taken while something is done.

    Args:
      most: how many there are.
      taken: what they are taken by, for the message, such as "requests are being answered".
      show: is called with the number that is taken, whenever it changes.
    """

    def __init__(self, most: int, taken: str, show: Callable[[int], object] = lambda count: None) -> None:
        self.most, self.taken, self.show, self.count = most, taken, show, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Takes a place. Raises Refusal if there is none."""
        with self.several() as take:
            take(1)
            yield

    @contextmanager
    def several(self) -> Iterator[Callable[[int], None]]:
        """What takes more places each time that it is called, or gives some back, and raises Refusal if there
        are not as many."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.count + count > self.most:
                raise later(BUSY, f"{self.count:,} {self.taken}, as many as may: try again later")
            taken += count
            self._add(count)

        try:
            yield take
        finally:
            self._add(-taken)

    def _add(self, change: int) -> None:
        self.count += change
        self.show(self.count)


AT_ONCE = 4
"""Clients without the token that continue at a turn of the loop."""
EARLY = "early"
"""In the state of the scope of a request that a client has sent before the last one was answered."""
IS_GONE = "is gone"
"""In the state of the scope of a request: a function, whether its client is."""


def is_probe(scope: Message) -> bool:
    """Whether a request neither waits nor gives way."""
    return scope["path"] in PROBES and EARLY not in scope["state"]


class Turns:
    """Lets those who wait continue in the order in which they came, a few at each turn of the event loop: a
    request of a client with the token needs some turns, and none of them may be long. Who has gone, takes no
    turn.

    Args:
      at_once: how many continue at a turn of the loop.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting = deque[tuple[Callable[[], object], Callable[[], bool]]]()

    def add(self, resume: Callable[[], object], is_gone: Callable[[], bool]) -> None:
        """Calls `resume` when it is its turn, or `is_gone` by then."""
        self._waiting.append((resume, is_gone))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        resumed, count = list[Callable[[], object]](), 0
        while self._waiting and count < self._at_once:
            resume, is_gone = self._waiting.popleft()
            resumed.append(resume)
            count += not is_gone()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        for resume in resumed:
            resume()


class InTurn:
    """An ASGI application around another one, which clients without the token reach one after the other,
    except for probes. Requests that are sent early, which may be very many, reach it one at a turn; also at a
    server without a token, where others do not wait.

    Args:
      app: the other one.
      token: that requests must bring; empty: none.
    """

    def __init__(self, app: App, token: str) -> None:
        self.app, self.token = app, token.encode()
        self.turns, self.early = Turns(AT_ONCE), Turns(1)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on, unless its client has gone while it waited."""
        state = scope.setdefault("state", {})
        if scope["type"] != "lifespan" and (turns := self._turns_of(scope)):
            turn, is_gone = asyncio.get_running_loop().create_future(), state.get(IS_GONE, bool)
            turns.add(turn.cancel, is_gone)  # which wakes who waits, also if its task has ended meanwhile
            await asyncio.wait({turn})
            if is_gone():
                await disconnected(receive)
                return
        await self.app(scope, receive, send)

    def _turns_of(self, scope: Message) -> Turns | None:
        if self.token and is_token(self.token, bearer(scope)):
            return None
        if EARLY in scope["state"]:
            return self.early
        return self.turns if self.token and not is_probe(scope) else None


class Gate:
    """An ASGI application around another one.

    Args:
      app: the other one.
      limits: of requests.
      metrics: of the server.
      token: that requests must bring; empty: none.
      hearing: paths of requests whose bodies are recordings.
      named: paths that metrics name.
      key_of: (path, body, type of its content) -> a token in the body; None: such a
        request has none there.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        metrics: Metrics,
        token: str,
        hearing: Collection[str],
        named: Collection[str],
        key_of: Callable[[str, bytes, str], str | None],
    ) -> None:
        self.app, self.limits, self.metrics, self.token = app, limits, metrics, token.encode()
        self.hearing, self.named, self.key_of = hearing, named, key_of
        self.requests = Places(limits.requests, "requests are being answered", metrics.open.set)
        self.bodies = Places(limits.bodies, "bytes of requests are stored", metrics.stored.set)
        self.strangers = list[asyncio.Timeout]()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer, path, start = Answer(send), scope["path"], time.monotonic()
        try:
            if path in OPEN:
                await self.app(scope, receive, answer)
            else:
                await self._within_time(scope, receive, answer)
        except Refusal as refusal:
            if not answer.status:
                await refusal.response(scope, receive, answer)
            answer.status = refusal.status  # of one that is cut off, too
        except Disconnected:
            answer.status = answer.status or GONE
        except Exception:
            answer.status = answer.status or FAILED
            raise
        finally:
            if path not in UNCOUNTED:
                endpoint = path if path in self.named else "other"
                self.metrics.answered(endpoint, answer.status or GONE, time.monotonic() - start)

    async def _within_time(self, scope: Message, receive: Receive, answer: "Answer") -> None:
        seconds = self.limits.seconds
        try:
            async with asyncio.timeout(seconds) as time_left:
                await self._admitted(scope, receive, answer)
        except TimeoutError:
            if not time_left.expired():
                raise
            raise later(
                UNAVAILABLE, f"the request was not answered within {seconds:g} s: try again later"
            ) from None

    async def _admitted(self, scope: Message, receive: Receive, answer: "Answer") -> None:
        """The answer to a client that has the token."""
        path, content = scope["path"], header(scope, b"content-type")
        encoding = header(scope, b"content-encoding")
        if encoding.lower() not in ("", "identity"):
            raise Refusal(
                415, f"the body has Content-Encoding {brief(encoding)}: send it as it is, not compressed"
            )
        body = None
        if not is_token(self.token, bearer(scope)):
            if self.key_of(path, b"", content) is None:
                raise unknown()
            body = await in_time(self._body(scope, receive, lambda size: None), self.strangers)
            key = await asyncio.to_thread(self.key_of, path, body, content) or ""
            if not is_token(self.token, key.encode("utf-8", "replace")):
                raise unknown()
        scope.setdefault("state", {})[KNOWN] = bool(self.token)
        if path in UNCOUNTED:
            await self.app(scope, receive, answer)
            return
        with self.requests.one(), self.bodies.several() as take:
            if body is None:
                body = await self._body(scope, receive, take)
            else:
                take(len(body))
            sent, body = [body], b""  # which is not stored twice, if a form holds it
            await self._unless_gone(scope, sent, receive, answer)

    async def _unless_gone(
        self, scope: Message, sent: list[bytes], receive: Receive, answer: "Answer"
    ) -> None:
        """The application's answer, which is cancelled as soon as the client is gone.

        Raises:
          Disconnected: it is.
        """
        gone = begun(disconnected(receive))

        async def rest() -> Message:
            await asyncio.wait({gone})
            return {"type": "http.disconnect"}

        answering = begun(self._passed_on(scope, replayed(sent.pop(), rest), answer))
        both: set[asyncio.Future[None]] = {gone, answering}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Disconnected
            await answering
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    async def _passed_on(self, scope: Message, receive: Receive, answer: "Answer") -> None:
        await self.app(scope, receive, answer)

    async def _body(self, scope: Message, receive: Receive, take: Callable[[int], None]) -> bytes:
        most = self.limits.recording if scope["path"] in self.hearing else self.limits.body
        too_large = Refusal(
            TOO_LARGE, f"the body has more than {most:,} bytes: send less", {"Connection": "close"}
        )
        length = header(scope, b"content-length")
        if length.isdecimal() and int(length[:MOST_DIGITS]) > DISCARDED * most:
            raise too_large
        body, size, has_more, refusal = bytearray(), 0, True, None
        while has_more and size <= DISCARDED * most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part, has_more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            try:
                if size > most:
                    raise too_large
                if not refusal:
                    take(len(part))
                    body += part
            except Refusal as error:  # the rest is read, so that the client reads the answer, but not stored
                refusal = error
                take(-len(body))
                body.clear()
        if refusal:
            raise refusal
        return bytes(body)


async def disconnected(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def in_time(arriving: Awaitable[Any], others: list[asyncio.Timeout]) -> Any:
    """What a client sends that may not have the token.

    Args:
      arriving: what it sends.
      others: times of the others that are waited for, oldest first. The oldest gives way if there are
        `STRANGERS`, so that those who send nothing do not keep out who has the token.

    Raises:
      Refusal: it takes too long, or has given way.
    """
    try:
        async with asyncio.timeout(STRANGER_SECONDS) as time_left:
            if len(others) >= STRANGERS:
                oldest = others.pop(0)
                if not oldest.expired():
                    oldest.reschedule(0)
            others.append(time_left)
            try:
                return await arriving
            finally:
                if time_left in others:
                    others.remove(time_left)
    except TimeoutError:
        message = f"nothing arrived within {STRANGER_SECONDS:g} s, or others came meanwhile: connect again"
        raise Refusal(408, message, {"Connection": "close"}) from None


def bearer(scope: Message) -> bytes:
    """The token in the head of a request: `Authorization: Bearer TOKEN`; empty if there is none."""
    scheme, _, token = header(scope, b"authorization").partition(" ")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def is_token(expected: bytes, token: bytes) -> bool:
    """Whether a token is the server's, if it has one. It takes the same time for all of a length."""
    return not expected or hmac.compare_digest(token, expected)


def unknown() -> Refusal:
    """A refusal of a request without the server's token."""
    return Refusal(401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})


class Answer:
    """Sends an answer, and notes its status; 0 before it begins."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Sends a message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
