"""The Python API for captioning, a decoder whose records are pictures, and what decode.py writes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from transformer.cli.writer import PictureWriter, Texts
from transformer.config.arguments import any_number
from transformer.config.ranges import Option, shown
from transformer.runtime.errors import UserError
from transformer.systems.captioning.system import Captioning
from transformer.tasks.media.pictures import Seen, is_picture
from transformer.tasks.text import Hypothesis
from transformer.translator.decoder import Decoder


class Captioner(Decoder[Captioning]):
    """A trained model that describes pictures. Threads may share it. See `Decoder` for batches and
    programs."""

    reads, does = Captioning, "describe pictures"
    extras = ("alignments",)

    def caption(self, pictures: Seen | Sequence[Seen], **options: Option) -> Any:
        """The caption of a picture (a string), or of each of several (a list).

        Args:
          pictures: files or arrays; one or a list.
          options: any field of `DecodingConfig`, instead of the run's value.

        Raises:
          UserError: a picture cannot be read, or an option is invalid.
        """
        is_one = is_picture(pictures)
        sources: Any = [pictures] if is_one else pictures
        texts = [best.text for (best, *_) in self.search(sources, n_best=1, **options)]
        return texts[0] if is_one else texts

    def search(self, pictures: Sequence[Seen], **options: Any) -> list[list[Hypothesis]]:
        """Captions of each picture, best first.

        Args:
          pictures: as in `caption`.
          options: `n_best`, outputs for each (None: all that the search returns); `alignments=True` for the
            cross-attention of each token, with a column for every patch, row by row; and as in `caption`.
        """
        if isinstance(pictures, Path | str):
            raise UserError(f"search takes a list of pictures: [{shown(pictures)}]")
        sources = any_number("pictures", pictures, "pictures")
        return list(self.stream(map(self.task.seen, sources), **options))


class Captions(PictureWriter, Texts):
    """Captions, with scores, or as JSON. A line is the name of a PNG file."""

    does = "describes pictures"
    can = PictureWriter.can | Texts.can
    loads: ClassVar = Captioner


WRITER = Captions
