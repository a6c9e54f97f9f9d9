"""A server under load: throughput and waits, against one request after another and CTranslate2; abuse; soak.

`python -m benchmarks.speed.serving ADDRESS TEXTS` asks a server (`transformer serve RUN`), over loopback: the
lines of a file, by several clients and by one, and with `--rates` at random moments. Then it disconnects,
reads slowly, sends what is no request, and checks that slots are free again; it prints the server's memory.
`--soak SECONDS` sends requests at random moments, some of which are cancelled; an answer must be the same
each time. `--restart COMMAND` starts the server again twice meanwhile. A server to compare with is
`benchmarks.speed.peer_server`.
"""

import argparse
import asyncio
import contextlib
import random
import re
import time
from pathlib import Path
from typing import Any

from benchmarks.command import needs, positive, run

SMALL = {"text": "Hello."}
PATIENCE = 300.0
"""Seconds without an answer after which a soak fails."""


class Client:
    """Asks a server.

    Args:
      address: of the server.
      clients: the most connections.
    """

    def __init__(self, address: str, clients: int) -> None:
        import httpx

        limits = httpx.Limits(max_connections=clients)
        self.http = httpx.AsyncClient(base_url=address, limits=limits, timeout=120)
        self.slots = asyncio.Semaphore(clients)

    async def ask(self, text: str, **more: Any) -> tuple[str, float]:
        """The translation of a text, and its seconds. It is asked again where there is no room."""
        async with self.slots:
            start = time.monotonic()
            while True:
                answer = await self.http.post("/translate", json={"text": text, **more})
                if answer.status_code != 429:
                    break
                await asyncio.sleep(0.1)
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {answer.text}")
            return answer.json()["outputs"][0]["hypotheses"][0]["text"], time.monotonic() - start

    async def gauge(self, name: str) -> float:
        """A metric of the server, summed over its runs."""
        page = (await self.http.get("/metrics")).text
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)))

    async def settled(self) -> None:
        """Waits until no text waits and all slots are free, at most 60 s; then raises RuntimeError."""
        for _ in range(600):
            names = "transformer_waiting_texts", "transformer_slots_in_use"
            if not sum([await self.gauge(name) for name in names]):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError("slots are in use 60 s after the last request")


async def load(client: Client, texts: list[str], name: str) -> list[str]:
    """The translations of texts that are sent at once; prints how long they took."""
    start = time.monotonic()
    answers = await asyncio.gather(*map(client.ask, texts))
    seconds = time.monotonic() - start
    waits = sorted(wait for _, wait in answers)
    at = [waits[int(share * (len(waits) - 1))] * 1e3 for share in (0.5, 0.99)]
    speed = f"{len(texts) / seconds:.1f} requests/s"
    print(
        f"{name}: {len(texts):,} in {seconds:.1f} s, {speed}; p50 {at[0]:,.0f} ms, p99 {at[1]:,.0f} ms",
        flush=True,
    )
    return [text for text, _ in answers]


async def arrivals(client: Client, texts: list[str], rate: float, name: str) -> None:
    """Sends texts at random moments, so many a second (a Poisson process), and prints how long each took from
    then, with its wait for other requests."""
    draw, tasks = random.Random(0), list[asyncio.Task[float]]()

    async def one(text: str) -> float:
        arrived = time.monotonic()
        await client.ask(text)
        return time.monotonic() - arrived

    for text in texts:
        await asyncio.sleep(draw.expovariate(rate))
        tasks.append(asyncio.create_task(one(text)))
    waits = sorted(await asyncio.gather(*tasks))
    at = [waits[int(share * (len(waits) - 1))] * 1e3 for share in (0.5, 0.95)]
    print(f"{rate:g} a second, {name}: p50 {at[0]:,.0f} ms, p95 {at[1]:,.0f} ms", flush=True)


async def abuse(client: Client, texts: list[str], count: int) -> None:
    """Clients that disconnect, read slowly or send no requests; raises RuntimeError if slots leak."""
    import httpx

    await client.settled()
    before = await client.gauge("process_resident_memory_bytes")

    async def leave(number: int) -> None:
        async with client.slots:
            with contextlib.suppress(httpx.TimeoutException):
                more = {"text": texts[number % len(texts)], "stream": number % 2 == 0}
                await client.http.post("/translate", json=more, timeout=0.02 + 0.05 * random.random())

    await asyncio.gather(*map(leave, range(count)))
    await client.settled()
    print(f"{count:,} disconnects: all slots are free", flush=True)
    async with client.http.stream("POST", "/translate", json={"text": texts[:8], "stream": True}) as slow:
        read = bytearray()
        async for block in slow.aiter_bytes(256):
            read += block
            await asyncio.sleep(0.02)
    if read.count(b"event: output") != len(texts[:8]):
        raise RuntimeError("a slow reader misses outputs")
    print("a slow reader has all outputs", flush=True)
    bodies = {"1 MB": b'{"text": "' + b"a" * 2**20 + b'"}', "cut": b'{"text": ', "deep": b"[" * 10_000}
    for name, body in bodies.items():
        kind = {"Content-Type": "application/json"}
        some = [await client.http.post("/translate", content=body, headers=kind) for _ in range(20)]
        statuses = {answer.status_code for answer in some}
        print(f"{name}: {sorted(statuses)}", flush=True)
        if min(statuses) < 400 or max(statuses) >= 500:
            raise RuntimeError(f"{name} was not refused")
    await client.settled()
    after = await client.gauge("process_resident_memory_bytes")
    print(f"memory: {before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} MiB after", flush=True)


async def soak(client: Client, texts: list[str], seconds: float, rate: float, restart: str) -> None:
    """Requests at random moments, a fifth of which is cancelled; the server ends and starts again twice if
    there is a command for that."""
    expected: dict[str, str] = {}
    counts = dict.fromkeys(("answered", "cancelled", "asked again"), 0)
    draw, start = random.Random(0), time.monotonic()

    async def one(text: str, patience: float | None) -> None:
        import httpx

        asked = time.monotonic()
        while True:
            try:
                output, _ = await asyncio.wait_for(client.ask(text), patience)
            except TimeoutError:
                counts["cancelled"] += 1
                return
            except (httpx.TransportError, RuntimeError):  # between two servers
                counts["asked again"] += 1
                if time.monotonic() - asked > PATIENCE:
                    raise
                await asyncio.sleep(0.5)
                continue
            counts["answered"] += 1
            if expected.setdefault(text, output) != output:
                raise RuntimeError(f"another answer to {text!r}")
            return

    async def start_again() -> None:
        status = await (await asyncio.create_subprocess_shell(restart)).wait()
        if status:
            raise RuntimeError(f"--restart {restart}: exit status {status}")

    tasks, restarts = set[asyncio.Task[None]](), 0
    while (passed := time.monotonic() - start) < seconds:
        patience = draw.uniform(0.01, 0.2) if draw.random() < 0.2 else None
        tasks.add(asyncio.create_task(one(draw.choice(texts), patience)))
        if restart and passed > (restarts + 1) * seconds / 3 and restarts < 2:
            restarts += 1
            tasks.add(asyncio.create_task(start_again()))  # requests arrive meanwhile
        await asyncio.sleep(draw.expovariate(rate))
    await asyncio.gather(*tasks)
    await client.settled()
    memory = await client.gauge("process_resident_memory_bytes")
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"soak of {seconds:g} s, {restarts} restarts: {told}; {memory / 2**20:,.0f} MiB", flush=True)


async def measure(given: argparse.Namespace) -> None:
    """What the command line asks for."""
    texts = given.texts.read_text(encoding="utf-8").splitlines()[: given.count]
    client = Client(given.address, given.clients)
    outputs = await load(client, texts, f"{given.clients} clients")
    if given.reference:
        same = sum(map(str.__eq__, outputs, given.reference.read_text(encoding="utf-8").splitlines()))
        print(f"{same:,} of {len(outputs):,} are the lines of {given.reference}", flush=True)
    alone = Client(given.address, 1)
    await load(alone, texts[: max(1, len(texts) // 4)], "one by one")
    for rate in given.rates:
        await arrivals(client, texts, rate, "joined")
        await arrivals(alone, texts, rate, "one by one")
    if given.small:
        await load(client, [SMALL["text"]] * given.small, "small requests")
    if given.disconnects:
        await abuse(client, texts, given.disconnects)
    if given.soak:
        await soak(client, texts, given.soak, given.rate, given.restart)


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each measurement."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("address", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("texts", type=Path, help="a file of sentences")
    parser.add_argument("--count", type=positive, default=200, help="sentences (200)")
    parser.add_argument("--clients", type=positive, default=32, help="requests at the same time (32)")
    parser.add_argument("--reference", type=Path, help="what decode.py writes for the sentences")
    parser.add_argument(
        "--rates", type=positive, nargs="+", default=[], help="requests a second, such as 4 8"
    )
    parser.add_argument("--small", type=int, default=0, help="small requests, such as 10000 (none)")
    parser.add_argument("--disconnects", type=int, default=0, help="clients that leave, such as 1000 (none)")
    parser.add_argument("--soak", type=float, default=0, help="seconds of random requests (none)")
    parser.add_argument("--rate", type=float, default=4, help="requests a second of the soak (4)")
    parser.add_argument("--restart", default="", help="a command that ends the server and starts another one")
    given = parser.parse_args(arguments)
    if given.rate <= 0:
        parser.error("--rate: must be more than 0")
    needs("httpx")

    from benchmarks.measure import machine

    asyncio.run(measure(given))
    print(machine())


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
