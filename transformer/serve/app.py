"""The application of a server: its endpoints and its page, behind its gate."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette import exceptions

import transformer
from transformer.explorer.page_files import PageFiles, page_of
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.serve import libretranslate
from transformer.serve.answers import Answers, named_request
from transformer.serve.bodies import BoundedRoute, ReadBodies
from transformer.serve.gate import Gate, InTurn, Origins
from transformer.serve.libretranslate import (
    EXAMPLE,
    LIBRETRANSLATE_PATH,
    LibreTranslation,
    either,
    languages,
    named_q,
    service_and_fields,
    translated,
)
from transformer.serve.listening import LISTEN_PATH, Listening
from transformer.serve.metrics import Metrics, Readiness
from transformer.serve.refusals import (
    INVALID,
    JsonResponse,
    Refusal,
    in_pieces,
    of_json,
    of_json_parts,
    refuse,
)
from transformer.serve.services.limits import Limits
from transformer.serve.services.messages import AskedChoices, AskedScores, Endpoint, Sent, with_options
from transformer.serve.services.service import Service, named

# The page that a server has: a form for what its runs can do.


FORM = PageFiles(
    "transformer",
    "form.html",
    scripts=("request.js", "models.js", "glossary.js", "outputs.js", "ready.js", "form.js", "microphone.js"),
    shared=("elements.js", "tokens.js", "words.js", "marked.js"),
    styles=("form.css",),
    package="transformer.serve",
    sources="connect-src 'self';",
)


def page_of_services(services: Sequence[Service], limits: Limits, has_token: bool) -> str:
    """A form for the endpoints of runs.

    Args:
      services: of the runs.
      limits: of requests.
      has_token: whether requests need one.
    """
    about = [service.about() for service in services]
    sizes = {"texts": limits.texts, "characters": limits.characters}
    return page_of({"models": about, "limits": sizes, "hasToken": has_token}, FORM)


# The endpoints of a server: of its runs, each only if one of them can do it, and of the server itself.


REFUSALS = {
    400: "the request is malformed",
    401: "the token is missing or wrong",
    403: "the server is not called so, or the page is of another server",
    408: "nothing arrived in time",
    413: "the body is too large",
    415: "the body is compressed",
    422: "something in the request is wrong",
    429: "there is no room; Retry-After has the seconds to wait",
    500: "the server has failed",
    503: "the server is not ready or full, or the time was over",
}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
Responses = dict[int | str, dict[str, Any]]


NOT_SERVED: Responses = {
    status: {"description": about, "content": {"application/json": {"schema": ERROR}}}
    for status, about in REFUSALS.items()
}
"""What any address may answer to a request that is not served: JSON with `error`, a sentence."""
EVENTS: Responses = {
    200: {
        "content": {"text/event-stream": {"schema": {"description": "events, each with its name and JSON"}}}
    }
}
"""Of a search with `stream`."""


def of_runs(
    services: Sequence[Service], readiness: Readiness, answers: Answers, scoring: Executor
) -> APIRouter:
    """What runs do.

    Args:
      services: of the runs.
      readiness: of their programs.
      answers: to searches.
      scoring: the thread that scores.
    """
    router = APIRouter(route_class=BoundedRoute, dependencies=[Depends(readiness.check)])
    endpoints = {service.search.path: service.search for service in services}
    for path, endpoint in endpoints.items():
        able = [service for service in services if service.search.path == path]
        add_search(router, endpoint, able, answers)
    if scorers := [service for service in services if service.scores]:
        add_scores(router, scorers, scoring)
    if choosers := [service for service in services if service.choices]:
        add_choices(router, choosers, scoring)
    return router


def add_search(router: APIRouter, endpoint: Endpoint, able: Sequence[Service], answers: Answers) -> None:
    """An endpoint that searches.

    Args:
      router: what it is added to.
      endpoint: what can be asked.
      able: the runs that can do it.
      answers: to searches.
    """
    options_of_all = dict.fromkeys(option for service in able for option in service.options)
    fields = with_options(endpoint, able[0].loads.extras, options_of_all)
    examples: dict[str, Any] = {"default": {"value": endpoint.example}}

    async def hear(request: Request, asked: Any) -> Response:
        return await answers.search(request, named(able, asked.model), asked, [await request.body()])

    async def search(request: Request, asked: Any) -> Response:
        service = named(able, asked.model)
        return await answers.search(request, service, asked, await answers.run(service.items, asked))

    async def translate(request: Request, asked: Any) -> Response:
        if not isinstance(asked, LibreTranslation):
            return await search(request, asked)
        service, plain = service_and_fields(asked, able, fields)
        with named_q():
            work = await answers.begun(service, plain, await answers.run(service.items, plain))
        outputs = await answers.outputs(request, work)
        return of_json([await answers.run(lambda: in_pieces(translated(asked, outputs)))])

    options: Json = {"summary": endpoint.about, "name": endpoint.path[1:], "responses": EVENTS}
    options["dependencies"] = [sent_once(fields) if endpoint.hears else ALL_IN_BODY]
    if endpoint.hears:
        file = {"schema": {"type": "string", "format": "binary"}}
        options["openapi_extra"] = {"requestBody": {"required": True, "content": {endpoint.media: file}}}
        function, kind = hear, Annotated[fields, Query()]
    elif endpoint.path == LIBRETRANSLATE_PATH:
        examples["LibreTranslate"] = {"value": EXAMPLE}
        function, kind = translate, Annotated[either(fields), Body(openapi_examples=examples)]
    else:
        function, kind = search, Annotated[fields, Body(openapi_examples=examples)]
    function.__annotations__["asked"] = kind
    router.post(endpoint.path, **options)(function)


def sent_once(fields: type[Sent]) -> Any:
    """A dependency that refuses an address which has a field twice, unless the field is a list."""
    hints = get_type_hints(fields).items()
    lists = {name for name, kind in hints if {list, tuple} & set(map(get_origin, get_args(kind)))}

    async def check(request: Request) -> None:
        names = Counter(name for name, _ in request.query_params.multi_items() if name not in lists)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise HTTPException(INVALID, f"{repeated[0]}: the address has it twice; send it once")

    return Depends(check)


async def _no_fields(request: Request) -> None:
    for name in request.query_params:
        raise HTTPException(
            INVALID, f"{name}: the address has it, and fields are read from the body: put it there"
        )


ALL_IN_BODY = Depends(_no_fields)
"""A dependency that refuses fields of an address, which would be ignored."""


def add_scores(router: APIRouter, able: Sequence[Service], scoring: Executor) -> None:
    """The endpoint for scores of given texts.

    Args:
      router: what it is added to.
      able: the runs that have scores.
      scoring: the thread that computes them.
    """
    pair = {"text": "A dog runs.", "target": "Ein Hund rennt."}
    examples: dict[str, Any] = {"default": {"value": pair}}

    @router.post(
        "/score",
        summary="The log-probabilities of given texts, in nats.",
        dependencies=[ALL_IN_BODY],
    )
    async def score(asked: Annotated[AskedScores, Body(openapi_examples=examples)]) -> Response:
        service = named(able, asked.model)
        assert service.scores
        return of_json_parts(
            {"model": service.name}, "scores", await in_turns(service, service.scores(asked), scoring)
        )


def add_choices(router: APIRouter, able: Sequence[Service], scoring: Executor) -> None:
    """The endpoint for the probabilities of given labels. Arguments as of `add_scores`."""
    texts = {"text": ["A dog runs."], "choices": ["Ein Hund rennt.", "Zwei Hunde rennen."]}
    examples: dict[str, Any] = {"default": {"value": texts}}

    @router.post(
        "/choose",
        summary="The probability of each of some labels, or other outputs.",
        dependencies=[ALL_IN_BODY],
    )
    async def choose(asked: Annotated[AskedChoices, Body(openapi_examples=examples)]) -> Response:
        service = named(able, asked.model)
        assert service.choices
        chosen = await in_turns(service, service.choices(asked), scoring)
        return of_json_parts({"model": service.name}, "outputs", chosen)


async def in_turns(service: Service, parts: Iterator[list[Json]], pool: Executor) -> list[str]:
    """All of several lists, as JSON. Each list is made and written in another thread, in its turn with those
    of other requests; what nobody waits for any more ends with the one that has begun."""
    loop, written = asyncio.get_running_loop(), list[str]()

    def following() -> list[str]:
        with named_request(f"run {service.name}"):
            return [in_pieces(one) for one in next(parts, [])]

    while several := await loop.run_in_executor(pool, following):
        written += several
    return written


def of_server(services: Sequence[Service], readiness: Readiness, metrics: Metrics, page: str) -> APIRouter:
    """What a server says of itself.

    Args:
      services: of the runs.
      readiness: of their programs.
      metrics: of the server.
      page: its form.
    """
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def form() -> Response:
        return HTMLResponse(page)

    @router.get("/health", summary="Whether the server runs.")
    async def health() -> Response:
        return JsonResponse({"status": "ok"})

    @router.get(
        "/ready",
        summary="Whether programs are compiled: those that every request needs, or all.",
        dependencies=[Depends(readiness.check)],
    )
    async def ready(every: Annotated[bool, Query(alias="all")] = False) -> Response:
        if every:
            readiness.check_all()
        return JsonResponse({"status": "ok"})

    @router.get("/metrics", summary="Metrics in the format of Prometheus.", response_class=PlainTextResponse)
    async def measured() -> Response:
        return metrics.page()

    @router.get("/models", summary="The runs, and what each can do.")
    async def models() -> Response:
        return JsonResponse({"models": [service.about() for service in services]})

    if able := [service for service in services if service.search.path == LIBRETRANSLATE_PATH]:
        known = JsonResponse(languages(able))  # which never change, and of which there may be hundreds

        @router.get("/languages", summary="The languages of texts, and those they are translated to.")
        async def list_languages() -> Response:
            return known

    return router


log = logging.getLogger("transformer")
PREPARING = 4  # threads that prepare searches and write their outputs
COMPILING = 1.0  # seconds that a program which is being compiled may take when the server ends


def server_app(
    services: Sequence[Service],
    limits: Limits,
    token: str = "",
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """The application of a server.

    Args:
      services: of the runs; the first that can do what is asked does it, if a request names none.
      limits: of requests.
      token: that requests must bring; empty: none.
      hosts: names of the server that are answered. None: all.
    """
    readiness = Readiness(services)
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
        responses=NOT_SERVED,
        lifespan=lifespan,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to an address that is made of what a client says the server is called
    )
    app.state.readiness, app.state.metrics = readiness, metrics
    page = page_of_services(services, limits, bool(token))
    app.include_router(of_runs(services, readiness, Answers(metrics, preparing), scoring))
    app.include_router(of_server(services, readiness, metrics, page))
    if able := [service for service in services if service.listens]:
        app.add_api_websocket_route(LISTEN_PATH, Listening(able, readiness, limits, token, hearing).serve)
    for error in Refusal, UserError, RequestValidationError, exceptions.HTTPException, Exception:
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
    app.add_middleware(InTurn, token=token)
    return app
