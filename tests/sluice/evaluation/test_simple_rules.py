"""The best simple rule is the baseline of a workload without its own baseline."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from sluice.base.errors import SettingsError
from sluice.data.folds import Fold, RowRange
from sluice.data.schema import Column, Schema
from sluice.evaluation.simple_rules import (
    BaselineSettings,
    best_rule,
    choose_baseline,
    describe_rules,
)
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

SETTINGS = BaselineSettings()
ROWS = 1200
FOLD = Fold(
    fold_id=0,
    train=RowRange(start=0, stop=600),
    val=RowRange(start=610, stop=800),
    test=RowRange(start=810, stop=1200),
)


class Series(Workload):
    """Workload that predicts the next value of a series from the current inputs."""

    raw_schema = Schema(columns=(Column(name="x"),))
    feature_schema = Schema(columns=(Column(name="x"), Column(name="y")))
    feature_columns = ("x",)
    target_column = "y"

    def load_rows(self) -> pd.DataFrame:
        raise NotImplementedError

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw


class Unordered(Series):
    horizon_rows = 0


class WithBaseline(Series):
    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        return torch.zeros(len(self.examples(frame, fold.test)), 1)


class Classifier(Unordered):
    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        result = super().examples(frame, rows)
        return Examples(x=result.x, y=result.y[:, 0].long(), rows=result.rows)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        return (len(y), 3)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output, y, reduction="none")


def make_frame(y, x=None) -> pd.DataFrame:
    noise = np.random.default_rng(9).normal(size=ROWS)
    return pd.DataFrame({"x": noise if x is None else x, "y": y})


def make_random_walk() -> pd.DataFrame:
    """Return a frame in which y, the next value, is a random walk."""
    return make_frame(np.cumsum(np.random.default_rng(0).normal(size=ROWS + 1))[1:])


def test_the_last_value_is_selected_for_a_random_walk():
    result = best_rule(Series(), make_random_walk(), FOLD, SETTINGS)

    assert result.name == "last value"
    assert result.losses["last value"] < result.losses["train mean"] / 10
    y = make_random_walk()["y"].to_numpy(np.float32)
    # The target of the row before is the current value, the latest that is known.
    assert result.output[:, 0].tolist() == y[FOLD.test.start - 1 : FOLD.test.stop - 1].tolist()


def test_the_last_value_is_taken_from_before_the_horizon():
    class LongHorizon(Series):
        horizon_rows = 3

    result = best_rule(LongHorizon(), make_random_walk(), FOLD, SETTINGS)

    y = make_random_walk()["y"].to_numpy(np.float32)
    assert result.output[:, 0].tolist() == y[FOLD.test.start - 3 : FOLD.test.stop - 3].tolist()


def test_the_seasonal_last_value_is_selected_for_a_seasonal_series():
    y = np.tile([0.0, 5.0, 1.0, 7.0, 2.0, 9.0, 3.0], 200)[:ROWS]

    result = best_rule(Series(), make_frame(y), FOLD, SETTINGS)

    assert result.name == "seasonal last value, 7 rows"
    assert result.losses[result.name] == 0


def test_the_linear_rule_is_selected_if_inputs_determine_the_target():
    x = np.random.default_rng(1).normal(size=ROWS)

    result = best_rule(Series(), make_frame(2 * x + 1, x), FOLD, SETTINGS)

    assert result.name == "linear"
    assert result.losses["linear"] < 1e-4


def test_the_train_mean_or_the_linear_rule_is_selected_for_noise():
    y = np.random.default_rng(2).normal(size=ROWS)

    result = best_rule(Series(), make_frame(y), FOLD, SETTINGS)

    assert result.name in ("train mean", "linear")
    assert result.losses["last value"] > 1.5 * result.losses["train mean"]


def test_rules_are_selected_on_validation_rows_only():
    """The validation rows are a random walk, the test rows noise around the mean."""
    y = make_random_walk()["y"].to_numpy().copy()
    rng = np.random.default_rng(4)
    y[FOLD.test.start :] = y[: FOLD.train.stop].mean() + rng.normal(size=ROWS - FOLD.test.start)

    result = best_rule(Series(), make_frame(y), FOLD, SETTINGS)

    target = torch.from_numpy(y[FOLD.test.start :].astype(np.float32))[:, None]
    mean = Series().baseline(make_frame(y), FOLD)
    assert result.name == "last value"
    assert float((result.output - target).square().mean()) > float((mean - target).square().mean())


def test_the_last_value_is_not_a_rule_for_unordered_rows():
    result = best_rule(Unordered(), make_random_walk(), FOLD, SETTINGS)

    assert set(result.losses) == {"train mean", "linear"}


def test_classes_are_compared_with_logistic_regression():
    x = np.random.default_rng(1).normal(size=ROWS)
    y = np.digitize(x, [-0.5, 0.5]).astype(float)

    result = best_rule(Classifier(), make_frame(y, x), FOLD, SETTINGS)

    assert result.name == "logistic"
    assert set(result.losses) == {"class shares", "logistic"}
    assert result.output.exp().sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)
    assert float((result.output.argmax(1).numpy() == y[FOLD.test.start :]).mean()) > 0.95


def test_a_class_without_train_rows_has_a_finite_loss():
    x = np.random.default_rng(1).normal(size=ROWS)
    y = (x > 0).astype(float)
    y[FOLD.val.start :: 7] = 2

    result = best_rule(Classifier(), make_frame(y, x), FOLD, SETTINGS)

    assert all(math.isfinite(loss) for loss in result.losses.values())
    assert torch.isfinite(result.output).all()


def test_token_ids_are_not_inputs_of_the_logistic_rule():
    class TokenClassifier(Classifier):
        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            result = super().examples(frame, rows)
            return Examples(x=result.x.long(), y=result.y, rows=result.rows)

    y = np.random.default_rng(1).integers(0, 3, ROWS).astype(float)

    assert set(best_rule(TokenClassifier(), make_frame(y), FOLD, SETTINGS).losses) == {
        "class shares"
    }


def test_the_linear_rule_keeps_the_newest_row_if_inputs_are_limited():
    class WindowWorkload(Series):
        settings_type = WorkloadSettings

    workload = WindowWorkload(WorkloadSettings(seq_len=50))
    x = np.random.default_rng(1).normal(size=ROWS)
    limits = BaselineSettings(max_rows=100, max_inputs=1)

    result = best_rule(workload, make_frame(2 * x, x), FOLD, limits)

    assert result.name == "linear"  # the newest row of the window is the input that is kept
    assert result.losses["linear"] < 1e-3


def test_the_baseline_of_a_workload_takes_precedence():
    baseline = choose_baseline(WithBaseline(), make_random_walk(), [FOLD], SETTINGS)

    assert baseline.name == "the workload's baseline"
    assert baseline.outputs[0].abs().sum() == 0
    assert baseline.losses == {}


def test_each_fold_selects_its_rule_and_the_name_lists_them():
    later = FOLD.model_copy(update={"fold_id": 1})
    result = choose_baseline(Series(), make_random_walk(), [FOLD, later], SETTINGS)

    assert result.name == "the best simple rule (last value)"
    assert set(result.outputs) == set(result.losses) == {0, 1}
    assert describe_rules(["linear", "last value"]) == (
        "the best simple rule (linear in 1 of 2 folds, last value in 1)"
    )


def test_the_last_class_is_selected_for_persistent_classes():
    class OrderedClassifier(Classifier):
        horizon_rows = 1

    rng = np.random.default_rng(3)
    y = np.zeros(ROWS)
    for row in range(1, ROWS):
        y[row] = y[row - 1] if rng.random() < 0.97 else rng.integers(0, 3)

    result = best_rule(OrderedClassifier(), make_frame(y), FOLD, SETTINGS)

    assert result.name == "last class"
    is_hit = result.output.argmax(dim=1).numpy() == y[FOLD.test.start :]
    assert is_hit.mean() > 0.95
    assert result.output.exp().sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)


def test_a_season_of_zero_rows_is_rejected():
    with pytest.raises(SettingsError, match=r"at least 1 row each, got \[0, 7\]"):
        BaselineSettings(season_rows=(0, 7))
