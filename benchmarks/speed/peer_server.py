"""CTranslate2's `translate_batch` behind a FastAPI app, to compare `transformer serve` with.

`python -m benchmarks.speed.peer_server FOLDER --port 8001` serves what `transformer export` wrote.
Requests that arrive within 5 ms, or while others are translated, share a batch.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.command import needs, positive, run

TOGETHER, WAIT = 32, 0.005


def main(arguments: list[str] | None = None) -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("folder", type=Path, help="an exported model with its vocabularies")
    parser.add_argument("--port", type=positive, default=8001)
    parser.add_argument("--beam-size", type=positive, default=4)
    parser.add_argument("--threads", type=positive, default=2)
    given = parser.parse_args(arguments)
    needs("ctranslate2", "fastapi", "uvicorn", "sentencepiece")

    import ctranslate2
    import sentencepiece
    import uvicorn
    from fastapi import Body, FastAPI

    model = ctranslate2.Translator(str(given.folder), intra_threads=given.threads)
    processor = sentencepiece.SentencePieceProcessor
    source, target = (processor(str(given.folder / f"{side}.spm")) for side in ("source", "target"))
    queue = asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]]()

    async def search() -> None:
        while True:
            batch = [await queue.get()]
            await asyncio.sleep(WAIT)
            while len(batch) < TOGETHER and not queue.empty():
                batch.append(queue.get_nowait())
            rows = [tokens for tokens, _ in batch]
            results = await asyncio.to_thread(model.translate_batch, rows, beam_size=given.beam_size)
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result.hypotheses[0])

    @contextlib.asynccontextmanager
    async def searching(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(search())
        yield
        task.cancel()

    app = FastAPI(lifespan=searching)

    @app.post("/translate")
    async def translate(text: str = Body(embed=True)) -> dict[str, object]:
        future = asyncio.get_running_loop().create_future()
        await queue.put(([*source.encode(text, out_type=str), "</s>"], future))
        hypothesis = {"text": target.decode_pieces(await future)}
        return {"outputs": [{"hypotheses": [hypothesis]}]}

    uvicorn.run(app, port=given.port, log_level="warning")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
