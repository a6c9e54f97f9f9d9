"""A self-contained page that shows what a model sees in pictures: the words of a caption with the patches
that they attend to, or objects with their boxes."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.config import Option
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.runs.media import png_of
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.tasks.pictures import Located, Pictures
from transformer.translator.decoder import Decoder
from transformer.translator.explorer.explorer import UNIT, Explorer, whole
from transformer.translator.explorer.page_files import PageFiles, page_of
from transformer.translator.search_outputs import Extras

FILES = PageFiles("Picture explorer", "seen.html", ("seen.js",), ("seen.css",), sources="img-src data:;")


def explore_pictures(
    decoder: Decoder[Pictures],
    records: Sequence[AnnotatedPicture],
    *,
    n_best: int | None = None,
    **options: Option,
) -> Explorer:
    """A page with what is seen in pictures, and where.

    Args:
      decoder: a `Captioner` or a `Detector`.
      records: pictures, such as `decoder.task.seen("a.png")`.
      n_best: outputs of each. None: all that the search returns.
      options: any field of its `DecodingConfig`.

    Raises:
      UserError: there is no picture, or an option has an invalid value.
    """
    if not records:
        raise UserError("nothing to explore: give a list of pictures")
    task, settings = decoder.task, decoder.settings(n_best, options)
    extras = Extras(alignments=decoder.system.alignment is not None)
    results = list(decoder.outputs(enumerate(records, 1), settings, n_best, extras))
    data = {
        "unit": UNIT,
        "origin": decoder.origin,
        "threshold": task.threshold(settings),
        "records": [
            {
                "title": record.name,
                "png": b64encode(png_of(record.pixels / 255)).decode("ascii"),
                "width": record.width,
                "height": record.height,
                "reference": task.shown(record, task.scored(outputs[0]))[1],
                "outputs": [
                    {"text": task.line(output), "parts": list(map(_part, task.located(record, output)))}
                    for output in outputs
                ],
            }
            for record, outputs in zip(records, results, strict=True)
        ],
    }
    return Explorer(page_of(data, FILES), len(results), sum(map(len, results)))


def _part(part: Located) -> Json:
    about: dict[str, Any] = {"text": part.text, "patches": whole(np.array(part.patches))}
    if part.box is not None:
        about["box"] = [round(side, 4) for side in part.box]
    if part.probability is not None:
        about["probability"] = round(part.probability, 4)
    return about
