"""The application of a server: its endpoints, behind its gate."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import transformer
from transformer.runtime.errors import UserError
from transformer.serve import libretranslate
from transformer.serve.answers import Answers
from transformer.serve.endpoints import of_runs, of_server
from transformer.serve.forms import ReadBodies
from transformer.serve.gate import Gate
from transformer.serve.limits import Limits
from transformer.serve.listening import PATH, Listening
from transformer.serve.metrics import Metrics
from transformer.serve.origins import Origins
from transformer.serve.readiness import Readiness
from transformer.serve.refusals import Refusal, refuse
from transformer.serve.service import Service

log = logging.getLogger("transformer")
PREPARING = 4  # threads that prepare searches and write their outputs
COMPILING = 1.0  # seconds that a program which is being compiled may take when the server ends


def server_app(
    services: Sequence[Service],
    limits: Limits,
    token: str = "",
    progress: Callable[[int, int], None] = lambda done, count: None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """The application of a server.

    Args:
      services: of the runs; the first that can do what is asked does it, if a request names none.
      limits: of requests.
      token: that requests must bring; empty: none.
      progress: is called with the number of compiled programs, and that of all, after each.
      hosts: names of the server that are answered. None: all.
    """
    readiness = Readiness(services, progress)
    metrics = Metrics(services)
    preparing, scoring = ThreadPoolExecutor(PREPARING, "prepare"), ThreadPoolExecutor(1, "score")
    hearing = ThreadPoolExecutor(limits.listeners, "hear")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = threading.Thread(target=readiness.warm_up, name="warm up", daemon=True)
        warming.start()
        try:
            yield
        finally:
            readiness.stop()
            await asyncio.to_thread(warming.join, COMPILING)
            for service in services:
                service.decoder.close(timeout=limits.seconds)
            for pool in preparing, scoring, hearing:
                pool.shutdown(cancel_futures=True)

    app = FastAPI(
        title="transformer",
        version=transformer.__version__,
        description='Trained models. What is not served is answered with JSON: {"error": "a sentence"}.',
        lifespan=lifespan,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
    )
    app.state.readiness, app.state.metrics = readiness, metrics
    app.include_router(of_runs(services, readiness, Answers(metrics, preparing), scoring))
    app.include_router(of_server(services, readiness, metrics))
    if able := [service for service in services if service.listens]:
        app.add_api_websocket_route(PATH, Listening(able, readiness, limits, token, hearing).serve)
    for error in Refusal, UserError, RequestValidationError, HTTPException, Exception:
        app.add_exception_handler(error, refuse)
    hearing_paths = {service.search.path for service in services if service.search.hears}
    app.add_middleware(ReadBodies, hearing=hearing_paths)
    app.add_middleware(
        Gate,
        limits=limits,
        metrics=metrics,
        token=token,
        hearing=hearing_paths,
        named=set(app.openapi()["paths"]),
        key_of=libretranslate.key_of,
    )
    app.add_middleware(Origins, hosts=hosts)
    return app
