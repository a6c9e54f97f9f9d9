"""Sound that arrives over a WebSocket, and what is heard of it until now.

The client's first message is JSON with the fields of `AskedListening`. Then it sends samples of 16 bits,
little-endian, of one channel, in binary messages of any length, and at the end the text `end`. The server
sends JSON after each step: `final` (what is new of the text that does not change any more), `tentative` and
`seconds`. It closes the connection after the last one, or after `error`, a sentence.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from fastapi import WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import RATES, Resampling
from transformer.runtime.errors import UserError
from transformer.runtime.files import MiB
from transformer.serve.bodies import json_of
from transformer.serve.gate import KNOWN, Places, bearer, in_time, is_token, unknown
from transformer.serve.metrics import Readiness
from transformer.serve.refusals import FAILED, begun, refusal_of
from transformer.serve.services.limits import Limits
from transformer.serve.services.messages import Name, Sent
from transformer.serve.services.service import Service, named

LISTEN_PATH = "/listen"
END = "end"
WAITING = 32
"""Messages that are stored until they are heard; a client that sends faster has to wait."""
LONGEST_MESSAGE = MiB
BYTES = 2
"""Of a sample."""
log = logging.getLogger("transformer")


class AskedListening(Sent):
    """How sound is heard that arrives."""

    model: Name | None = Field(None, description="Name of a run. Default: the first that can do it.")
    token: str = Field("", description="That of the server, if it has one.")
    rate: int = Field(RATE, ge=RATES[0], le=RATES[1], description="Samples a second.")
    step: float = Field(
        1.0, ge=0.1, le=30, allow_inf_nan=False, description="Seconds of sound between two transcripts."
    )
    language: Name | None = Field(None, description="Whisper: the code of the language that is spoken.")
    task: Name | None = Field(None, description="Whisper: transcribe, or translate (to English).")


class Listening:
    """The endpoint of a server that hears.

    Args:
      services: the runs that can do it.
      readiness: of their programs.
      limits: of requests.
      token: that clients must send; empty: none.
      pool: a thread for each client.
    """

    def __init__(
        self, services: Sequence[Service], readiness: Readiness, limits: Limits, token: str, pool: Executor
    ) -> None:
        self._services, self._readiness, self._limits = services, readiness, limits
        self._token, self._pool = token.encode(), pool
        self._heard = Places(limits.listeners, "clients are heard")
        self._strangers = list[asyncio.Timeout]()

    async def serve(self, socket: WebSocket) -> None:
        """Serves a client until it says that its sound ends, or it is gone."""
        try:
            await socket.accept()
        except OSError:  # it has gone
            return
        try:
            await self._serve(socket)
        except WebSocketDisconnect:
            return
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status == FAILED:
                log.exception("a client that sends sound could not be served")
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await socket.send_json({"error": refusal.message})
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await socket.close()

    async def _serve(self, socket: WebSocket) -> None:
        await self._readiness.check()
        others = [] if self._is_known(bearer(socket.scope)) else self._strangers
        asked = fields_of(await in_time(socket.receive(), others))
        if not self._is_known(bearer(socket.scope) or asked.token.encode("utf-8", "replace")):
            raise unknown()
        socket.scope.setdefault("state", {})[KNOWN] = True
        service = named(self._services, asked.model)
        with self._heard.one():
            await self._hear(socket, service, asked)

    def _is_known(self, token: bytes) -> bool:
        return is_token(self._token, token)

    async def _hear(self, socket: WebSocket, service: Service, asked: AskedListening) -> None:
        assert service.listens
        sound = ArrivingSound(asked.rate)
        texts = service.listens(sound, asked)
        sending = begun(self._send(socket, texts))
        receiving = begun(self._receive(socket, sound))
        both: set[asyncio.Future[None]] = {sending, receiving}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for task in both:
                if task.done():
                    task.result()
        finally:
            receiving.cancel()
            sound.stop()
            await asyncio.wait(both)

    async def _receive(self, socket: WebSocket, sound: "ArrivingSound") -> None:
        """Takes sound until its end. A message without sound does not count as one."""
        most, seconds, now = self._limits.listening, self._limits.seconds, asyncio.get_running_loop().time
        end, latest = now() + most + seconds, now()
        while True:
            try:
                async with asyncio.timeout_at(min(end, latest + seconds)):
                    message = await socket.receive()
            except TimeoutError:
                if now() >= end:
                    raise UserError(f"the connection is older than {most:g} s: connect again") from None
                raise UserError(f"nothing arrived for {seconds:g} s: connect again") from None
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1000))
            if message.get("text") is not None:
                if message["text"] != END:
                    raise UserError("only samples may follow, in binary messages, and the text end")
                await sound.end()
                return
            await sound.put(message["bytes"])
            if sound.samples > most * sound.rate:
                raise UserError(f"more than {most:g} s of sound: connect again")
            if message["bytes"]:
                latest = now()

    async def _send(self, socket: WebSocket, texts: Iterator[Any]) -> None:
        """Sends what is heard."""
        loop = asyncio.get_running_loop()
        while (text := await loop.run_in_executor(self._pool, next, texts, None)) is not None:
            await socket.send_json(text._asdict())


def fields_of(message: Any) -> AskedListening:
    """The fields of the first message.

    Raises:
      UserError: there is no first message of text.
      HTTPException: it is no JSON, or has more values than may be.
      RequestValidationError: a field is wrong.
      WebSocketDisconnect: the client is gone.
    """
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    text = message.get("text")
    fields = None if text is None else json_of(text.encode(), "the first message")
    if not isinstance(fields, dict):
        raise UserError('the first message must be JSON, such as {"rate": 16000}, and samples follow')
    try:
        return AskedListening.model_validate(fields)
    except ValidationError as error:
        located = [{**mistake, "loc": ("message", *mistake["loc"])} for mistake in error.errors()]
        raise RequestValidationError(located) from error


class ArrivingSound:
    """Samples of a client, 16,000 a second, for the thread that hears them.

    Args:
      rate: samples a second that the client sends.
    """

    def __init__(self, rate: int) -> None:
        self.rate, self.samples = rate, 0
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
        self._is_stopped = asyncio.Event()

    async def put(self, block: bytes) -> None:
        """Adds samples. Raises UserError if they are not whole."""
        if len(block) % BYTES:
            raise UserError(f"{len(block):,} bytes of sound: a sample has {BYTES}, send whole ones")
        self.samples += len(block) // BYTES
        await self._blocks.put(block)

    async def end(self) -> None:
        """No samples follow."""
        await self._blocks.put(None)

    def stop(self) -> None:
        """Nobody wants to know what is heard."""
        self._is_stopped.set()

    async def _next(self) -> bytes | None:
        block = asyncio.ensure_future(self._blocks.get())
        stopped = asyncio.ensure_future(self._is_stopped.wait())
        try:
            await asyncio.wait({block, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._is_stopped.is_set() else block.result()
        finally:
            block.cancel()
            stopped.cancel()

    def __iter__(self) -> Iterator[np.ndarray]:
        """The samples as they arrive, a second at once; in another thread than that of the connection, which
        resamples them."""
        resample, size = Resampling(self.rate, RATE), self.rate * BYTES
        while (block := asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()) is not None:
            for start in range(0, len(block), size):
                if self._is_stopped.is_set():
                    return
                samples = np.frombuffer(block[start : start + size], "<i2").astype(np.float32) / 2**15
                if len(wave := resample(samples)):
                    yield wave
        if len(wave := resample.rest()):
            yield wave
