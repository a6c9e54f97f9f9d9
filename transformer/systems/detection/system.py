"""Detection: pictures in, the boxes and classes of their objects out."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.data.built_in.drawings import FORMS
from transformer.data.sequences import Example, Field
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.data.store import Corpus, Progress, silent
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError
from transformer.runtime.files import parse_json, read_text, write_whole
from transformer.systems.detection.model import (
    NO_OBJECT,
    DetectionTransformer,
    Found,
    detection_objective,
    detection_search,
)
from transformer.systems.detection.options import BoxesConfig, DetectionConfig
from transformer.systems.system import System
from transformer.tasks.exhibit import ReportSample
from transformer.tasks.media.pictures import Located, Pictures, enlarged, shown_picture
from transformer.tasks.metrics.boxes import AP, AP50, Detections, Objects, average_precision
from transformer.tasks.metrics.scores import Metric, Score
from transformer.tasks.outputs import Plain
from transformer.tasks.task import Evaluation

# Detection: pictures in, the boxes and classes of their objects out.


FILE = "classes.json"
PALETTE = ((0.9, 0.1, 0.1), (0.1, 0.3, 0.9), (0.0, 0.6, 0.2), (0.8, 0.4, 0.0), (0.5, 0.1, 0.7))
"""Colours of boxes, by class."""


@dataclass(frozen=True, eq=False)
class DetectedObject(Plain):
    """An object that was found in a picture."""

    label: str
    """The class of the object."""
    score: float
    """Probability of the class."""
    box: tuple[float, float, float, float]
    """Left, top, width and height, in pixels of the picture's file."""


@dataclass(frozen=True, eq=False)
class DetectedObjects(Plain):
    """What was found in a picture. `json.dumps(objects.to_dict())` writes it as JSON."""

    written = ("objects",)

    objects: tuple[DetectedObject, ...]
    """The objects whose score reaches the threshold, the most probable first."""
    others: tuple[DetectedObject, ...] = ()
    """The objects below the threshold, which scores count too."""


class Detection(Pictures):
    """Finds the objects of pictures.

    Args:
      config: of the run.
      labels: the names of the classes.
    """

    criterion = AP
    learned = "classes"
    annotation: ClassVar[Any] = "boxes"
    writer = "transformer.systems.detection.api"
    service = "transformer.systems.detection.service"

    def __init__(self, config: Config, labels: Sequence[str] = ()) -> None:
        super().__init__(config)
        self.labels = tuple(labels)
        limit = boxes_of(config).most_boxes
        self.fields = {
            "source": self.picture_field,
            "classes": Field(fill=NO_OBJECT, shape=(limit,), padded=False),
            "boxes": Field("float32", shape=(limit, 4), padded=False),
        }

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError as that of pictures, or if a picture may have more boxes than queries."""
        super().check(config)
        data, queries = boxes_of(config), _model(config).num_queries
        if data.most_boxes > queries:
            raise UserError(
                f"--data.most-boxes {data.most_boxes} is more than --model.num-queries {queries}: each box "
                "needs a query"
            )
        if not data.train and data.most_shapes > data.most_boxes:
            raise UserError(
                f"--data.most-shapes {data.most_shapes} is more than --data.most-boxes {data.most_boxes}: "
                "raise that"
            )

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> "Detection":
        """A task with the classes of the training pictures."""
        pictures = corpus.splits["train"]
        labels: set[str] = set()
        for picture in progress("reading the classes", pictures, len(pictures)):
            labels.update(picture.classes)
        if not labels:
            raise UserError(f"{corpus.name}: no training picture has a box")
        return cls(_with_classes(config, len(labels)), sorted(labels))

    @classmethod
    def load(cls, config: Config, folder: Path) -> "Detection":
        """A task with the classes of a run directory."""
        path = folder / FILE
        try:
            labels = parse_json(read_text(path))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path}: the classes cannot be read: {error}; copy it from where the run was made"
            ) from error
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise UserError(f"{path}: must be a list of names of classes")
        if len(labels) != config.model.vocab_size:
            raise UserError(
                f"{path} has {len(labels):,} classes but config.json expects "
                f"{config.model.vocab_size:,}: they do not belong together"
            )
        return cls(config, labels)

    @classmethod
    def without_corpus(cls, config: Config) -> "Detection":
        """A task with as many classes as the options say, or the built-in drawings have."""
        size = config.model.vocab_size or len(FORMS)
        return cls(_with_classes(config, size), [f"class {index}" for index in range(size)])

    def save(self, folder: Path) -> None:
        write_whole(folder / FILE, json.dumps(self.labels, ensure_ascii=False))

    def content(self) -> bytes:
        return json.dumps(self.labels).encode()

    # To batches

    @staticmethod
    def example(config: Config) -> Arguments:
        """The shape of a picture."""
        size = boxes_of(config).picture_size
        return (jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32),)

    @property
    def drops(self) -> str:
        return "none is"

    def examples(self, records: Sequence[AnnotatedPicture], *, truncate: bool = False) -> list[Example]:
        """The pictures, and their classes and boxes.

        Raises:
          UserError: a picture has too many boxes, or a class that no training picture has.
        """
        return [
            {"source": self.pixels(record), "classes": classes, "boxes": boxes}
            for record in records
            for classes, boxes in [self._targets(record)]
        ]

    def _targets(self, record: AnnotatedPicture) -> tuple[np.ndarray, np.ndarray]:
        """The classes of a picture, padded by -1, and the boxes: centre, width and height, as shares."""
        limit, count = boxes_of(self.config).most_boxes, len(record.classes)
        if count > limit:
            raise UserError(f"{record.name}: it has {count:,} boxes: raise --data.most-boxes, now {limit}")
        if unknown := [label for label in record.classes if label not in self.labels]:
            raise UserError(f"{record.name}: no training picture has the class {unknown[0]!r} of its box")
        classes = np.full(limit, NO_OBJECT, np.int32)
        classes[:count] = [self.labels.index(label) for label in record.classes]
        boxes = np.zeros((limit, 4), np.float32)
        start, size = record.boxes[:, :2], record.boxes[:, 2:]
        boxes[:count] = np.concatenate([start + size / 2, size], axis=1) / _scale(record)
        return classes, boxes

    # From decoding

    def outputs(self, result: Found, record: AnnotatedPicture, n_best: int | None) -> list[DetectedObjects]:
        """The objects of a picture."""
        centre, size = result.boxes[:, :2], result.boxes[:, 2:]
        boxes = np.concatenate([centre - size / 2, size], axis=1) * _scale(record)
        objects = tuple(
            DetectedObject(self.labels[label], score, (left, top, width, height))
            for label, score, (left, top, width, height) in zip(
                result.classes.tolist(), result.scores.tolist(), boxes.tolist(), strict=True
            )
        )
        count = int(result.is_shown.sum())
        return [DetectedObjects(objects[:count], objects[count:])]

    def scored(self, output: DetectedObjects) -> list[tuple[str, float, list[float]]]:
        """Class, score and box of every object."""
        return [(item.label, item.score, [*item.box]) for item in (*output.objects, *output.others)]

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Mean average precision, over thresholds of IoU and at the lowest."""

        def of(*thresholds: float) -> Callable[[Evaluation], Score]:
            def score(evaluation: Evaluation) -> Score:
                detected = [
                    Detections(
                        [label for label, _, _ in items],
                        np.array([box for _, _, box in items], np.float64).reshape(-1, 4),
                        np.array([score for _, score, _ in items], np.float64),
                    )
                    for items in evaluation.outputs
                ]
                expected = [Objects(record.classes, record.boxes) for record in evaluation.records]
                return average_precision(detected, expected, *[thresholds] * bool(thresholds))

            return score

        return {AP: of(), AP50: of(0.5)}

    def shown(
        self, record: AnnotatedPicture, output: list[tuple[str, float, list[float]]]
    ) -> tuple[str, str, str]:
        """The picture's name, its objects and those that were found."""
        threshold = self.config.decoding.threshold  # type: ignore[attr-defined]
        labels = [label for label, score, _ in output if score >= threshold]
        return record.name, ", ".join(sorted(record.classes)), ", ".join(sorted(labels))

    # For the explorer

    def located(self, record: AnnotatedPicture, output: DetectedObjects) -> list[Located]:
        """The objects, also those below the threshold."""
        scale = _scale(record).tolist()
        located = []
        for item in (*output.objects, *output.others):
            left, top, width, height = (side / size for side, size in zip(item.box, scale, strict=True))
            located.append(Located(item.label, box=(left, top, width, height), probability=item.score))
        return located

    def threshold(self, settings: DecodingConfig) -> float:
        return settings.threshold  # type: ignore[attr-defined, no-any-return]

    # For the report

    def exhibit(
        self, record: AnnotatedPicture, output: DetectedObjects, attention: Float[np.ndarray, "t s"] | None
    ) -> ReportSample:
        """The picture with its boxes, and with those that were found."""
        expected = list(zip(record.classes, record.boxes.tolist(), strict=True))
        detected = [(item.label, [*item.box]) for item in output.objects]
        return ReportSample(
            title=record.name,
            texts={
                "objects": ", ".join(record.classes) or "none",
                "found": ", ".join(f"{item.label} {item.score:.2f}" for item in output.objects) or "none",
            },
            pictures=(
                shown_picture("with its boxes", self.outlined(record, expected)),
                shown_picture("with the boxes found", self.outlined(record, detected)),
            ),
        )

    def outlined(
        self, record: AnnotatedPicture, objects: Sequence[tuple[str, Sequence[float]]]
    ) -> Float[np.ndarray, "height width 3"]:
        """A picture with boxes, each in the colour of its class."""
        canvas, factor = enlarged(record.pixels)
        side = len(record.pixels) * factor
        scale = np.tile([side / record.width, side / record.height], 2)
        for label, box in objects:
            left, top, width, height = np.array(box) * scale
            ends = [left, top, left + width, top + height]
            x, y, right, bottom = np.clip(np.round(ends).astype(int), 0, side - 1).tolist()
            colour = PALETTE[self.labels.index(label) % len(PALETTE)] if label in self.labels else (0, 0, 0)
            for line in (slice(y, y + 2), slice(bottom - 1, bottom + 1)):
                canvas[line, x : right + 1] = colour
            for line in (slice(x, x + 2), slice(right - 1, right + 1)):
                canvas[y : bottom + 1, line] = colour
        return canvas

    # Lines out

    def line(self, output: DetectedObjects) -> str:
        """Class, score, left, top, width and height of each object, which semicolons separate."""
        return "; ".join(
            f"{item.label} {item.score:.2f} {' '.join(f'{side:.1f}' for side in item.box)}"
            for item in output.objects
        )


def boxes_of(config: Config) -> BoxesConfig:
    """The options of the pictures of a config."""
    assert isinstance(config.data, BoxesConfig)
    return config.data


def _model(config: Config) -> DetectionConfig:
    assert isinstance(config.model, DetectionConfig)
    return config.model


def _with_classes(config: Config, count: int) -> Config:
    """The config, with the number of classes.

    Raises:
      UserError: it has another.
    """
    if config.model.vocab_size not in (0, count):
        raise UserError(
            f"--model.vocab-size {config.model.vocab_size} but the pictures have {count} classes: leave it "
            "out"
        )
    return replace(config, model=replace(config.model, vocab_size=count))


def _scale(record: AnnotatedPicture) -> Float[np.ndarray, " 4"]:
    """Width and height of a picture, twice."""
    return np.array([record.width, record.height] * 2, np.float32)


SYSTEM = System(
    model=DetectionTransformer,
    objective=lambda config, _: detection_objective(config),
    search=detection_search,
    task=Detection,
)
