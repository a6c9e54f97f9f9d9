"""Answers to requests that search: whole, or as events while outputs grow. When a client disconnects, what it
asked for is cancelled."""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from transformer.decoding.service.queue import QueueFull
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.serve.gate import Disconnected
from transformer.serve.metrics import Metrics
from transformer.serve.refusals import (
    UNAVAILABLE,
    begun,
    in_pieces,
    later,
    of_json_parts,
    pieces_of,
    refusal_of,
)
from transformer.serve.services.messages import Asked
from transformer.serve.services.service import Service

log = logging.getLogger("transformer")
STOPPING = later(UNAVAILABLE, "the server is stopping")
NUMBERS = 2_000_000
"""Numbers in all alignments of an answer, which takes memory and time to write."""


class Answers:
    """Answers requests of clients.

    Args:
      metrics: of the server.
      pool: threads that prepare searches and write their outputs, so that the server's own never waits.
    """

    def __init__(self, metrics: Metrics, pool: Executor) -> None:
        self.metrics, self.pool = metrics, pool
        self._numbers = itertools.count(1)
        log.addFilter(name_request)
        self._latest = 0.0  # seconds that a search took

    async def begun(self, service: Service, asked: Asked, items: Sequence[Any]) -> "Work":
        """A search that has begun. Arguments and errors are those of `search`."""
        work = Work(service, asked, items, next(self._numbers))
        try:
            await work.begin(self.pool)
        except QueueFull as error:
            raise refusal_of(error, math.ceil(self._latest) or 1) from error
        return work

    async def outputs(self, request: Request, work: "Work") -> list[Any]:
        """The outputs of all items.

        Raises:
          Disconnected: the client is gone.
        """
        start = time.monotonic()
        outputs = await unless_gone(request, work)
        self._latest = time.monotonic() - start
        self.metrics.searched(work.service.name, (best for best, *_ in outputs))
        return outputs

    async def search(
        self, request: Request, service: Service, asked: Asked, items: Sequence[Any]
    ) -> Response:
        """The outputs of a search.

        Args:
          request: of the client.
          service: the run that is asked.
          asked: the request's fields.
          items: what is searched.

        Raises:
          UserError: as `Decoder.submit`.
        """
        work = await self.begun(service, asked, items)
        if asked.stream:
            return Events(work, self._written)
        outputs = await self.outputs(request, work)
        written = await self.run(
            lambda: [in_pieces(written_output(work, *pair)) for pair in enumerate(outputs)]
        )
        return of_json_parts({"model": service.name}, "outputs", written)

    async def _written(self, work: "Work", index: int, outputs: list[Any]) -> str:
        """The outputs of an item as an event, when others are still searched."""
        self.metrics.searched(work.service.name, outputs[:1])
        return await self.run(
            lambda: event("output", {"index": index, **written_output(work, index, outputs)})
        )

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)


def written_output(work: "Work", index: int, outputs: list[Any]) -> Json:
    """The outputs of an item as JSON. Raises UserError if a request has too many numbers of alignments."""
    work.numbers += sum(
        alignment.size for one in outputs if (alignment := getattr(one, "alignment", None)) is not None
    )
    if work.numbers > NUMBERS:
        raise UserError(
            f"alignments: these outputs have more than {NUMBERS:,} numbers: send fewer or shorter texts, or "
            "ask for a smaller n_best"
        )
    return work.service.answer(work.items[index], outputs, work.asked)


REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The run and the request that is prepared, for the log."""


def name_request(record: logging.LogRecord) -> bool:
    """Adds the run and the request to a line of the log, whose "line 1" is a text of that request."""
    if name := REQUEST.get():
        record.msg, record.args = f"{name}: {record.getMessage()}", ()
    return True


@contextlib.contextmanager
def named_request(name: str) -> Iterator[None]:
    """Lines of the log have this name until the end of the context."""
    REQUEST.set(name)
    try:
        yield
    finally:
        REQUEST.set("")


class Work:
    """What a request searches. Requests are counted from 1."""

    def __init__(self, service: Service, asked: Asked, items: Sequence[Any], number: int) -> None:
        self.service, self.asked, self.items = service, asked, items
        self._name = f"run {service.name}, request {number}"
        self.futures: list[Future[Any]] = []
        self.shown: dict[int, Any] = {}
        """The latest unfinished output of an item that was not sent yet."""
        self.changed = asyncio.Event()
        self.numbers = 0
        """Of all alignments that are written."""
        self._loop = asyncio.get_running_loop()
        self._is_cancelled = False

    async def begin(self, pool: Executor) -> None:
        """Submits all items, or none.

        Raises:
          UserError: as `Decoder.submit`.
        """
        try:
            await self._loop.run_in_executor(pool, self._submit)
        except BaseException:
            self.cancel()
            raise

    def _submit(self) -> None:
        with named_request(self._name):
            self._submit_items()

    def _submit_items(self) -> None:
        most, count = self.service.limits.sentences, 0
        for number in self.service.numbers(self.items, self.asked):
            count += number
            if count > most:
                raise UserError(f"text: more than {most:,} sentences and lines in a request: divide them")
            if self._is_cancelled:
                return
        for index, item in enumerate(self.items):
            partial = self._partial(index) if self.asked.stream else None
            future = self.service.submit(item, self.asked, index + 1, partial, self._is_wanted)
            self.futures.append(future)
            if self._is_cancelled:  # meanwhile, in another thread
                self.cancel()
                return

    def _partial(self, index: int) -> Callable[[Any], None]:
        def show(output: Any) -> None:
            self._loop.call_soon_threadsafe(self._show, index, output)

        return show

    def _show(self, index: int, output: Any) -> None:
        self.shown[index] = output
        self.changed.set()

    def _is_wanted(self) -> bool:
        return not self._is_cancelled

    def cancel(self) -> None:
        """Ends what is not done."""
        self._is_cancelled = True
        for future in list(self.futures):
            future.cancel()


async def unless_gone(request: Request, work: Work) -> list[Any]:
    """The outputs of all items.

    Raises:
      Disconnected: the client is gone.
      Refusal: the decoder was closed.
    """
    results: asyncio.Future[list[Any]] = begun(asyncio.gather(*map(asyncio.wrap_future, work.futures)))
    gone = begun(disconnected(request))
    either: set[asyncio.Future[Any]] = {results, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not results.done():
            raise Disconnected
        if any(future.cancelled() for future in work.futures):
            raise STOPPING
        return results.result()
    finally:
        gone.cancel()
        results.cancel()
        work.cancel()


async def disconnected(request: Request) -> None:
    """Returns when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Events(StreamingResponse):
    """Server-sent events: `partial` with the best unfinished output of a text, `output` with its outputs,
    `error`, and `done` at the end. A client that reads slowly misses unfinished outputs, and nothing else."""

    def __init__(self, work: Work, write: Callable[[Work, int, list[Any]], Awaitable[str]]) -> None:
        super().__init__(self._pieces(work, write), media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        self.work = work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.work.cancel()

    async def _pieces(
        self, work: Work, write: Callable[[Work, int, list[Any]], Awaitable[str]]
    ) -> AsyncIterator[str]:
        async for text in self._events(work, write):
            for piece in pieces_of(text):
                yield piece

    async def _events(
        self, work: Work, write: Callable[[Work, int, list[Any]], Awaitable[str]]
    ) -> AsyncIterator[str]:
        waiting = {begun(asyncio.wrap_future(future)): index for index, future in enumerate(work.futures)}
        for future in waiting:
            future.add_done_callback(lambda _: work.changed.set())
        while waiting:
            await work.changed.wait()
            work.changed.clear()
            done = {future: index for future, index in waiting.items() if future.done()}
            for index in done.values():
                work.shown.pop(index, None)
            while work.shown:
                index, output = work.shown.popitem()
                yield event("partial", {"index": index, "text": output.text})
            for future, index in done.items():
                del waiting[future]
                try:
                    if future.cancelled():
                        raise STOPPING
                    yield await write(work, index, future.result())
                except Exception as error:
                    yield event("error", {"index": index, "error": refusal_of(error).message})
        yield event("done", {"model": work.service.name})


def event(name: str, data: Json) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {in_pieces(data)}\n\n"
