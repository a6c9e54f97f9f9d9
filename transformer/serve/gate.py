"""What every request passes: token, limits of size, time and number, metrics."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import contextmanager
from typing import Any

from transformer.serve.limits import Limits
from transformer.serve.metrics import Metrics
from transformer.serve.refusals import BUSY, FAILED, GONE, TOO_LARGE, UNAVAILABLE, Refusal, later

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

DISCARDED = 8  # bodies that are longer than this many allowed ones are not even read to their end
OPEN = ("/", "/health", "/ready")
"""What probes and browsers get without a token."""


class Disconnected(Exception):
    """The client is gone."""


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
        self.count = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path in OPEN:
            await self.app(scope, receive, send)
            return
        answer = Answer(send)
        start = time.monotonic()
        try:
            with self._counted():
                await self._within_time(scope, receive, answer)
        except Refusal as refusal:
            if not answer.status:
                await refusal.response(scope, receive, answer)
        except Disconnected:
            answer.status = answer.status or GONE
        except Exception:
            answer.status = answer.status or FAILED
            raise
        finally:
            endpoint = path if path in self.named else "other"
            self.metrics.answered(endpoint, answer.status or GONE, time.monotonic() - start)

    @contextmanager
    def _counted(self) -> Any:
        """Raises Refusal if too many requests are being answered."""
        if self.count >= self.limits.requests:
            raise later(BUSY, f"{self.count} requests are being answered, as many as may: try again later")
        self.count += 1
        self.metrics.open.set(self.count)
        try:
            yield
        finally:
            self.count -= 1
            self.metrics.open.set(self.count)

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
        headers = {name.lower(): value for name, value in scope["headers"]}
        is_known = is_token(self.token, headers.get(b"authorization", b"").removeprefix(b"Bearer "))
        content = headers.get(b"content-type", b"").decode("latin-1")
        if not (is_known or self.key_of(scope["path"], b"", content) is not None):
            raise unknown()
        body = await self._body(scope["path"], receive)
        if not is_known:
            key = self.key_of(scope["path"], body, content) or ""
            if not is_token(self.token, key.encode("utf-8", "replace")):
                raise unknown()
        await self.app(scope, replayed(body, receive), answer)

    async def _body(self, path: str, receive: Receive) -> bytes:
        most = self.limits.recording if path in self.hearing else self.limits.body
        too_large = Refusal(
            TOO_LARGE, f"the body has more than {most:,} bytes: send less", {"Connection": "close"}
        )
        parts, size, has_more = list[bytes](), 0, True
        while has_more and size <= DISCARDED * most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part, has_more = message.get("body", b""), message.get("more_body", False)
            if (size := size + len(part)) > most:
                parts.clear()  # the rest is read, so that the client reads the answer, but not stored
            else:
                parts.append(part)
        if size > most:
            raise too_large
        return b"".join(parts)


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


def replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` of a request whose body was read."""
    parts = [body]

    async def again() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return again
