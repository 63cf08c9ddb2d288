"""Computes the mean average precision of detected boxes, as defined by COCO.

Shape legend: N = true boxes, D = detections, C = classes, O = overlap thresholds,
R = recalls, 4 = x1, y1, x2, y2 with x1 < x2 and y1 < y2.
"""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.metrics.task_metrics import TaskMetrics, non_finite_reason, undefined_metrics

METRIC_NAMES = ("map@0.5:0.95", "map@0.5", "map@0.75")
"""Names of the metrics."""
IOU_THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))
"""Thresholds of the intersection over union for a match: 0.5 to 0.95 in steps of 0.05."""
MAX_DETECTIONS = 100
"""Maximum number of detections per class and image, highest scores first."""
_RECALLS = np.linspace(0, 1, 101)
"""Recalls at which the precision is averaged."""


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
        has_valid_corners = corners.shape == (image.size, 4) or corners.size == image.size == 0
        if image.ndim != 1 or label.shape != image.shape or not has_valid_corners:
            raise ContractError(
                f"Each box needs one image, one class and four corner coordinates, got the shapes "
                f"{image.shape}, {label.shape} and {corners.shape}.",
                fix="Pass columns of equal length, with the corners as (boxes, 4).",
            )
        _require_same_type(image, "images")
        _require_same_type(label, "classes")


def detection_metrics(truth: Boxes, detected: Boxes, score: ArrayLike) -> TaskMetrics:
    """Return map@0.5:0.95, map@0.5 and map@0.75 [rate].

    For each class and overlap threshold, the detections are processed in descending order of score.
    A detection is compared with the true boxes of its image that are not matched yet. It is matched
    to the box with the largest overlap, if this overlap reaches the threshold. The average
    precision is the mean, over 101 recalls, of the highest precision at that recall or a higher
    recall. All metrics are means over the classes with a true box, and map@0.5:0.95 also over the
    overlaps 0.5 to 0.95. Detections of a class without true boxes are ignored, as in COCO.

    All metrics are absent, with the reason, if there is no true box, or if a score or a detected
    corner is non-finite. A detection without area never matches.

    Args:
        truth: The true boxes.
        detected: The detections.
        score: Score of each detection (D,). Detections with equal scores are processed in the order
            in which they are passed.

    Raises:
        ContractError: The number of scores differs from the number of detections, the corners of a
            true box are non-finite or not in order, or images or classes are strings on one side
            and numbers on the other.

    Source:
        Lin et al. (2014), "Microsoft COCO: Common Objects in Context", ECCV; the evaluation code
        pycocotools, for boxes of all areas.
    """
    score_D = np.asarray(score, np.float64)
    expected_shape = np.asarray(detected.image).shape
    if score_D.shape != expected_shape:
        raise ContractError(
            f"Each of {expected_shape[0]} detections needs one score, got the shape "
            f"{score_D.shape}.",
            fix="Pass one score for each detection, in the order of the boxes.",
        )
    _require_valid_boxes(truth)
    _require_comparable(truth.image, detected.image, "images")
    _require_comparable(truth.label, detected.label, "classes")
    for values, what in ((score_D, "scores"), (_corner_array(detected), "detected corners")):
        if reason := non_finite_reason(values, what=what):
            return undefined_metrics(METRIC_NAMES, reason)
    classes = np.unique(np.asarray(truth.label))
    if not classes.size:
        return undefined_metrics(METRIC_NAMES, "there is no true box")
    precision_CO = np.array(
        [_class_precisions(truth, detected, score_D, label) for label in classes]
    )
    mean_O = precision_CO.mean(axis=0)
    means = (mean_O.mean(), mean_O[IOU_THRESHOLDS.index(0.5)], mean_O[IOU_THRESHOLDS.index(0.75)])
    return TaskMetrics(values=dict(zip(METRIC_NAMES, map(float, means), strict=True)))


def box_iou(first_A4: NDArray[np.float64], second_B4: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intersection over union of each of A boxes with each of B boxes, (A, B).

    >>> box_iou(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2], [5, 5, 6, 6]])).round(3)
    array([[0.333, 0.   ]])
    """
    low_AB2 = np.maximum(first_A4[:, None, :2], second_B4[None, :, :2])
    high_AB2 = np.minimum(first_A4[:, None, 2:], second_B4[None, :, 2:])
    intersection_AB = np.clip(high_AB2 - low_AB2, 0, None).prod(axis=2)
    area_A = np.clip(first_A4[:, 2:] - first_A4[:, :2], 0, None).prod(axis=1)
    area_B = np.clip(second_B4[:, 2:] - second_B4[:, :2], 0, None).prod(axis=1)
    union_AB = area_A[:, None] + area_B[None] - intersection_AB
    iou_AB: NDArray[np.float64] = np.zeros_like(intersection_AB)
    np.divide(intersection_AB, union_AB, out=iou_AB, where=union_AB > 0)
    return iou_AB


def _corner_array(boxes: Boxes) -> NDArray[np.float64]:
    return np.asarray(boxes.corners, np.float64).reshape(-1, 4)


def _type_names(names: ArrayLike) -> set[str]:
    """Return the types of the names of images or classes: text, number, or another type."""
    return {
        "text" if isinstance(name, str) else "number" if isinstance(name, Real) else str(type(name))
        for name in np.asarray(names).tolist()
    }


def _require_same_type(names_N: NDArray[Any], what: str) -> None:
    """Raise an error for missing names and for names of different types."""
    unnamed_rows = np.flatnonzero(pd.isna(names_N))
    types = _type_names(names_N)
    if unnamed_rows.size or len(types) > 1:
        names_text = (
            f"none in row {unnamed_rows[0]}" if unnamed_rows.size else " and ".join(sorted(types))
        )
        raise ContractError(
            f"The {what} of boxes must be named, all by text or all by number, got {names_text}.",
            fix=f"Name all {what} with the same type.",
        )


def _require_comparable(true_names: ArrayLike, detected_names: ArrayLike, what: str) -> None:
    """Raise an error for names of different types: "1" does not equal 1, so no box would match."""
    true_types, detected_types = _type_names(true_names), _type_names(detected_names)
    if true_types and detected_types and true_types != detected_types:
        raise ContractError(
            f"The {what} of true boxes and of detections must have the same type, got "
            f"{true_types.pop()} and {detected_types.pop()}.",
            fix="Convert one type to the other, for example with str or int.",
        )


def _require_valid_boxes(truth: Boxes) -> None:
    corners_N4 = _corner_array(truth)
    has_area_N = (corners_N4[:, :2] < corners_N4[:, 2:]).all(axis=1)
    invalid_rows = np.flatnonzero(~(has_area_N & np.isfinite(corners_N4).all(axis=1)))
    if invalid_rows.size:
        first_row = invalid_rows[0]
        raise ContractError(
            f"True boxes must be finite with x1 < x2 and y1 < y2, got {invalid_rows.size} of "
            f"{len(corners_N4)} that are not, first row {first_row}: "
            f"{corners_N4[first_row].tolist()}.",
            cause="The values are x, y, width and height, or there are boxes without area.",
            fix="Pass corners, and drop boxes without area.",
        )


def _class_precisions(
    truth: Boxes, detected: Boxes, score_D: NDArray[np.float64], label: object
) -> list[float]:
    """Return the average precision of one class at each overlap threshold."""
    true_rows = np.flatnonzero(np.asarray(truth.label) == label)
    detected_rows = np.flatnonzero(np.asarray(detected.label) == label)
    detected_rows = detected_rows[np.argsort(-score_D[detected_rows], kind="stable")]
    true_N4, detected_D4 = _corner_array(truth), _corner_array(detected)
    true_image, detected_image = np.asarray(truth.image), np.asarray(detected.image)
    rows_by_image, is_hit_by_image = [], []
    for image in np.unique(detected_image[detected_rows]):
        rows = detected_rows[detected_image[detected_rows] == image][:MAX_DETECTIONS]
        true_rows_in_image = true_rows[true_image[true_rows] == image]
        overlap_DN = box_iou(detected_D4[rows], true_N4[true_rows_in_image])
        rows_by_image.append(rows)
        is_hit_by_image.append([_find_hits(overlap_DN, threshold) for threshold in IOU_THRESHOLDS])
    if not rows_by_image:
        return [0.0] * len(IOU_THRESHOLDS)
    is_hit_OD = np.concatenate(is_hit_by_image, axis=1)
    score_order = np.argsort(-score_D[np.concatenate(rows_by_image)], kind="stable")
    return [
        _average_precision(is_hit_D[score_order], num_true=len(true_rows)) for is_hit_D in is_hit_OD
    ]


def _find_hits(overlap_DN: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Return whether each detection, best first, matches a true box that is not matched yet."""
    is_unmatched_N = np.ones(overlap_DN.shape[1], bool)
    is_hit_D = np.zeros(overlap_DN.shape[0], bool)
    for row, overlap_N in enumerate(overlap_DN):
        available_N = np.where(is_unmatched_N, overlap_N, -1.0)
        if available_N.size and available_N.max() >= threshold:
            # Of equal overlaps the last one is matched, as in pycocotools.
            is_unmatched_N[available_N.size - 1 - int(available_N[::-1].argmax())] = False
            is_hit_D[row] = True
    return is_hit_D


def _average_precision(is_hit_D: NDArray[np.bool_], *, num_true: int) -> float:
    """Return the mean, over recalls, of the best precision at this or a higher recall."""
    num_hits_D = is_hit_D.cumsum()
    recall_D = num_hits_D / num_true
    precision_D = num_hits_D / np.arange(1, is_hit_D.size + 1)
    best_precision_D = np.maximum.accumulate(precision_D[::-1])[::-1]
    position_R = np.searchsorted(recall_D, _RECALLS, side="left")
    is_reached_R = position_R < is_hit_D.size
    precision_R = best_precision_D[np.minimum(position_R, is_hit_D.size - 1)]
    return float(np.where(is_reached_R, precision_R, 0.0).mean())
