"""Types of ASGI, and what the applications around the server's share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task whose failure is no news if nobody asks for it any more."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def header(scope: Message, name: bytes) -> str:
    """A header of a request; empty if it has none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name), "")


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
