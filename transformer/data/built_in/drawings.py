"""Built-in drawings of shapes, with captions and boxes: what a small model of pictures can learn in minutes.

A drawing depends on the split, its index and the options alone.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
FORMS = ("circle", "cross", "square", "triangle")
"""The classes of the boxes."""
COLOURS = {
    "red": (205, 45, 45),
    "green": (40, 150, 60),
    "blue": (45, 80, 205),
    "yellow": (225, 190, 30),
    "black": (30, 30, 30),
}
SIZES = {"small": (0.09, 0.12), "large": (0.18, 0.21)}
"""Half of the height and width, as a share of those of the picture."""
TRIES = 50
"""For a position at which a shape touches no other."""
BETWEEN = 1.0
"""Pixels between the boxes of two shapes, at least."""
CLEAR = 0.12
"""By how much two shapes are further apart in one direction than in the other, as a share of the picture: it
is clear whether one is left of the other, or above it."""


class Shape(NamedTuple):
    """A shape, and where it is in its picture, in pixels."""

    size: str
    colour: str
    form: str
    x: float
    y: float
    """Vertical position of the centre; `x` is the horizontal one."""
    radius: float
    """Half of its height and width."""

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.form}"


class Drawing(NamedTuple):
    """A picture of shapes."""

    pixels: UInt8[np.ndarray, "height width 3"]
    shapes: tuple[Shape, ...]
    boxes: Float[np.ndarray, "shapes 4"]
    """The box of each shape: left, top, width and height, in pixels."""


def drawing(split: int, index: int, size: int, fewest: int, most: int) -> Drawing:
    """A drawing of `fewest` to `most` shapes, as many as fit.

    Args:
      split: number of the split.
      index: in the split.
      size: height and width in pixels.
      fewest: shapes.
      most: shapes.
    """
    random = np.random.default_rng((split, index))
    background = random.uniform(190, 245) + random.normal(0, 6, (size, size, 3))
    pixels = background + random.uniform(-8, 8, 3)
    shapes: list[Shape] = []
    boxes = []
    for _ in range(random.integers(fewest, most + 1)):
        for _ in range(TRIES):
            shape = _shape(random, size)
            mask = _mask(shape, size)
            if mask.any() and all(_is_clear(shape, other, size) for other in shapes):
                noise = random.normal(0, 6, (int(mask.sum()), 3))
                pixels[mask] = np.array(COLOURS[shape.colour]) + random.uniform(-15, 15, 3) + noise
                shapes.append(shape)
                boxes.append(_box(mask))
                break
    whole = np.clip(pixels.round(), 0, 255).astype(np.uint8)
    return Drawing(whole, tuple(shapes), np.array(boxes, np.float32).reshape(-1, 4))


def captions(shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Every description of shapes that the grammar has: of two from either side, of others from left to
    right."""
    if len(shapes) == 2:
        first, second = shapes
        across, down = second.x - first.x, second.y - first.y
        after, before = ("left of", "right of") if abs(across) > abs(down) else ("above", "below")
        if (across if abs(across) > abs(down) else down) < 0:
            after, before = before, after
        return f"{first} {after} {second}", f"{second} {before} {first}"
    texts = [str(shape) for shape in sorted(shapes, key=lambda shape: shape.x)]
    if not texts:
        return ("nothing",)
    return (" and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))),)


def _shape(random: np.random.Generator, size: int) -> Shape:
    """A shape that is wholly in a picture."""
    name = str(random.choice([*SIZES]))
    radius = size * random.uniform(*SIZES[name])
    x, y = random.uniform(radius, size - radius, 2)
    return Shape(name, str(random.choice([*COLOURS])), str(random.choice(FORMS)), x, y, radius)


def _is_clear(shape: Shape, other: Shape, size: int) -> bool:
    """Whether two shapes are apart, and it is clear in which direction."""
    across, down = abs(shape.x - other.x), abs(shape.y - other.y)
    are_apart = max(across, down) >= shape.radius + other.radius + BETWEEN
    return are_apart and abs(across - down) >= CLEAR * size


def _mask(shape: Shape, size: int) -> Bool[np.ndarray, "height width"]:
    """The pixels whose centres are in a shape."""
    centres = np.arange(size) + 0.5
    across, down = (centres - shape.x)[None, :] / shape.radius, (centres - shape.y)[:, None] / shape.radius
    inside = np.maximum(np.abs(across), np.abs(down)) <= 1
    match shape.form:
        case "circle":
            return inside & (across**2 + down**2 <= 1)
        case "cross":
            return inside & (np.minimum(np.abs(across), np.abs(down)) <= 0.34)
        case "triangle":
            return inside & (np.abs(across) <= (down + 1) / 2)
        case _:
            return inside


def _box(mask: Bool[np.ndarray, "height width"]) -> list[int]:
    """Left, top, width and height of the pixels of a mask."""
    spans = []
    for axis in (0, 1):
        filled = np.flatnonzero(mask.any(axis=axis))
        spans.append((int(filled[0]), int(filled[-1] - filled[0] + 1)))
    return list(itertools.chain(*zip(*spans, strict=True)))
