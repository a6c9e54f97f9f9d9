"""Scores of boxes against COCO's program, and generalised IoU and matching against plain programs."""

import contextlib
import io
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from transformer.systems.detection.model import generalised_iou, matched_queries
from transformer.tasks.metrics.boxes import Detections, Objects, average_precision, iou

LABELS = ("cat", "dog", "bird")


def drawn_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    """Left, top, width and height in whole pixels, of which many overlap."""
    return np.concatenate([random.integers(0, 30, (count, 2)), random.integers(3, 25, (count, 2))], axis=1)


def drawn_pictures(seed: int, pictures: int) -> tuple[list[Detections], list[Objects]]:
    """Objects, and detections that are near some of them. Some pictures have none."""
    random = np.random.default_rng(seed)
    found, expected = [], []
    for _ in range(pictures):
        count = int(random.integers(0, 5))
        boxes = drawn_boxes(random, count)
        classes = random.choice(LABELS, count).tolist()
        moved = boxes.astype(float)
        moved[:, :2] += random.integers(-2, 3, (count, 2))
        others = drawn_boxes(random, int(random.integers(0, 4)))
        near = np.concatenate([moved, moved[::2], others]).astype(float)
        labels = [*classes, *classes[::2], *random.choice(LABELS, len(others)).tolist()]
        scores = random.integers(1, 40, len(near)) / 40  # some are equal
        found.append(Detections(labels, near, scores))
        expected.append(Objects(classes, boxes.astype(float)))
    return found, expected


def by_coco(found: list[Detections], expected: list[Objects]) -> tuple[float, float]:
    """mAP@0.5:0.95 and mAP@0.5 of COCO's program."""
    annotations, results = [], []
    for picture, (detections, objects) in enumerate(zip(found, expected, strict=True)):
        for label, box in zip(objects.classes, objects.boxes, strict=True):
            about = {"id": len(annotations) + 1, "iscrowd": 0, "area": float(box[2] * box[3])}
            sides = {"image_id": picture, "category_id": LABELS.index(label), "bbox": box.tolist()}
            annotations.append(about | sides)
        for label, box, score in zip(*detections, strict=True):
            about = {"image_id": picture, "category_id": LABELS.index(label), "score": float(score)}
            results.append(about | {"bbox": box.tolist()})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": picture} for picture in range(len(found))],
            "categories": [{"id": index, "name": label} for index, label in enumerate(LABELS)],
            "annotations": annotations,
            "info": {},
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return 100 * evaluation.stats[0], 100 * evaluation.stats[1]


@pytest.mark.parametrize("seed", range(8))
def test_average_precision_is_that_of_coco(seed: int) -> None:
    found, expected = drawn_pictures(seed, 30)
    ours = average_precision(found, expected).value, average_precision(found, expected, [0.5]).value
    np.testing.assert_allclose(ours, by_coco(found, expected), atol=1e-9)
    assert 5 < ours[0] < ours[1] < 95


def test_average_precision_of_a_picture_by_hand() -> None:
    """Two objects: the best detection is right, the second is a duplicate, the third is right."""
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 10, 10]], float)
    found = [Detections(["cat"] * 3, boxes, np.array([0.9, 0.8, 0.7]))]
    expected = [Objects(["cat"] * 2, boxes[[0, 2]])]
    precisions = np.where(np.linspace(0, 1, 101) <= 0.5, 1, 2 / 3)
    assert average_precision(found, expected).value == pytest.approx(100 * precisions.mean())


def test_without_objects_or_detections() -> None:
    nothing = Detections([], np.zeros((0, 4)), np.zeros(0))
    assert average_precision([nothing], [Objects([], np.zeros((0, 4)))]).value == 0
    assert average_precision([nothing], [Objects(["cat"], np.ones((1, 4)))]).value == 0


def painted(box: np.ndarray) -> np.ndarray:
    """The pixels of a box."""
    left, top, width, height = box.astype(int)
    mask = np.zeros((60, 60), bool)
    mask[top : top + height, left : left + width] = True
    return mask


def test_overlaps_count_pixels() -> None:
    boxes = drawn_boxes(np.random.default_rng(0), 40)
    masks = [painted(box) for box in boxes]
    expected = [[(a & b).sum() / (a | b).sum() for b in masks] for a in masks]
    np.testing.assert_allclose(iou(boxes, boxes), expected, atol=1e-12)
    shares = jnp.array([centred(box) for box in boxes])
    found = generalised_iou(*jnp.broadcast_arrays(shares[:, None], shares[None]))
    for (first, a), (second, b) in itertools.product(enumerate(masks), enumerate(masks)):
        both = a | b
        rows, columns = np.flatnonzero(both.any(axis=1)), np.flatnonzero(both.any(axis=0))
        around = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        generalised = expected[first][second] - (around - both.sum()) / around
        assert found[first, second] == pytest.approx(generalised, abs=1e-5)


def centred(box: np.ndarray) -> np.ndarray:
    """Centre, width and height, as shares of 60 pixels."""
    return np.concatenate([box[:2] + box[2:] / 2, box[2:]]) / 60


def test_generalised_iou_of_published_cases() -> None:
    """Equal boxes have 1, far ones nearly -1 (Rezatofighi et al. 2019, section 3)."""
    box = jnp.array([0.5, 0.5, 0.2, 0.2])
    assert float(generalised_iou(box, box)) == pytest.approx(1, abs=1e-6)
    small = jnp.array([[0.0, 0.0, 1e-3, 1e-3], [1.0, 1.0, 1e-3, 1e-3]])
    assert float(generalised_iou(small[0], small[1])) == pytest.approx(-1, abs=1e-4)


def test_matching_has_the_lowest_cost() -> None:
    """Among all assignments of queries to objects, each query to one at most."""
    random = np.random.default_rng(0)
    costs = random.normal(size=(6, 5, 3)).astype(np.float32)
    objects = np.array([0, 1, 2, 3, 3, 3])
    queries = np.asarray(matched_queries(jnp.asarray(costs), jnp.asarray(objects)))
    for row, count, chosen in zip(costs, objects, queries, strict=True):
        assert len({*chosen.tolist()}) == 3
        every = itertools.permutations(range(5), int(count))
        lowest = min(sum(row[query, index] for index, query in enumerate(some)) for some in every)
        assert row[chosen[:count], range(count)].sum() == pytest.approx(lowest, abs=1e-5)


def test_matching_is_that_of_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    costs = np.random.default_rng(1).normal(size=(20, 30, 12)).astype(np.float32)
    queries = np.asarray(matched_queries(jnp.asarray(costs), jnp.full(20, 12)))
    for row, chosen in zip(costs, queries, strict=True):
        rows, columns = optimize.linear_sum_assignment(row)
        assert row[chosen, range(12)].sum() == pytest.approx(row[rows, columns].sum(), abs=1e-4)


def test_costs_that_are_not_numbers_are_matched_too() -> None:
    """A diverged model ends with an error of the loss, and not never."""
    queries = np.asarray(matched_queries(jnp.full((1, 4, 2), jnp.nan), jnp.asarray([2])))
    assert len({*queries[0].tolist()}) == 2


@pytest.mark.parametrize("hundredths", range(50, 100, 5))
def test_an_overlap_of_exactly_a_threshold_counts_as_with_coco(hundredths: int) -> None:
    """Of the numbers of a box of 100 x 100 and one that is narrower."""
    expected = [Objects(["cat"], np.array([[0.0, 0, 100, 100]]))]
    found = [Detections(["cat"], np.array([[0.0, 0, 100, hundredths]]), np.array([0.9]))]
    ours = average_precision(found, expected).value, average_precision(found, expected, [0.5]).value
    np.testing.assert_allclose(ours, by_coco(found, expected), atol=1e-9)
