"""DigitsWorkload: independent rows, ten classes, logistic regression baseline."""

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


def test_splits_of_a_fold_and_test_windows_share_no_image(frame):
    folds = WORKLOAD.plan_folds(frame)
    pixels = frame[list(PIXELS)].to_numpy()

    assert len(np.unique(pixels, axis=0)) == len(frame) == 1797
    tested = np.concatenate([fold.test.positions() for fold in folds])
    assert len(set(tested)) == len(tested) == 1797 - 898
    for fold in folds:
        parts = [getattr(fold, part).positions() for part in ("train", "val", "test")]
        assert len(set(np.concatenate(parts))) == sum(map(len, parts))


def test_search_cannot_use_a_fold_whose_rows_are_tested_elsewhere(frame):
    folds = WORKLOAD.plan_folds(frame)

    assert select_search_folds(folds, (0,)) == folds[:1]
    with pytest.raises(ContractError, match="cannot use fold 1"):
        select_search_folds(folds, (1,))


def test_each_split_has_about_a_tenth_of_each_digit(frame):
    for fold in WORKLOAD.plan_folds(frame):
        for part in (fold.train, fold.val, fold.test):
            digits = frame["digit"].to_numpy()[part.positions()]
            count = np.bincount(digits, minlength=10)
            tolerance = 4 * math.sqrt(0.1 * 0.9 * len(part))
            assert np.abs(count - len(part) / 10).max() < tolerance


def test_repeated_image_with_another_label_is_rejected(raw):
    repeated = raw.iloc[[5]].assign(digit=(raw["digit"].iloc[5] + 1) % 10)
    with_repeated = pd.concat([raw.iloc[:600], repeated]).sort_index()

    with pytest.raises(SchemaError, match="must be unique, got 1 repeated"):
        WORKLOAD.compute_features(with_repeated)


def test_missing_class_is_rejected(raw):
    with pytest.raises(ContractError, match=r"at least 2.0% of the 1614 rows.*3: 0.0%"):
        WORKLOAD.compute_features(raw[raw["digit"] != 3])


@pytest.mark.slow
def test_expectations_fail_for_bright_pixel_unknown_class_and_inverted_images(raw, frame):
    def list_failed_sentences(table, expectations):
        report = evaluate(table, expectations, suite="digits")
        return {r.sentence for r in report.results if r.outcome != "pass"}

    bad = raw.assign(pixel_3_3=17.0, digit=raw["digit"].replace({9: 10}))
    sentences = list_failed_sentences(bad, WORKLOAD.raw_expectations)
    assert len(sentences) == 2
    assert any("pixel_3_3" in sentence for sentence in sentences)
    inverted = frame.assign(ink=1 - frame["ink"])
    assert len(list_failed_sentences(inverted, WORKLOAD.feature_expectations)) == 1


def test_pixels_are_scaled_and_the_label_is_not_a_feature(raw, frame):
    examples = WORKLOAD.examples(frame, WORKLOAD.plan_folds(frame)[0].train)

    assert examples.x.shape[1:] == (1, 64)
    assert (float(examples.x.min()), float(examples.x.max())) == (0.0, 1.0)
    assert (examples.y.dtype, examples.y.ndim) == (torch.int64, 1)
    np.testing.assert_allclose(examples.x[0, 0].numpy() * 16, raw[list(PIXELS)].iloc[0])


def test_baseline_returns_log_probabilities_with_accuracy_above_90_percent(frame):
    fold = WORKLOAD.plan_folds(frame)[0]
    examples = WORKLOAD.examples(frame, fold.test)

    output = WORKLOAD.baseline(frame, fold)

    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(len(examples)))
    metrics = WORKLOAD.metrics(output, examples, frame)
    assert metrics["accuracy"] > 0.9
    assert metrics["log_loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(1 - WORKLOAD.mistakes(output, examples.y).mean())
    assert WORKLOAD.headline_metric in metrics


def test_baseline_does_not_depend_on_test_labels(frame):
    fold = WORKLOAD.plan_folds(frame)[0]
    relabelled = frame.copy()
    relabelled.iloc[fold.test.positions(), relabelled.columns.get_loc("digit")] = 0

    torch.testing.assert_close(WORKLOAD.baseline(relabelled, fold), WORKLOAD.baseline(frame, fold))


def test_gate_loss_setting_does_not_change_the_training_loss():
    zero_one = DigitsWorkload(DigitsSettings(gate_loss="zero_one"))
    output, y = torch.tensor([[2.0] + [0.0] * 9] * 2), torch.tensor([0, 4])

    assert (zero_one.loss_unit, WORKLOAD.loss_unit) == ("mistakes", "nats")
    assert zero_one.losses(output, y).tolist() == [0.0, 1.0]
    torch.testing.assert_close(zero_one.loss(output, y), WORKLOAD.losses(output, y).mean())


@pytest.mark.parametrize(
    "settings",
    [{"seq_len": 2}, {"gate_loss": "hinge"}, {"min_class_share": 0.5}, {"order_seed": 1}],
)
def test_invalid_settings_are_rejected(settings):
    """A configurable order seed would allow a search for a favourable split."""
    with pytest.raises(SettingsError):
        DigitsSettings(**settings)


def test_too_few_images_for_min_rows_are_rejected():
    workload = DigitsWorkload(DigitsSettings(min_rows=2_000, folds=FoldSettings(num_folds=3)))

    with pytest.raises(ContractError, match="At least 2000 pictures are required, got 1797"):
        workload.load_rows()
