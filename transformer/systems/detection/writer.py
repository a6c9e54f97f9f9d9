"""The objects of each picture that the input lists."""

from typing import ClassVar

from transformer.cli.writer import PictureWriter
from transformer.systems.detection.api import Detector


class Objects(PictureWriter):
    """The objects of pictures in a line each, or as JSON."""

    does = "finds objects in pictures"
    formats = ("text", "json")
    loads: ClassVar = Detector


WRITER = Objects
