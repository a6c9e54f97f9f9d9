"""Pictures with captions or boxes: built-in drawings, and files that a manifest lists."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from transformer.config.records import PicturesConfig
from transformer.data import store
from transformer.data.built_in import drawings
from transformer.data.remote import fetched
from transformer.data.signals.pixels import LIBRARY, read_picture
from transformer.data.sources.corpora import HELD_OUT, HELD_OUT_NOTE, SPLITS, built_in_folder, corpus_folder
from transformer.data.sources.manifests import Annotation, LabelledBox, ListedPicture, read_manifest
from transformer.data.sources.text_files import Damaged, refuse_bad_lines
from transformer.data.store import Corpus, Progress, silent
from transformer.runtime.errors import UserError
from transformer.runtime.files import open_regular, readable

SHARE = 0.1  # of the pictures that is held out, if there is no manifest for validation
MARGIN = 1.0  # pixels by which a box may leave its picture: those of tools that count from 1


@dataclass(frozen=True, eq=False)
class AnnotatedPicture:
    """A picture, and what is known of it."""

    name: str
    """Of the file."""
    pixels: UInt8[np.ndarray, "size size 3"] = field(repr=False)
    """Resized."""
    width: int
    height: int
    """Of the file, in pixels."""
    captions: tuple[str, ...] = ()
    """Texts that describe it; one in training."""
    classes: tuple[str, ...] = ()
    """Of its objects."""
    boxes: Float[np.ndarray, "objects 4"] = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """Of its objects: left, top, width and height, in pixels of the file."""

    def __str__(self) -> str:
        return self.name


class PictureSource(store.Stored):
    """Pictures as they are stored: resized pixels, so that no file is decoded twice."""

    keys = ("name", "pixels", "size", "captions", "classes", "boxes")
    dataset = "pictures"

    @classmethod
    def encoded(cls, *values: Any) -> dict[str, bytes | Sequence[int]]:
        (picture,) = values
        return {
            "name": picture.name.encode(),
            "pixels/shape": picture.pixels.shape,
            "pixels/value": picture.pixels.tobytes(),
            "size": (picture.width, picture.height),
            "captions": "\n".join(picture.captions).encode(),
            "classes": "\n".join(picture.classes).encode(),
            "boxes/shape": picture.boxes.shape,
            "boxes/value": picture.boxes.astype(np.float32).tobytes(),
        }

    @staticmethod
    def decoded(stored: Mapping[str, Any], keys: tuple[str, ...]) -> AnnotatedPicture:
        def array(key: str, dtype: Any) -> np.ndarray:
            values = np.frombuffer(stored[f"{key}/value"].bytes_list.value[0], dtype)
            return values.reshape(stored[f"{key}/shape"].int64_list.value)

        width, height = stored["size"].int64_list.value
        texts = {key: tuple(store.text_of(stored, key).split("\n")) for key in ("captions", "classes")}
        return AnnotatedPicture(
            store.text_of(stored, "name"),
            array("pixels", np.uint8),
            width,
            height,
            texts["captions"] if texts["captions"] != ("",) else (),
            texts["classes"] if texts["classes"] != ("",) else (),
            array("boxes", np.float32),
        )

    @staticmethod
    def features() -> Any:
        of = store.tfds().features
        return of.FeaturesDict(
            {
                "name": of.Text(),
                "pixels": of.Tensor(shape=(None, None, 3), dtype=np.uint8, encoding="bytes"),
                "size": of.Tensor(shape=(2,), dtype=np.int64),
                "captions": of.Text(),
                "classes": of.Text(),
                "boxes": of.Tensor(shape=(None, 4), dtype=np.float32, encoding="bytes"),
            }
        )


def libraries_of(data: PicturesConfig) -> tuple[str, ...]:
    """The libraries that preparing these pictures needs and that are not always installed."""
    return (LIBRARY,) if any(getattr(data, split) for split in SPLITS) else ()


def check_manifests(data: PicturesConfig, annotation: Annotation) -> None:
    """Raises UserError if manifests are missing, or name files that are not there."""
    splits = [split for split in SPLITS if getattr(data, split)]
    for split in splits:
        read_manifest(getattr(data, split), annotation)
    refuse_bad_lines()
    if splits and "train" not in splits:
        raise UserError("no training pictures: give --data.train")


def open_pictures(data: PicturesConfig, annotation: Annotation, progress: Progress = silent) -> Corpus:
    """The pictures of the config, resized on first use.

    Args:
      data: options of the pictures.
      annotation: which of them is read.
      progress: shows the progress.

    Raises:
      UserError: a manifest or a picture is missing or damaged (the message names its line).
    """
    if any(getattr(data, split) for split in SPLITS):
        return _manifests(data, annotation, progress)
    return _built_in(data, progress)


def picture(path: Path, data: PicturesConfig) -> AnnotatedPicture:
    """A picture from a file. Raises UserError as `read_picture`."""
    pixels, (width, height) = read_picture(path, data.picture_size)
    return AnnotatedPicture(readable(path.name), pixels, width, height)


def _built_in(data: PicturesConfig, progress: Progress) -> Corpus:
    held_out = min(HELD_OUT, max(10, data.built_in_size // 8))
    sizes = {"train": data.built_in_size, "validation": held_out, "test": held_out}
    kind = data.picture_size, data.fewest_shapes, data.most_shapes
    folder = built_in_folder(data.cache_dir, "drawings", drawings.VERSION, sizes, kind)

    def split(name: str) -> Callable[[], Iterator[tuple[Any, ...]]]:
        def drawn() -> Iterator[tuple[Any, ...]]:
            for index in progress(f"drawing, {name}", range(sizes[name]), sizes[name]):
                yield (_drawn(name, index, data),)

        return drawn

    prepared = store.prepare(folder, {name: split(name) for name in SPLITS}, PictureSource)
    return Corpus("built-in drawings", prepared, folder)


def _drawn(split: str, index: int, data: PicturesConfig) -> AnnotatedPicture:
    size = data.picture_size
    drawing = drawings.drawing(SPLITS.index(split), index, size, data.fewest_shapes, data.most_shapes)
    captions = drawings.captions(drawing.shapes)
    classes = tuple(shape.form for shape in drawing.shapes)
    one = (captions[index % len(captions)],) if split == "train" else captions
    return AnnotatedPicture(f"{split}-{index}", drawing.pixels, size, size, one, classes, drawing.boxes)


def _manifests(data: PicturesConfig, annotation: Annotation, progress: Progress) -> Corpus:
    check_manifests(data, annotation)
    lists = {
        split: read_manifest(getattr(data, split), annotation) for split in SPLITS if getattr(data, split)
    }
    digests = {path: _digest(path) for path in {item.path for some in lists.values() for item in some}}
    note = ""
    if "validation" not in lists:
        note = HELD_OUT_NOTE.replace("text", "manifest", 1).replace("text", "pictures")
        lists |= _parted(data.train, lists["train"], digests)
    content = {
        split: [(digests[item.path], item.captions, item.boxes) for item in some]
        for split, some in lists.items()
    }
    folder = corpus_folder(data.cache_dir, "pictures", content, data.picture_size)
    damaged = Damaged()

    def split(name: str) -> Callable[[], Iterator[tuple[Any, ...]]]:
        def read() -> Iterator[tuple[Any, ...]]:
            for item in progress(f"reading, {name}", lists[name], len(lists[name])):
                try:
                    whole = _annotated(item, data)
                except UserError as error:
                    manifest, _, number = item.where.rpartition(", line ")
                    damaged.add(Path(manifest), int(number), error)
                    continue
                if name != "train" or annotation != "captions":
                    yield (whole,)
                    continue
                for caption in item.captions:  # each is an example
                    yield (AnnotatedPicture(**vars(whole) | {"captions": (caption,)}),)
            refuse_bad_lines()

        return read

    prepared = store.prepare(folder, {name: split(name) for name in lists}, PictureSource)
    damaged.note(folder)
    return Corpus(str(data.train), prepared, folder, note)


def _annotated(item: ListedPicture, data: PicturesConfig) -> AnnotatedPicture:
    try:
        read = picture(item.path, data)
        for label, box in item.boxes:
            _check_inside(LabelledBox(label, box), read)
    except UserError as error:
        raise UserError(f"{item.where}: {error}") from error
    boxes = np.array([box for _, box in item.boxes], np.float32).reshape(-1, 4)
    classes = tuple(label for label, _ in item.boxes)
    return AnnotatedPicture(**vars(read) | {"captions": item.captions, "classes": classes, "boxes": boxes})


def _check_inside(labelled: LabelledBox, read: AnnotatedPicture) -> None:
    left, top, width, height = labelled.box
    is_inside = min(left, top) >= -MARGIN
    if not (is_inside and left + width <= read.width + MARGIN and top + height <= read.height + MARGIN):
        raise UserError(
            f"the box {[left, top, width, height]} leaves the picture, {read.width} x {read.height} pixels: "
            "it must be left, top, width and height"
        )


def _parted(
    manifest: Path | None, some: list[ListedPicture], digests: Mapping[Path, str]
) -> dict[str, list[ListedPicture]]:
    """Pictures for training and validation: held out are those with the smallest hashes."""
    different = sorted({digests[item.path] for item in some})
    count = min(HELD_OUT, math.ceil(SHARE * len(different)))
    if count == len(different):
        raise UserError(f"{manifest} lists too few pictures to hold some out: give --data.validation")
    held_out = set(different[:count])
    return {
        "train": [item for item in some if digests[item.path] not in held_out],
        "validation": [item for item in some if digests[item.path] in held_out],
    }


def _digest(path: Path) -> str:
    with open_regular(fetched(path)) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
