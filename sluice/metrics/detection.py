"""Mean average precision of detected boxes, as defined by COCO.

Shape legend: N = true boxes, D = detections, 4 = x1, y1, x2, y2 with x1 < x2 and y1 < y2.
"""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.metrics.task_metrics import TaskMetrics, all_undefined, non_finite_reason

NAMES = ("map@0.5:0.95", "map@0.5", "map@0.75")
OVERLAPS = tuple(share / 100 for share in range(50, 100, 5))
"""Thresholds of the intersection over union for a match: 0.5 to 0.95 in steps of 0.05."""
MAX_DETECTIONS = 100
"""Maximum number of detections per class and image, highest scores first."""
_RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of all images, true or detected, in any order.

    Raises:
        ContractError: The columns have different lengths, or the name of an image or class is
            missing.
    """

    image: ArrayLike
    """Image of each box (N,), all strings or all numbers."""

    label: ArrayLike
    """Class of each box (N,), all strings or all numbers."""

    corners: ArrayLike
    """x1, y1, x2, y2 of each box (N, 4)."""

    def __post_init__(self) -> None:
        image, label, corners = map(np.asarray, (self.image, self.label, self.corners))
        of_boxes = corners.shape == (image.size, 4) or corners.size == image.size == 0
        if image.ndim != 1 or label.shape != image.shape or not of_boxes:
            raise ContractError(
                f"Boxes need one image, one class and four corners each, got "
                f"{image.shape}, {label.shape} and {corners.shape}.",
                fix="Pass columns of equal length, with the corners as (boxes, 4).",
            )
        _require_names(image, "images")
        _require_names(label, "classes")


def detection_metrics(truth: Boxes, found: Boxes, score: ArrayLike) -> TaskMetrics:
    """Return map@0.5:0.95, map@0.5 and map@0.75 [rate].

    For each class and overlap threshold, detections in descending order of score are matched to
    the unmatched true box of their image with the largest overlap. The average precision is the
    mean, over 101 recalls, of the best precision at that recall or a higher one. The means are over
    the classes with a true box, and over the overlaps 0.5 to 0.95. Detections of a class without
    true boxes are ignored, as in COCO.

    All metrics are absent, with the reason, without any true box, or if a score or a detected
    corner is non-finite. A detection without area matches nothing.

    Args:
        truth: The true boxes.
        found: The detections.
        score: Score of each detection (D,); in descending order, first of equal ones.

    Raises:
        ContractError: The number of scores differs from the number of detections, the corners of a
            true box are non-finite or not in order, or images or classes are strings on one side
            and numbers on the other.

    Source:
        Lin et al. (2014), "Microsoft COCO: Common Objects in Context", ECCV; the evaluation code
        pycocotools, for boxes of all areas.
    """
    score_D = np.asarray(score, np.float64)
    num = np.asarray(found.image).shape
    if score_D.shape != num:
        raise ContractError(
            f"Each of {num[0]} detections needs one score, got {score_D.shape}.",
            fix="Pass one score for each detection, in the order of the boxes.",
        )
    _require_boxes(truth)
    _require_same_kind(truth.image, found.image, "images")
    _require_same_kind(truth.label, found.label, "classes")
    for values, what in ((score_D, "scores"), (_corners(found), "detected corners")):
        if reason := non_finite_reason(values, what=what):
            return all_undefined(NAMES, reason)
    classes = np.unique(np.asarray(truth.label))
    if not classes.size:
        return all_undefined(NAMES, "there is no true box")
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
    """Raise an error for missing names and for names of different types."""
    missing = np.flatnonzero(pd.isna(names_N))
    kinds = _kinds(names_N)
    if missing.size or len(kinds) > 1:
        row = f"none in row {missing[0]}" if missing.size else " and ".join(sorted(kinds))
        raise ContractError(
            f"The {what} of boxes must be named, all by text or all by number, got {row}.",
            fix="Name all of them with the same type.",
        )


def _require_same_kind(true: ArrayLike, found: ArrayLike, what: str) -> None:
    """Raise an error for names that cannot be equal: "1" is not 1, so no box would match."""
    one, other = _kinds(true), _kinds(found)
    if one and other and one != other:
        raise ContractError(
            f"The {what} of true boxes and of detections must have the same type, got "
            f"{one.pop()} and {other.pop()}.",
            fix="Convert one type to the other, for example with str or int.",
        )


def _require_boxes(truth: Boxes) -> None:
    corners_N4 = _corners(truth)
    in_order_N = (corners_N4[:, :2] < corners_N4[:, 2:]).all(axis=1)
    bad = np.flatnonzero(~(in_order_N & np.isfinite(corners_N4).all(axis=1)))
    if bad.size:
        raise ContractError(
            f"True boxes must be finite with x1 < x2 and y1 < y2, got {bad.size} of "
            f"{len(corners_N4)} that are not, first row {bad[0]}: {corners_N4[bad[0]].tolist()}.",
            cause="The values are x, y, width and height, or boxes without area.",
            fix="Pass corners, and drop boxes without area.",
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
        in_image = true_rows[true_image[true_rows] == image]
        overlap_DN = overlaps(found_D4[detected], true_N4[in_image])
        kept.append(detected)
        hits.append([_matches(overlap_DN, threshold) for threshold in OVERLAPS])
    if not kept:
        return [0.0] * len(OVERLAPS)
    hit_OD = np.concatenate(hits, axis=1)
    order = np.argsort(-score_D[np.concatenate(kept)], kind="stable")
    return [_average_precision(hit_D[order], num_true=len(true_rows)) for hit_D in hit_OD]


def _matches(overlap_DN: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Return whether each detection, best first, matches a box without a better match."""
    free_N = np.ones(overlap_DN.shape[1], bool)
    hit_D = np.zeros(overlap_DN.shape[0], bool)
    for row, overlap_N in enumerate(overlap_DN):
        open_N = np.where(free_N, overlap_N, -1.0)
        if open_N.size and open_N.max() >= threshold:
            # The last of equal overlaps, as in pycocotools.
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
