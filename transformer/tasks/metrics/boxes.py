"""Average precision of boxes, as COCO defines it (Lin et al. 2014, section 5, and its evaluation server).

Boxes are left, top, width and height.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from transformer.tasks.metrics.scores import Score, percentage

AP, AP50 = percentage("map", "mAP@0.5:0.95"), percentage("map50", "mAP@0.5")
THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
"""Thresholds of IoU from which a box is right, to the last bit those of COCO's program."""
RECALLS = np.linspace(0, 1, 101)
"""The recalls at which precision is averaged."""
MOST = 100
"""The boxes of a picture and class that count: those with the highest scores."""


class Objects(NamedTuple):
    """The objects of a picture."""

    classes: Sequence[str]
    boxes: Float[np.ndarray, "n 4"]


class Detections(NamedTuple):
    """What was found in a picture."""

    classes: Sequence[str]
    boxes: Float[np.ndarray, "n 4"]
    scores: Float[np.ndarray, " n"]


def iou(a: Float[np.ndarray, "n 4"], b: Float[np.ndarray, "m 4"]) -> Float[np.ndarray, "n m"]:
    """Intersection over union of each box of `a` with each of `b`."""
    a, b = a[:, None].astype(np.float64), b[None].astype(np.float64)
    start = np.maximum(a[..., :2], b[..., :2])
    end = np.minimum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    shared = np.prod(np.maximum(end - start, 0), axis=-1)
    union = np.prod(a[..., 2:], axis=-1) + np.prod(b[..., 2:], axis=-1) - shared
    return shared / np.maximum(union, np.finfo(np.float64).tiny)


def average_precision(
    detected: Sequence[Detections], expected: Sequence[Objects], thresholds: Sequence[float] = THRESHOLDS
) -> Score:
    """Mean average precision over classes and IoU thresholds, out of 100. Classes without an object do not
    count; without any object it is 0.

    Args:
      detected: in each picture.
      expected: in each picture.
      thresholds: of IoU.
    """
    labels = sorted({label for objects in expected for label in objects.classes})
    values = {label: float(_of_class(label, detected, expected, thresholds).mean()) for label in labels}
    mean = 100 * float(np.mean(list(values.values()))) if values else 0.0
    span = f"{thresholds[0]:.2f}" + (f":{thresholds[-1]:.2f}" if len(thresholds) > 1 else "")
    signature = f"iou:{span}|classes:{len(labels)}|boxes:{MOST}|recalls:{len(RECALLS)}"
    detail = ", ".join(f"{label} {100 * value:.2f}" for label, value in values.items())
    return Score(mean, signature, f"mAP = {mean:.2f} ({detail})" if detail else "no objects")


def _of_class(
    label: str, detected: Sequence[Detections], expected: Sequence[Objects], thresholds: Sequence[float]
) -> Float[np.ndarray, " thresholds"]:
    """The average precision of a class at each threshold."""
    scores, right = [], []
    count = 0
    for detections, objects in zip(detected, expected, strict=True):
        chosen = np.flatnonzero([found_label == label for found_label in detections.classes])
        order = chosen[np.argsort(-detections.scores[chosen], kind="stable")][:MOST]
        of_class = np.flatnonzero([found_label == label for found_label in objects.classes])
        overlaps = iou(detections.boxes[order], objects.boxes[of_class])
        count += len(of_class)
        scores.append(detections.scores[order])
        right.append(np.array([_is_right(overlaps, threshold) for threshold in thresholds]))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return np.array([_area(row[order], count) for row in np.concatenate(right, axis=1)])


def _is_right(overlaps: Float[np.ndarray, "n m"], threshold: float) -> Bool[np.ndarray, " n"]:
    """Which boxes are right, the best first: each takes the free object that it overlaps most."""
    is_free = np.ones(overlaps.shape[1], bool)
    right = np.zeros(overlaps.shape[0], bool)
    for index, row in enumerate(overlaps):
        free = np.where(is_free, row, -1)
        if len(free) and free.max() >= min(threshold, 1 - 1e-10):
            best = len(free) - 1 - int(np.argmax(free[::-1]))  # the last of equals, as COCO's program has it
            is_free[best], right[index] = False, True
    return right


def _area(right: Bool[np.ndarray, " n"], count: int) -> float:
    """The mean over recalls of the highest precision at that recall or a higher one."""
    true = np.cumsum(right)
    precision = true / np.arange(1, len(right) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    index = np.searchsorted(true / count, RECALLS, side="left")
    return float(np.where(index < len(highest), np.append(highest, 0.0)[index], 0.0).mean())
