"""A self-contained page that shows which parts of a sound belong to which token: of recordings that are heard
and of texts that are spoken."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.config import Option
from transformer.data.features.audio import HOP, RATE
from transformer.data.sources.recordings import Recording
from transformer.runs.media import png_of, wav_of
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.tasks.recordings import Recordings, resynthesised, spectrogram
from transformer.tasks.timing import spans
from transformer.translator.attention import forced_attention
from transformer.translator.decoder import Decoder
from transformer.translator.explorer.explorer import UNIT, Explorer, whole
from transformer.translator.explorer.page_files import PageFiles, page_of

FILES = PageFiles(
    "Sound explorer",
    "sounds.html",
    ("sounds.js",),
    ("sounds.css",),
    sources="img-src data:; media-src data:;",
)


def explore_sounds(
    decoder: Decoder[Recordings],
    records: Sequence[Recording],
    *,
    n_best: int | None = None,
    **options: Option,
) -> Explorer:
    """A page with what is heard in recordings, or how texts are spoken: the attention between tokens and
    sound, the spectrogram and the sound.

    Args:
      decoder: a `Transcriber` or a `Synthesizer`.
      records: recordings to hear, or texts to speak, as `Recording`s.
      n_best: outputs of each. None: all that the search returns.
      options: any field of its `DecodingConfig`.

    Raises:
      UserError: there is no record, the system has no alignments, or an option has an invalid value.
    """
    if not records:
        raise UserError("nothing to explore: give a list of recordings or texts")
    settings = decoder.settings(n_best, options)
    records = [decoder.task.as_read(record, settings.buckets[-1]) for record in records]
    results = decoder.decode(records, n_best=n_best, **options)
    data = {
        "unit": UNIT,
        "origin": decoder.origin,
        "stride": decoder.task.stride,
        "records": [
            {
                "title": str(record) if record.name else record.text,
                "outputs": [_output(decoder, record, output) for output in outputs],
            }
            for record, outputs in zip(records, results, strict=True)
        ],
    }
    return Explorer(page_of(data, FILES), len(results), sum(map(len, results)))


def _output(decoder: Decoder[Recordings], record: Recording, output: Any) -> Json:
    """An output with its sound, and the attention between each token and each position of the sound."""
    task = decoder.task
    recording, ids = task.paired(record, output)
    sides = {task.sound: task.frames(recording), task.text: ids}
    alignment = forced_attention(decoder, sides) if len(recording.features) else np.zeros((0, len(ids)))
    if alignment is None:
        raise UserError(f"system {decoder.config.system} has no alignments to explore")
    attention = task.unpadded(recording, alignment if task.sound == "source" else alignment.T)
    tokens, positions = attention.shape
    return {
        "text": task.line(output),
        "tokens": task.tokenizer.pieces(ids),
        "attention": whole(attention),
        "spans": spans(attention) if tokens <= positions else [],
        "seconds": len(recording.features) * HOP / RATE,
        "wav": _base64(wav_of(resynthesised(recording).wave)),
        "png": _base64(png_of(spectrogram("", recording.features).values)) if positions else "",
    }


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")
