"""Whether a server is ready, and its metrics in the format of Prometheus."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
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

from transformer.runs.report.logged import duration
from transformer.runtime.errors import counted
from transformer.serve.refusals import UNAVAILABLE, App, Refusal, later, refuse
from transformer.serve.services.service import Service

# Whether a server is ready: the programs of all runs are compiled.


log = logging.getLogger("transformer")
WAIT = 5  # seconds after which a client may ask again


class Readiness:
    """Whether all programs are compiled.

    Args:
      services: of the runs.
      progress: is called with the number of compiled programs, and that of all, after each.

    Attributes:
      is_ready: whether they are.
      error: why they could not be.
      seconds_left: how long the others take; infinite if that is not known.
    """

    def __init__(self, services: Sequence[Service], progress: Callable[[int, int], None]) -> None:
        self._services, self._progress = services, progress
        self._is_stopped = False
        self._done = self._count = 0
        self.seconds_left = lambda: math.inf
        self.is_ready = False
        self.error: Exception | None = None

    def warm_up(self) -> None:
        """Compiles them."""
        try:
            several = [prepare for service in self._services for prepare in service.preparations()]
            self._count = len(several)
            for done, prepare in enumerate(several, 1):
                if self._is_stopped:
                    return
                prepare()
                self._done = done
                if done < len(several):
                    self._progress(done, len(several))
            self.is_ready = True
            self._progress(len(several), len(several))
        except Exception as error:
            self.error = error
            log.exception("the programs could not be compiled")

    def stop(self) -> None:
        """Ends `warm_up` at the next opportunity."""
        self._is_stopped = True

    async def check(self) -> None:
        """Raises Refusal if they are not compiled."""
        if self.error:
            raise Refusal(UNAVAILABLE, "the models could not be prepared: the server's log says why")
        if not self.is_ready:
            raise later(UNAVAILABLE, f"the models are being prepared{self._progress_so_far}", WAIT)

    @property
    def _progress_so_far(self) -> str:
        """How many programs are compiled, and about how long the others take."""
        left = self.seconds_left()
        return (f": {self._done} of {counted(self._count, 'program')}" if self._count else "") + (
            f", about {duration(left)} left" if math.isfinite(left) else ""
        )


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
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        for error in HTTPException, Exception:
            app.add_exception_handler(error, refuse)

        @app.get("/metrics")
        async def measured() -> Response:
            return self.page()

        return app
