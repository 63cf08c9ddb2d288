"""Mean average precision of detected boxes, as COCO measures it (EVAL-1).

Shape legend: N = true boxes, D = detections, 4 = x1, y1, x2, y2 with x1 < x2 and y1 < y2.
"""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.metrics.task_metrics import TaskMetrics, all_absent, why_not_finite

NAMES = ("map@0.5:0.95", "map@0.5", "map@0.75")
OVERLAPS = tuple(share / 100 for share in range(50, 100, 5))
"""Intersection over union from which on a detection has found a box: 0.5 to 0.95 by 0.05."""
MAX_DETECTIONS = 100
"""Detections of one class on one image that count, the best first."""
_RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of all images, true or detected, in any order.

    Raises:
        ContractError: The columns are not equally long, or an image or a class has no name.
    """

    image: ArrayLike
    """Which image each box is on (N,), all by text or all by number."""

    label: ArrayLike
    """Class of each box (N,), all by text or all by number."""

    corners: ArrayLike
    """x1, y1, x2, y2 of each box (N, 4)."""

    def __post_init__(self) -> None:
        image, label, corners = map(np.asarray, (self.image, self.label, self.corners))
        of_boxes = corners.shape == (image.size, 4) or corners.size == image.size == 0
        if image.ndim != 1 or label.shape != image.shape or not of_boxes:
            raise ContractError(
                f"Boxes need one image, one class and four corners each, got "
                f"{image.shape}, {label.shape} and {corners.shape}.",
                fix="Give equally long columns, the corners as (boxes, 4).",
            )
        _require_names(image, "images")
        _require_names(label, "classes")


def detection_metrics(truth: Boxes, found: Boxes, score: ArrayLike) -> TaskMetrics:
    """Return map@0.5:0.95, map@0.5 and map@0.75 [rate].

    Of one class and overlap: detections, the highest score first, take the true box of their image
    that they overlap most and nobody took; the average precision is the mean over 101 recalls of
    the best precision at that recall or a higher one. The means are over the classes that have a
    true box, and over the overlaps 0.5 to 0.95. A detection of a class without any true box counts
    nowhere, as in COCO.

    Absent, with the reason: all of them without any true box, or with a score or a detected corner
    that is not finite. A detection without area finds nothing.

    Args:
        truth: The true boxes.
        found: The detections.
        score: By which detections are ordered (D,), highest first; of equal ones the first.

    Raises:
        ContractError: There is not one score for each detection, a true box has corners that are
            not finite or not in order, or images or classes are named by text on one side and by
            number on the other.

    Source:
        Lin et al. (2014), "Microsoft COCO: Common Objects in Context", ECCV; its evaluation code
        pycocotools, for boxes of all areas.
    """
    score_D = np.asarray(score, np.float64)
    num = np.asarray(found.image).shape
    if score_D.shape != num:
        raise ContractError(
            f"Each of {num[0]} detections needs one score, got {score_D.shape}.",
            fix="Give one score for each detection, in the order of the boxes.",
        )
    _require_boxes(truth)
    _require_same_kind(truth.image, found.image, "images")
    _require_same_kind(truth.label, found.label, "classes")
    for values, what in ((score_D, "scores"), (_corners(found), "detected corners")):
        if reason := why_not_finite(values, what=what):
            return all_absent(NAMES, reason)
    classes = np.unique(np.asarray(truth.label))
    if not classes.size:
        return all_absent(NAMES, "there is no true box")
    precision_CO = np.array([_class_precision(truth, found, score_D, label) for label in classes])
    mean_O = precision_CO.mean(axis=0)
    means = (mean_O.mean(), mean_O[OVERLAPS.index(0.5)], mean_O[OVERLAPS.index(0.75)])
    return TaskMetrics(values=dict(zip(NAMES, map(float, means), strict=True)))


def overlaps(one_A4: NDArray[np.float64], other_B4: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return intersection over union of each of A boxes with each of B, (A, B).

    >>> overlaps(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2], [5, 5, 6, 6]])).round(3)
    array([[0.333, 0.   ]])
    """
    low_AB2 = np.maximum(one_A4[:, None, :2], other_B4[None, :, :2])
    high_AB2 = np.minimum(one_A4[:, None, 2:], other_B4[None, :, 2:])
    shared_AB = np.clip(high_AB2 - low_AB2, 0, None).prod(axis=2)
    area_A = np.clip(one_A4[:, 2:] - one_A4[:, :2], 0, None).prod(axis=1)
    area_B = np.clip(other_B4[:, 2:] - other_B4[:, :2], 0, None).prod(axis=1)
    union_AB = area_A[:, None] + area_B[None] - shared_AB
    share_AB: NDArray[np.float64] = np.zeros_like(shared_AB)
    np.divide(shared_AB, union_AB, out=share_AB, where=union_AB > 0)
    return share_AB


def _corners(boxes: Boxes) -> NDArray[np.float64]:
    return np.asarray(boxes.corners, np.float64).reshape(-1, 4)


def _kinds(names: ArrayLike) -> set[str]:
    return {
        "text" if isinstance(name, str) else "number" if isinstance(name, Real) else str(type(name))
        for name in np.asarray(names).tolist()
    }


def _require_names(names_N: NDArray[Any], what: str) -> None:
    """Refuse a missing name, which equals none, and names that cannot be compared."""
    missing = np.flatnonzero(pd.isna(names_N))
    kinds = _kinds(names_N)
    if missing.size or len(kinds) > 1:
        row = f"none in row {missing[0]}" if missing.size else " and ".join(sorted(kinds))
        raise ContractError(
            f"The {what} of boxes must be named, all by text or all by number, got {row}.",
            fix="Name each, in one way.",
        )


def _require_same_kind(true: ArrayLike, found: ArrayLike, what: str) -> None:
    """Refuse names that are never equal: "1" is not 1, and all boxes would count as not found."""
    one, other = _kinds(true), _kinds(found)
    if one and other and one != other:
        raise ContractError(
            f"The {what} of true boxes and of detections must be named in one way, got "
            f"{one.pop()} and {other.pop()}.",
            fix="Turn one into the other, as with str or int.",
        )


def _require_boxes(truth: Boxes) -> None:
    corners_N4 = _corners(truth)
    in_order_N = (corners_N4[:, :2] < corners_N4[:, 2:]).all(axis=1)
    bad = np.flatnonzero(~(in_order_N & np.isfinite(corners_N4).all(axis=1)))
    if bad.size:
        raise ContractError(
            f"True boxes must be finite with x1 < x2 and y1 < y2, got {bad.size} of "
            f"{len(corners_N4)} that are not, first row {bad[0]}: {corners_N4[bad[0]].tolist()}.",
            cause="These are x, y, width and height, or boxes without area.",
            fix="Give corners, and leave out boxes without area.",
        )


def _class_precision(
    truth: Boxes, found: Boxes, score_D: NDArray[np.float64], label: object
) -> list[float]:
    """Return the average precision of one class at each overlap."""
    true_rows = np.flatnonzero(np.asarray(truth.label) == label)
    found_rows = np.flatnonzero(np.asarray(found.label) == label)
    found_rows = found_rows[np.argsort(-score_D[found_rows], kind="stable")]
    true_N4, found_D4 = _corners(truth), _corners(found)
    true_image, found_image = np.asarray(truth.image), np.asarray(found.image)
    kept, hits = [], []
    for image in np.unique(found_image[found_rows]):
        detected = found_rows[found_image[found_rows] == image][:MAX_DETECTIONS]
        there = true_rows[true_image[true_rows] == image]
        overlap_DN = overlaps(found_D4[detected], true_N4[there])
        kept.append(detected)
        hits.append([_matches(overlap_DN, least) for least in OVERLAPS])
    if not kept:
        return [0.0] * len(OVERLAPS)
    hit_OD = np.concatenate(hits, axis=1)
    order = np.argsort(-score_D[np.concatenate(kept)], kind="stable")
    return [_average_precision(hit_D[order], num_true=len(true_rows)) for hit_D in hit_OD]


def _matches(overlap_DN: NDArray[np.float64], least: float) -> NDArray[np.bool_]:
    """Return whether each detection, the best first, finds a box that no better one took."""
    free_N = np.ones(overlap_DN.shape[1], bool)
    hit_D = np.zeros(overlap_DN.shape[0], bool)
    for row, overlap_N in enumerate(overlap_DN):
        open_N = np.where(free_N, overlap_N, -1.0)
        if open_N.size and open_N.max() >= least:
            # Of equal overlaps the last, as pycocotools takes it.
            free_N[open_N.size - 1 - int(open_N[::-1].argmax())] = False
            hit_D[row] = True
    return hit_D


def _average_precision(hit_D: NDArray[np.bool_], *, num_true: int) -> float:
    found_D = hit_D.cumsum()
    recall_D = found_D / num_true
    precision_D = found_D / np.arange(1, hit_D.size + 1)
    best_D = np.maximum.accumulate(precision_D[::-1])[::-1]
    at = np.searchsorted(recall_D, _RECALLS, side="left")
    return float(np.where(at < hit_D.size, best_D[np.minimum(at, hit_D.size - 1)], 0.0).mean())
