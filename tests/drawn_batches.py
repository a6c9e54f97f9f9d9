"""Batches of pictures for systems that see, of any values."""

from typing import Any

import numpy as np

from transformer import Config
from transformer.config.records import PicturesConfig
from transformer.systems.detection.options import BoxesConfig


def with_pictures(config: Config, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch of a system that sees: pictures as the source; for boxes, objects instead of a target. The
    batch itself for another system."""
    if not isinstance(config.data, PicturesConfig):
        return batch
    random, rows, size = np.random.default_rng(2), len(batch["source"]), config.data.picture_size
    pictures = random.uniform(-1, 1, (rows, size, size, 3)).astype(np.float32)
    if not isinstance(config.data, BoxesConfig):
        return {**batch, "source": pictures}
    most = config.data.most_boxes
    is_object = np.arange(most) < random.integers(1, most + 1, rows)[:, None]
    classes = random.integers(0, config.model.vocab_size, (rows, most))
    boxes = random.uniform(0.2, 0.6, (rows, most, 4)) * is_object[..., None]
    return {
        "source": pictures,
        "classes": np.where(is_object, classes, -1).astype(np.int32),
        "boxes": boxes.astype(np.float32),
    }


def small_pictures(kind: type[Any]) -> dict[str, int]:
    """Options that make the pictures of a type of data small; none for other data."""
    return {"picture_size": 8} if issubclass(kind, PicturesConfig) else {}
