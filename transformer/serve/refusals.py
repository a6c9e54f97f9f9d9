"""Answers to requests that are not served: a status, and one sentence as JSON."""

import asyncio
import itertools
import json
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from transformer.decoding.service.queue import Expired, QueueFull
from transformer.runtime.errors import UserError, shortened

# Types of ASGI, and what the applications around the server's share.


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def begun(work: Awaitable[Any]) -> asyncio.Future[Any]:
    """A task or future whose failure is no news if nobody asks for it any more."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def header(scope: Message, name: bytes) -> str:
    """A header of a request, all values if there are several; empty if it has none."""
    return ", ".join(value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name)


def replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` of a request whose body was read.

    Args:
      body: the whole body.
      receive: what follows.
    """
    parts = [body]

    async def again() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return again


SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
]
"""Headers of every answer: browsers guess no type, tell no other server of this one, and show it in no
frame."""


def with_safe_headers(app: App) -> App:
    """An application around another one, whose answers all have the headers `SAFE`."""

    async def safe(scope: Message, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"].endswith("http.response.start"):  # also websocket.http.response.start
                message = {**message, "headers": [*message["headers"], *SAFE]}
            await send(message)

        await app(scope, receive, send_safely)

    return safe


LONGEST_MESSAGE = 1000
"""Characters of a message, which may repeat what a client sent."""
BUSY, TOO_LARGE, INVALID, FAILED, UNAVAILABLE = 429, 413, 422, 500, 503
OPTION = re.compile(r"(?<![a-z-])--(?:decoding\.)?([a-z][a-z-]*+)(?!\.[a-z])")
"""Of a command line, in a message. Fields of requests have underscores; options of sections, such as
--data.add-tokens, are for who trains or serves, and stay as they are."""
SHAPES = ("str", "list[str]", "own", "libretranslate")
"""Alternatives of a request or of a field, in the locations of mistakes."""
UNROUTED = {404: "there is no such address", 405: "send {allowed} to this address"}
"""What is answered to requests for which there is no function."""
GONE = 499
"""Of the log: the client has disconnected, and nobody reads the answer."""


class Refusal(Exception):
    """A request is not served.

    Args:
      status: of HTTP.
      message: why, in a sentence. Long words of a client in it are shortened, and so is the whole.
      headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        signs = shortened(message)[:LONGEST_MESSAGE]
        printable = (sign if sign.isprintable() else repr(sign)[1:-1] for sign in signs)
        self.status, self.headers = status, dict(headers)
        self.message = "".join(printable)[:LONGEST_MESSAGE]

    @property
    def response(self) -> Response:
        """The answer."""
        return JsonResponse({"error": self.message}, self.status, self.headers)


class JsonResponse(Response):
    """JSON in ASCII: a text of a client may have half of a surrogate pair, which UTF-8 has not."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(json.dumps(content), status, headers)


def in_pieces(value: Any) -> str:
    """JSON, as `json.dumps` writes it, which holds up all threads until the whole is written."""
    return "".join(json.JSONEncoder().iterencode(value))


AT_ONCE = 64 * 1024
"""Characters of an answer that are sent before others have their turn, and its client has read them."""


def of_json_parts(fields: Mapping[str, Any], name: str, parts: Sequence[str]) -> Response:
    """An answer with a list whose items are JSON already, since nothing else is served while JSON is written.

    Args:
      fields: the others.
      name: of the list.
      parts: its items.
    """
    before = json.dumps({**fields, name: []}).removesuffix("]}")
    between = [", "] * (2 * len(parts) - 1)
    between[::2] = parts
    return of_json([before, *between, "]}"])


def of_json(texts: Sequence[str]) -> Response:
    """An answer whose JSON is in parts. A long one is neither joined nor sent at once."""
    size = sum(map(len, texts))
    if size <= AT_ONCE:
        return Response("".join(texts), media_type=JsonResponse.media_type)
    pieces = itertools.chain.from_iterable(map(pieces_of, texts))
    return StreamingResponse(_sent(pieces), 200, {"Content-Length": str(size)}, JsonResponse.media_type)


async def _sent(pieces: Iterator[str]) -> AsyncIterator[str]:
    for piece in pieces:
        yield piece


def pieces_of(text: str) -> Iterator[str]:
    """A text in pieces that are sent one after the other."""
    return (text[start : start + AT_ONCE] for start in range(0, len(text), AT_ONCE))


def later(status: int, message: str, seconds: int = 1) -> Refusal:
    """A refusal of what may be asked again after some seconds."""
    return Refusal(status, message, {"Retry-After": str(seconds)})


def refusal_of(error: Exception, wait: int = 1) -> Refusal:
    """What a client is told of an error.

    Args:
      error: raised while a request was served.
      wait: seconds after which it may be asked again, if there was no room for it.
    """
    match error:
        case Refusal():
            return error
        case QueueFull():
            return later(BUSY, str(error), wait)
        case Expired():
            return later(UNAVAILABLE, "the search was not begun in time: try again later", wait)
        case RequestValidationError():
            return Refusal(INVALID, sentence_of(error))
        case HTTPException():
            return Refusal(error.status_code, str(error.detail), error.headers or {})
        case UserError():
            return Refusal(INVALID, OPTION.sub(lambda name: name[1].replace("-", "_"), str(error)))
    return Refusal(FAILED, "the server has failed; its log says why")


def sentence_of(error: RequestValidationError) -> str:
    """What is wrong with a request, in one sentence: its first mistake."""
    first = error.errors()[0]
    names = [str(part)[:LONGEST_MESSAGE] for part in first["loc"][1:] if part not in SHAPES]
    where = ".".join(names) or "the body"
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such field"
    if first["type"] == "missing":
        return f"{where} is missing"
    if not names and first["type"] == "model_attributes_type":
        type_of_body = ", and its Content-Type application/json" * isinstance(first["input"], bytes)
        return f"the body must be a JSON object{type_of_body}"
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}"


async def refuse(request: Request, error: Exception) -> Response:
    """The handler of an app for errors."""
    if isinstance(error, HTTPException) and error.status_code in UNROUTED:
        about = UNROUTED[error.status_code].format(allowed=(error.headers or {}).get("Allow"))
        error = Refusal(error.status_code, f"{request.url.path}: {about}", error.headers or {})
    return refusal_of(error).response
