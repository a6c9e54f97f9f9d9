"""Built-in corpora for pointer networks: the words of an answer are words of the line.

    sorting        17 4 88 4               4 4 17 88
    convex-hull    c7 a1 e2 b3 d9          a1 e2 d9 c7

sorting: numbers from 0 to 99, in ascending order; a number may be repeated. convex-hull: different points of
a 16 x 16 grid; the column is a letter from a to p, the row a number from 1 to 16, upwards. The answer has the
vertices of the hull counter-clockwise, from the leftmost, and of these the lowest, point. Points inside an
edge are not vertices, so the hull of points on one line has its two ends.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from transformer.data.built_in.dialogue import SHARES, split_of
from transformer.runtime.errors import UserError

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
Pair = tuple[str, str]
Point = tuple[int, int]
LENGTHS = range(5, 13)  # words of a line, unless asked otherwise
LARGEST = 99
SIDE = 16
COLUMNS = "abcdefghijklmnop"


def sorting(chance: random.Random, length: int) -> Pair:
    """Numbers, and the same in order."""
    numbers = [chance.randint(0, LARGEST) for _ in range(length)]
    return " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers)))


def convex_hull(chance: random.Random, length: int) -> Pair:
    """Points, and the vertices of their hull."""
    cells = chance.sample(range(SIDE * SIDE), length)
    points = [divmod(cell, SIDE) for cell in cells]
    return " ".join(map(name, points)), " ".join(map(name, hull(points)))


def name(point: Point) -> str:
    """The word of a point: (2, 6) is c7."""
    return f"{COLUMNS[point[0]]}{point[1] + 1}"


def hull(points: Sequence[Point]) -> list[Point]:
    """The vertices of the convex hull, counter-clockwise from the smallest point (Andrew 1979).

    Args:
      points: different points, at least one.
    """
    ordered = sorted(points)
    below, above = _chain(ordered), _chain(ordered[::-1])
    return below[:-1] + above[:-1] or ordered


def _chain(ordered: Sequence[Point]) -> list[Point]:
    """Half of a hull, from the first point to the last: every turn goes left."""
    hull: list[Point] = []
    for point in ordered:
        while len(hull) > 1 and turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def turn(a: Point, b: Point, c: Point) -> int:
    """Twice the area of a triangle: positive if a, b, c turn left, 0 if they are on one line."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


TASKS: dict[str, Callable[[random.Random, int], Pair]] = {"sorting": sorting, "convex-hull": convex_hull}


def pairs(task: str, split: str, seed: int = 0, lengths: Sequence[int] = LENGTHS) -> Iterator[Pair]:
    """Yields lines and answers endlessly, the same for the same arguments, without repeating a line.

    Args:
      task: "sorting" or "convex-hull".
      split: "train", "validation" or "test". A hash of the words, whatever their order, decides in which
        split a line is.
      seed: of the random numbers.
      lengths: the numbers of words to choose from. There must be far more lines of these lengths than are
        taken; convex-hull has lines of up to 256 words.

    Raises:
      UserError: there is no such task or split.
    """
    if task not in TASKS or split not in SHARES:
        raise UserError(
            f"no {split} split of the corpus {task}: there are {', '.join(TASKS)}, each with "
            f"{', '.join(SHARES)}"
        )
    chance, seen = random.Random(f"{task} {split} {seed}"), set[str]()
    while True:
        source, target = TASKS[task](chance, chance.choice(lengths))
        if source not in seen and split_of(" ".join(sorted(source.split()))) == split:
            seen.add(source)
            yield source, target
