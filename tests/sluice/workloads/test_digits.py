"""The digits workload: independent rows, ten classes, logistic regression baseline."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError, SchemaError, SettingsError
from sluice.checks.expectations import evaluate
from sluice.data.folds import FoldSettings
from sluice.tuning.objective import select_search_folds
from sluice.workloads.digits import DigitsSettings, DigitsWorkload
from sluice.workloads.digits_contract import PIXELS

WORKLOAD = DigitsWorkload()


@pytest.fixture(scope="module")
def raw():
    return WORKLOAD.load_rows()


@pytest.fixture(scope="module")
def frame(raw):
    return WORKLOAD.compute_features(raw)


def test_no_picture_is_in_two_parts_of_a_fold_or_in_two_test_windows(frame):
    folds = WORKLOAD.plan_folds(frame)
    pixels = frame[list(PIXELS)].to_numpy()

    assert len(np.unique(pixels, axis=0)) == len(frame) == 1797
    tested = np.concatenate([fold.test.positions() for fold in folds])
    assert len(set(tested)) == len(tested) == 1797 - 898
    for fold in folds:
        parts = [getattr(fold, part).positions() for part in ("train", "val", "test")]
        assert len(set(np.concatenate(parts))) == sum(map(len, parts))


def test_the_rows_a_search_sees_are_tested_by_no_fold(frame):
    folds = WORKLOAD.plan_folds(frame)

    assert select_search_folds(folds, (0,)) == folds[:1]
    with pytest.raises(ContractError, match="cannot use fold 1"):
        select_search_folds(folds, (1,))


def test_every_part_of_every_fold_has_about_a_tenth_of_each_digit(frame):
    for fold in WORKLOAD.plan_folds(frame):
        for part in (fold.train, fold.val, fold.test):
            digits = frame["digit"].to_numpy()[part.positions()]
            count = np.bincount(digits, minlength=10)
            slack = 4 * math.sqrt(0.1 * 0.9 * len(part))
            assert np.abs(count - len(part) / 10).max() < slack


def test_a_repeated_picture_is_rejected_whatever_its_label(raw):
    again = raw.iloc[[5]].assign(digit=(raw["digit"].iloc[5] + 1) % 10)
    twice = pd.concat([raw.iloc[:600], again]).sort_index()

    with pytest.raises(SchemaError, match="must be unique, got 1 repeated"):
        WORKLOAD.compute_features(twice)


def test_missing_class_is_rejected(raw):
    with pytest.raises(ContractError, match=r"at least 2.0% of the 1614 rows.*3: 0.0%"):
        WORKLOAD.compute_features(raw[raw["digit"] != 3])


@pytest.mark.slow
def test_expectations_see_a_bright_pixel_an_eleventh_class_and_an_inverted_scanner(raw, frame):
    def failed(table, expectations):
        report = evaluate(table, expectations, suite="digits")
        return {r.sentence for r in report.results if r.outcome != "pass"}

    bad = raw.assign(pixel_3_3=17.0, digit=raw["digit"].replace({9: 10}))
    told = failed(bad, WORKLOAD.raw_expectations)
    assert len(told) == 2
    assert any("pixel_3_3" in sentence for sentence in told)
    inverted = frame.assign(ink=1 - frame["ink"])
    assert len(failed(inverted, WORKLOAD.feature_expectations)) == 1


def test_pixels_are_scaled_and_the_digit_is_no_feature(raw, frame):
    examples = WORKLOAD.examples(frame, WORKLOAD.plan_folds(frame)[0].train)

    assert examples.x.shape[1:] == (1, 64)
    assert (float(examples.x.min()), float(examples.x.max())) == (0.0, 1.0)
    assert (examples.y.dtype, examples.y.ndim) == (torch.int64, 1)
    np.testing.assert_allclose(examples.x[0, 0].numpy() * 16, raw[list(PIXELS)].iloc[0])


def test_the_baseline_is_a_distribution_and_knows_the_digits(frame):
    fold = WORKLOAD.plan_folds(frame)[0]
    examples = WORKLOAD.examples(frame, fold.test)

    output = WORKLOAD.baseline(frame, fold)

    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(len(examples)))
    found = WORKLOAD.metrics(output, examples, frame)
    assert found["accuracy"] > 0.9
    assert found["log_loss"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(1 - WORKLOAD.mistakes(output, examples.y).mean())
    assert WORKLOAD.headline_metric in found


def test_the_baseline_does_not_look_at_test_rows(frame):
    fold = WORKLOAD.plan_folds(frame)[0]
    relabelled = frame.copy()
    relabelled.iloc[fold.test.positions(), relabelled.columns.get_loc("digit")] = 0

    torch.testing.assert_close(WORKLOAD.baseline(relabelled, fold), WORKLOAD.baseline(frame, fold))


def test_the_gates_loss_is_a_setting_and_training_stays_on_log_loss():
    counted = DigitsWorkload(DigitsSettings(gate_loss="zero_one"))
    output, y = torch.tensor([[2.0] + [0.0] * 9] * 2), torch.tensor([0, 4])

    assert (counted.loss_unit, WORKLOAD.loss_unit) == ("mistakes", "nats")
    assert counted.losses(output, y).tolist() == [0.0, 1.0]
    torch.testing.assert_close(counted.loss(output, y), WORKLOAD.losses(output, y).mean())


@pytest.mark.parametrize(
    "wrong", [{"seq_len": 2}, {"gate_loss": "hinge"}, {"min_class_share": 0.5}, {"order_seed": 1}]
)
def test_settings_that_mean_nothing_are_rejected(wrong):
    """An order that may be drawn again would be drawn until it pleases."""
    with pytest.raises(SettingsError):
        DigitsSettings(**wrong)


def test_too_few_pictures_for_the_folds_are_rejected():
    greedy = DigitsWorkload(DigitsSettings(min_rows=2_000, folds=FoldSettings(num_folds=3)))

    with pytest.raises(ContractError, match="At least 2000 pictures are required, got 1797"):
        greedy.load_rows()
