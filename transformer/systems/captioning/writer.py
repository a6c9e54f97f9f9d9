"""A caption of each picture that the input lists."""

from typing import ClassVar

from transformer.cli.writer import PictureWriter, Texts
from transformer.systems.captioning.api import Captioner


class Captions(PictureWriter, Texts):
    """Captions, with scores, or as JSON. A line is the name of a PNG file."""

    does = "describes pictures"
    can = PictureWriter.can | Texts.can
    loads: ClassVar = Captioner


WRITER = Captions
