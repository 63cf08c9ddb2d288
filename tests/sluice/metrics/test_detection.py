"""Mean average precision of detected boxes (EVAL-1)."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import ArrayLike

from sluice.base.errors import ContractError
from sluice.metrics.detection import METRIC_NAMES, Boxes, detection_metrics

ONE_BOX = Boxes(image=["a"], label=[1], corners=[[0, 0, 10, 10]])
NO_BOXES = Boxes(image=[], label=[], corners=[])


def make_boxes(*corners: tuple[float, ...], image: str = "a", label: int = 1) -> Boxes:
    num_boxes = len(corners)
    return Boxes(image=[image] * num_boxes, label=[label] * num_boxes, corners=corners)


def draw_sample(seed: int) -> tuple[Boxes, Boxes, np.ndarray]:
    """Return true boxes (three classes, six images), detections of most of them, and scores."""
    rng = np.random.default_rng(seed)
    num_boxes = int(rng.integers(5, 40))
    image, label = rng.integers(0, 6, num_boxes), rng.integers(0, 3, num_boxes)
    low, size = rng.uniform(0, 60, (num_boxes, 2)), rng.uniform(8, 40, (num_boxes, 2))
    corners = np.hstack([low, low + size])
    is_detected = rng.random(num_boxes) < 0.8
    detected_corners = corners[is_detected] + rng.normal(0, 1.2, (is_detected.sum(), 4)).clip(
        -3.5, 3.5
    )
    num_false_positives = int(rng.integers(1, 20))
    false_corner = rng.uniform(0, 60, (num_false_positives, 2))
    boxes = np.vstack(
        [
            detected_corners,
            np.hstack([false_corner, false_corner + rng.uniform(8, 40, (num_false_positives, 2))]),
        ]
    )
    images = np.r_[image[is_detected], rng.integers(0, 6, num_false_positives)]
    labels = np.r_[label[is_detected], rng.integers(0, 3, num_false_positives)]
    score = rng.random(len(boxes)).round(1 if seed % 2 else 6)
    truth = Boxes(image=image, label=label, corners=corners)
    return truth, Boxes(image=images, label=labels, corners=boxes), score


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, (0.327430243024, 0.546486315298, 0.404742140881)),
        (1, (0.572417491749, 0.840236523652, 0.589218921892)),
        (2, (0.407391463721, 0.654508291812, 0.444315849383)),
        (3, (0.444185770129, 0.616846826383, 0.516316368479)),
        (4, (0.421644952957, 0.620981328902, 0.573401570926)),
        (5, (0.387109761396, 0.589707500162, 0.427641188489)),
    ],
)
def test_metrics_equal_pycocotools(seed: int, expected: tuple[float, ...]) -> None:
    """Values of pycocotools 2.0.11 for the same boxes; odd seeds have tied scores."""
    assert list(detection_metrics(*draw_sample(seed)).values.values()) == pytest.approx(
        expected, abs=1e-9
    )


def test_map_averages_ten_overlap_thresholds() -> None:
    """An IoU of 0.8 is a match at the thresholds 0.5 to 0.8, seven of ten."""
    values = detection_metrics(ONE_BOX, make_boxes((0, 0, 10, 8)), [0.9]).values

    assert values == pytest.approx(
        {METRIC_NAMES[0]: 0.7, METRIC_NAMES[1]: 1.0, METRIC_NAMES[2]: 1.0}
    )


def test_box_is_matched_once_within_its_image_and_class() -> None:
    duplicated = detection_metrics(
        ONE_BOX, make_boxes((0, 0, 10, 10), (0, 0, 10, 10)), [0.5, 0.9]
    ).values
    first_wrong = detection_metrics(
        ONE_BOX, make_boxes((50, 50, 60, 60), (0, 0, 10, 10)), [0.9, 0.5]
    ).values
    in_other_image = detection_metrics(ONE_BOX, make_boxes((0, 0, 10, 10), image="b"), [0.9]).values
    with_other_label = detection_metrics(ONE_BOX, make_boxes((0, 0, 10, 10), label=2), [0.9]).values

    assert set(duplicated.values()) == {1.0}
    assert first_wrong[METRIC_NAMES[0]] == pytest.approx(0.5)
    assert set(in_other_image.values()) == set(with_other_label.values()) == {0.0}


def test_duplicate_detection_does_not_match_another_box() -> None:
    """Half of the boxes are detected: 51 of 101 recall levels, 0 to 0.5."""
    truth = make_boxes((0, 0, 10, 10), (50, 50, 60, 60))

    values = detection_metrics(truth, make_boxes((0, 0, 10, 10), (0, 0, 10, 10)), [0.9, 0.8]).values

    assert list(values.values()) == pytest.approx([51 / 101] * 3)


def test_metrics_are_0_without_detections_and_absent_without_true_boxes() -> None:
    assert set(detection_metrics(ONE_BOX, NO_BOXES, []).values.values()) == {0.0}
    assert detection_metrics(NO_BOXES, make_boxes((0, 0, 1, 1)), [1.0]).absent == dict.fromkeys(
        METRIC_NAMES, "there is no true box"
    )


def test_non_finite_detections_have_no_metrics_and_empty_boxes_match_nothing() -> None:
    nan = float("nan")
    assert (
        "1 of 1 scores"
        in detection_metrics(ONE_BOX, make_boxes((0, 0, 1, 1)), [nan]).absent[METRIC_NAMES[0]]
    )
    corners = detection_metrics(ONE_BOX, make_boxes((0, 0, nan, 1)), [0.5]).absent[METRIC_NAMES[0]]
    assert corners == "1 of 4 detected corners are not finite"
    assert (
        detection_metrics(ONE_BOX, make_boxes((10, 10, 0, 0)), [0.5]).values[METRIC_NAMES[0]] == 0.0
    )


def test_invalid_boxes_are_rejected() -> None:
    with pytest.raises(ContractError, match=r"got the shapes \(1,\), \(1,\) and \(1, 3\)"):
        Boxes(image=[1], label=[1], corners=[[0, 0, 1]])
    with pytest.raises(ContractError, match=r"\(2,\) and \(4, 2\)"):
        Boxes(image=[1, 1], label=[1, 1], corners=[[0, 0], [0, 0], [1, 1], [1, 1]])
    with pytest.raises(
        ContractError, match=r"Each of 1 detections needs one score, got the shape \(2,\)"
    ):
        detection_metrics(ONE_BOX, make_boxes((0, 0, 1, 1)), [0.5, 0.6])
    with pytest.raises(ContractError, match=r"1 of 1 that are not, first row 0: \[5.0, 5.0, 2.0"):
        detection_metrics(make_boxes((5, 5, 2, 2)), ONE_BOX, [0.5])


def test_tensors_are_accepted_as_boxes() -> None:
    image, label = torch.tensor([0, 1]), torch.tensor([1, 2])
    boxes = Boxes(image=image, label=label, corners=torch.tensor([[0.0, 0, 5, 5], [1, 1, 4, 4]]))

    assert set(detection_metrics(boxes, boxes, torch.tensor([0.5, 0.9])).values.values()) == {1.0}


@pytest.mark.parametrize(
    ("names", "got"),
    [
        ([math.nan, 1.0], "none in row 0"),
        (pd.Series(["a", None], dtype="string"), "none in row 1"),
        (np.array([0, "a"], object), "number and text"),
    ],
)
def test_missing_or_mixed_labels_and_images_are_rejected(names: ArrayLike, got: str) -> None:
    """A missing label would be a class without detections and lower the mean."""
    corners = [[0, 0, 1, 1]] * 2

    with pytest.raises(ContractError, match=f"classes of boxes must be named.* got {got}"):
        Boxes(image=[0, 0], label=names, corners=corners)
    with pytest.raises(ContractError, match=f"images of boxes must be named.* got {got}"):
        Boxes(image=names, label=[0, 0], corners=corners)


def test_detections_with_another_type_of_label_or_image_are_rejected() -> None:
    text = Boxes(image=["a"], label=["1"], corners=[[0, 0, 10, 10]])
    number = Boxes(image=[0], label=[1], corners=[[0, 0, 10, 10]])

    with pytest.raises(ContractError, match=r"classes of true boxes .* got number and text"):
        detection_metrics(ONE_BOX, text, [0.5])
    with pytest.raises(ContractError, match=r"images of true boxes .* got text and number"):
        detection_metrics(ONE_BOX, number, [0.5])
