"""How long single requests take that arrive at random: joined in one search, or one after the other.

`python -m benchmarks.speed.latency RUN` sends test sentences as a server would get them, at random moments (a
Poisson process). `Translator.submit` lets each join the search that is running; the other way, each waits for
those before it. Both get the same sentences at the same moments.
"""

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from benchmarks.command import positive, run


def waits(send: Callable[[str], "Future[object]"], sentences: list[str], rate: float) -> list[float]:
    """The seconds from the arrival of each sentence to its translation, the shortest first."""
    draw, took, done = random.Random(0), list[float](), threading.Semaphore(0)
    for sentence in sentences:
        time.sleep(draw.expovariate(rate))
        arrived = time.monotonic()

        def note(_: "Future[object]", arrived: float = arrived) -> None:
            took.append(time.monotonic() - arrived)
            done.release()

        send(sentence).add_done_callback(note)
    for _ in sentences:
        done.acquire()
    return sorted(took)


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each way and rate."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--count", type=positive, default=100, help="sentences at each rate")
    parser.add_argument("--rates", type=positive, nargs="+", default=[4, 8, 16], help="a second")
    given = parser.parse_args(arguments)

    from benchmarks.measure import machine
    from benchmarks.runs import sentences
    from transformer import Translator

    translator, texts = Translator.load(given.run), sentences(given.run, given.count)
    translator.warm_up()
    with ThreadPoolExecutor(1) as one:
        ways = {
            "joined": translator.submit,
            "one by one": lambda text: one.submit(translator.translate, [text]),
        }
        for rate in given.rates:
            for name, send in ways.items():
                found = waits(send, texts, rate)
                at = [statistics.median(found), found[int(0.95 * len(found))], found[-1]]
                told = ", ".join(f"{x * 1e3:,.0f} ms" for x in at)
                print(f"{rate} a second, {name}: median, 95 %, longest: {told}", flush=True)
    print(machine())


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
