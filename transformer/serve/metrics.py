"""Whether a server is ready, and its metrics in the format of Prometheus."""

import logging
import math
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.exceptions import HTTPException

from transformer.decoding.service.lanes import Job
from transformer.decoding.service.service import at_once
from transformer.runs.report.logged import duration
from transformer.runtime.errors import counted
from transformer.serve.refusals import UNAVAILABLE, App, Refusal, later, refuse
from transformer.serve.services.service import Service

# Whether a server is ready: the programs that every request needs are compiled.


log = logging.getLogger("transformer")
WAIT = 5  # seconds after which a client may ask again


class Readiness:
    """Whether the programs of all runs are compiled.

    Args:
      services: of the runs.

    Attributes:
      is_ready: whether those are that requests without options need. The others are compiled behind.
      is_complete: whether all are.
      error: why some could not be.
      needed: how many there are until it is ready, or `count` of all; 0 before that is known.
      done: how many are compiled.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
        self._is_stopped = False
        self._lock = threading.Lock()
        self._start = self._last = time.monotonic()
        self.done = self.needed = self.count = 0
        self.is_ready = self.is_complete = False
        self.error: Exception | None = None

    def warm_up(self) -> None:
        """Compiles them."""
        try:
            first, *others = (service.preparation() for service in self._services)
            of_all = first.beside(*others)
            self.count = sum(map(len, of_all.stages))
            self.needed = sum(map(len, of_all.first))
            for stage in of_all.first:
                at_once(map(self._counted, stage))
            self.is_ready = not self._is_stopped
            for stage in of_all.rest:
                at_once(map(self._counted, stage), is_behind=True)
            self.is_complete = not self._is_stopped
        except Exception as error:
            self.error = error
            log.exception("the programs could not be compiled")

    def _counted(self, job: Job) -> Job:
        def call() -> None:
            if not self._is_stopped:
                job()
                with self._lock:
                    self.done, self._last = self.done + 1, time.monotonic()

        return call

    def stop(self) -> None:
        """Ends `warm_up` at the next opportunity."""
        self._is_stopped = True

    async def check(self) -> None:
        """Raises Refusal if it is not ready."""
        self._check(self.is_ready)

    def _check(self, is_so: bool) -> None:
        if is_so:
            return
        if self.error:
            raise Refusal(UNAVAILABLE, "the models could not be prepared: the server's log says why")
        raise later(UNAVAILABLE, f"the models are being prepared: {self.so_far}", WAIT)

    def check_all(self) -> None:
        """Raises Refusal if a program is not compiled."""
        self._check(self.is_complete)

    @property
    def seconds_left(self) -> float:
        """How long the programs take until it is ready, by those that are compiled; infinite if that is not
        known."""
        taken, since = self._last - self._start, time.monotonic() - self._last
        left = taken / max(self.done, 1) * (self.needed - self.done) - since
        return left if left > 0 and self.done else math.inf

    @property
    def so_far(self) -> str:
        """How many programs are compiled, and about how long the others take."""
        left = self.seconds_left
        about = f", about {duration(left)} left" if math.isfinite(left) else ""
        count = self.count if self.is_ready else self.needed
        return f"{self.done} of {counted(count, 'program')}{about}"


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histograms of times."""


class Metrics:
    """What a server counts and measures.

    Args:
      services: of the runs.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "transformer_requests", "Requests", ("endpoint", "status"), registry=registry
        )
        self._seconds = Histogram(
            "transformer_request_seconds",
            "Seconds from a request to the end of its answer",
            ("endpoint",),
            buckets=SECONDS,
            registry=registry,
        )
        self.open = Gauge("transformer_open_requests", "Requests that are answered now", registry=registry)
        self.stored = Gauge("transformer_stored_bytes", "Bytes of their bodies", registry=registry)
        self._outputs = Counter("transformer_texts", "Texts that were searched", ("run",), registry=registry)
        self._tokens = Counter(
            "transformer_tokens",
            "Tokens of the best outputs; their rate is the speed",
            ("run",),
            registry=registry,
        )
        waiting = Gauge("transformer_waiting_texts", "Texts in the queue", ("run",), registry=registry)
        slots = Gauge("transformer_slots_in_use", "Texts that are searched now", ("run",), registry=registry)
        for service in services:
            name, decoder = service.name, service.decoder
            waiting.labels(name).set_function(partial(getattr, decoder, "waiting"))
            slots.labels(name).set_function(partial(getattr, decoder, "searching"))
            self._outputs.labels(name)
            self._tokens.labels(name)
        ProcessCollector(registry=registry)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def searched(self, run: str, outputs: Iterable[object]) -> None:
        """Counts the best outputs of a search."""
        for output in outputs:
            self._outputs.labels(run).inc()
            self._tokens.labels(run).inc(len(getattr(output, "tokens", ())))

    def page(self) -> Response:
        """All of them."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    @property
    def app(self) -> App:
        """An application that has them and nothing else."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        for error in HTTPException, Exception:
            app.add_exception_handler(error, refuse)

        @app.get("/metrics")
        async def measured() -> Response:
            return self.page()

        return app
