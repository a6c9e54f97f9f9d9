"""Metrics of a server, in the format of Prometheus."""

from collections.abc import Iterable, Sequence
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from transformer.serve.service import Service

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

    def page(self) -> bytes:
        """All of them."""
        return generate_latest(self.registry)
