"""Clients of a server over a real connection: of another API, in a browser, impatient, gone, many."""

import asyncio
import contextlib
import gc
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from served import translations
from small_run import WORDS

from transformer.decoding.service.lanes import Preparation
from transformer.decoding.service.queue import Answer
from transformer.serve.answers import Events, unless_gone
from transformer.serve.app import server_app
from transformer.serve.gate import Disconnected
from transformer.serve.server import Server, bound, config_of
from transformer.serve.services.limits import Limits
from transformer.serve.services.service import Service


@contextlib.contextmanager
def running(
    *services: Service, limits: Limits | None = None, prepare: Callable[[], object] | None = None
) -> Iterator[str]:
    """The address of a server in a thread. It is ready, unless there is something to prepare for each run."""
    with pytest.MonkeyPatch.context() as patch:
        preparation = Preparation([[prepare]] if prepare else ())
        patch.setattr(Service, "preparation", lambda service: preparation)
        listening = bound("127.0.0.1", 0)
        app = server_app(services, limits or Limits())
        server = Server(config_of(app, limits or Limits()))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        while not (app.state.readiness.is_ready or (prepare and server.started)):
            time.sleep(0.01)
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
            listening.close()


def settled(service: Service) -> bool:
    """Whether all slots become free."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if service.decoder.waiting == service.decoder.searching == 0:
            return True
        time.sleep(0.02)
    return False


def test_a_client_of_libretranslate_works_unchanged():
    reason = "needs libretranslatepy: pip install '.[test]'"
    client_library = pytest.importorskip("libretranslatepy", reason=reason)
    service = translations()
    with running(service) as address:
        client = client_library.LibreTranslateAPI(address)
        assert client.translate("red green", "xx", "yy") == service.decoder.translate("red green")
        assert client.translate("größe & <b>", "auto", "yy") == service.decoder.translate("größe & <b>")
        assert client.languages() == [{"code": "xx", "name": "xx", "targets": ["yy"]}]
        several = {"q": WORDS[:2], "source": "xx", "target": "yy", "format": "text", "alternatives": 1}
        answer = httpx.post(f"{address}/translate", json=several).json()
        expected = service.decoder.search(WORDS[:2], n_best=2)
        assert answer["translatedText"] == [best.text for best, _ in expected]
        assert answer["alternatives"] == [[other.text] for _, other in expected]
        with pytest.raises(urllib.error.HTTPError, match="422"):
            client.translate("red", "de", "en")
        wrong = httpx.post(f"{address}/translate", data={"q": "a", "source": "de", "target": "en"})
        assert wrong.json() == {"error": "no run translates from de to en: see /languages"}


@pytest.mark.slow
def test_who_disconnects_frees_the_slots():
    service = translations(extra_length=60)
    with running(service) as address:
        for stream in False, True:
            for _ in range(20):
                with contextlib.suppress(httpx.TimeoutException):
                    asked = {"text": WORDS[:8], "stream": stream, "min_length": 55}
                    httpx.post(f"{address}/translate", json=asked, timeout=0.02)
        assert settled(service)
        metrics = httpx.get(f"{address}/metrics").text
        assert 'endpoint="/translate",status="499"' in metrics or 'status="200"' in metrics
        assert not service.decoder._admission._open
        assert httpx.post(f"{address}/translate", json={"text": "cat"}).status_code == 200


def test_who_leaves_writes_no_line_to_the_log():
    """Neither for what is cancelled, nor for what failed just before."""
    lines = []

    async def leave():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: lines.append(context))
        request = Mock(receive=AsyncMock(return_value={"type": "http.disconnect"}))
        with pytest.raises(Disconnected):
            await unless_gone(request, Mock(futures=[Answer(), Answer()]))
        work = Mock(futures=[Answer()], changed=asyncio.Event(), shown={})
        reading = asyncio.ensure_future(anext(Events(work, AsyncMock())._pieces(work, AsyncMock())))
        await asyncio.sleep(0)
        work.futures[0].set_exception(OSError())
        reading.cancel()
        await asyncio.wait({reading})

    asyncio.run(leave())
    gc.collect()
    assert not lines


@pytest.mark.thorough
def test_many_requests_get_their_own_answers_or_are_told_to_wait():
    service = translations(limits=Limits(queue=64))
    texts = [f"{a} {b}" for a in WORDS for b in WORDS] * 3
    expected = dict(zip(texts, service.decoder.translate(texts), strict=True))

    async def ask(client, text):
        while True:
            answer = await client.post("/translate", json={"text": text})
            if answer.status_code != 429:
                break
            assert int(answer.headers["retry-after"]) >= 1
            await asyncio.sleep(0.05)
        return text, answer.json()["outputs"][0]["hypotheses"][0]["text"]

    async def ask_all(address):
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
            return await asyncio.gather(*(ask(client, text) for text in texts))

    with running(service) as address:
        for text, output in asyncio.run(ask_all(address)):
            assert output == expected[text]
        assert settled(service)


def test_what_takes_too_long_is_ended():
    service = translations(extra_length=60)
    with running(service, limits=Limits(seconds=0.05)) as address:
        answer = httpx.post(f"{address}/translate", json={"text": WORDS, "min_length": 55}, timeout=60)
        assert answer.status_code == 503
        assert settled(service)
