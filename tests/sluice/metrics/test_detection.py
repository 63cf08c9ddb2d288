"""EVAL-1: mean average precision of detected boxes."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import ArrayLike

from sluice.base.errors import ContractError
from sluice.metrics.detection import NAMES, Boxes, detection_metrics

ONE = Boxes(image=["a"], label=[1], corners=[[0, 0, 10, 10]])
NONE = Boxes(image=[], label=[], corners=[])


def found(*corners: tuple[float, ...], image: str = "a", label: int = 1) -> Boxes:
    num = len(corners)
    return Boxes(image=[image] * num, label=[label] * num, corners=corners)


def sample(seed: int) -> tuple[Boxes, Boxes, np.ndarray]:
    """Return boxes of three classes on six images, most of them found within a few points."""
    r = np.random.default_rng(seed)
    num = int(r.integers(5, 40))
    image, label = r.integers(0, 6, num), r.integers(0, 3, num)
    low, size = r.uniform(0, 60, (num, 2)), r.uniform(8, 40, (num, 2))
    corners = np.hstack([low, low + size])
    kept = r.random(num) < 0.8
    near = corners[kept] + r.normal(0, 1.2, (kept.sum(), 4)).clip(-3.5, 3.5)
    wrong = int(r.integers(1, 20))
    spot = r.uniform(0, 60, (wrong, 2))
    boxes = np.vstack([near, np.hstack([spot, spot + r.uniform(8, 40, (wrong, 2))])])
    images = np.r_[image[kept], r.integers(0, 6, wrong)]
    labels = np.r_[label[kept], r.integers(0, 3, wrong)]
    score = r.random(len(boxes)).round(1 if seed % 2 else 6)
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
def test_the_numbers_are_those_of_pycocotools(seed: int, expected: tuple[float, ...]) -> None:
    """Version 2.0.11 on the same boxes; odd seeds have scores that tie."""
    assert list(detection_metrics(*sample(seed)).values.values()) == pytest.approx(
        expected, abs=1e-9
    )


def test_each_overlap_asks_for_more() -> None:
    """A box that shares 0.8 is found at 0.5 to 0.8, seven of ten overlaps."""
    values = detection_metrics(ONE, found((0, 0, 10, 8)), [0.9]).values

    assert values == pytest.approx({NAMES[0]: 0.7, NAMES[1]: 1.0, NAMES[2]: 1.0})


def test_a_box_is_found_once_and_another_class_or_image_finds_nothing() -> None:
    twice = detection_metrics(ONE, found((0, 0, 10, 10), (0, 0, 10, 10)), [0.5, 0.9]).values
    first_wrong = detection_metrics(ONE, found((50, 50, 60, 60), (0, 0, 10, 10)), [0.9, 0.5]).values
    elsewhere = detection_metrics(ONE, found((0, 0, 10, 10), image="b"), [0.9]).values
    other = detection_metrics(ONE, found((0, 0, 10, 10), label=2), [0.9]).values

    assert set(twice.values()) == {1.0}
    assert first_wrong[NAMES[0]] == pytest.approx(0.5)
    assert set(elsewhere.values()) == set(other.values()) == {0.0}


def test_a_second_detection_of_a_box_finds_no_other() -> None:
    """Half of the boxes are found: recalls 0 to 0.5 of the 101."""
    truth = found((0, 0, 10, 10), (50, 50, 60, 60))

    values = detection_metrics(truth, found((0, 0, 10, 10), (0, 0, 10, 10)), [0.9, 0.8]).values

    assert list(values.values()) == pytest.approx([51 / 101] * 3)


def test_nothing_found_is_zero_and_nothing_to_find_is_absent() -> None:
    assert set(detection_metrics(ONE, NONE, []).values.values()) == {0.0}
    assert detection_metrics(NONE, found((0, 0, 1, 1)), [1.0]).absent == dict.fromkeys(
        NAMES, "there is no true box"
    )


def test_a_diverged_detector_has_no_metrics_and_one_without_area_finds_nothing() -> None:
    nan = float("nan")
    assert "1 of 1 scores" in detection_metrics(ONE, found((0, 0, 1, 1)), [nan]).absent[NAMES[0]]
    corners = detection_metrics(ONE, found((0, 0, nan, 1)), [0.5]).absent[NAMES[0]]
    assert corners == "1 of 4 detected corners are not finite"
    assert detection_metrics(ONE, found((10, 10, 0, 0)), [0.5]).values[NAMES[0]] == 0.0


def test_invalid_boxes_are_rejected() -> None:
    with pytest.raises(ContractError, match=r"got the shapes \(1,\), \(1,\) and \(1, 3\)"):
        Boxes(image=[1], label=[1], corners=[[0, 0, 1]])
    with pytest.raises(ContractError, match=r"\(2,\) and \(4, 2\)"):
        Boxes(image=[1, 1], label=[1, 1], corners=[[0, 0], [0, 0], [1, 1], [1, 1]])
    with pytest.raises(
        ContractError, match=r"Each of 1 detections needs one score, got the shape \(2,\)"
    ):
        detection_metrics(ONE, found((0, 0, 1, 1)), [0.5, 0.6])
    with pytest.raises(ContractError, match=r"1 of 1 that are not, first row 0: \[5.0, 5.0, 2.0"):
        detection_metrics(found((5, 5, 2, 2)), ONE, [0.5])


def test_tensors_are_boxes() -> None:
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
def test_a_box_without_a_name_is_rejected(names: ArrayLike, got: str) -> None:
    """One more class that no detection can be of would take its share of the mean."""
    corners = [[0, 0, 1, 1]] * 2

    with pytest.raises(ContractError, match=f"classes of boxes must be named.* got {got}"):
        Boxes(image=[0, 0], label=names, corners=corners)
    with pytest.raises(ContractError, match=f"images of boxes must be named.* got {got}"):
        Boxes(image=names, label=[0, 0], corners=corners)


def test_names_that_are_never_equal_are_rejected() -> None:
    text = Boxes(image=["a"], label=["1"], corners=[[0, 0, 10, 10]])
    number = Boxes(image=[0], label=[1], corners=[[0, 0, 10, 10]])

    with pytest.raises(ContractError, match=r"classes of true boxes .* got number and text"):
        detection_metrics(ONE, text, [0.5])
    with pytest.raises(ContractError, match=r"images of true boxes .* got text and number"):
        detection_metrics(ONE, number, [0.5])
