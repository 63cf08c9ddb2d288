"""Without a baseline of the workload's own the gate compares with the best of simple rules."""

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
    """Tomorrow's value of a series, from today's inputs."""

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


class Owned(Series):
    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        return torch.zeros(len(self.examples(frame, fold.test)), 1)


class Classes(Unordered):
    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        found = super().examples(frame, rows)
        return Examples(x=found.x, y=found.y[:, 0].long(), rows=found.rows)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        return (len(y), 3)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output, y, reduction="none")


def frame(y, x=None) -> pd.DataFrame:
    noise = np.random.default_rng(9).normal(size=ROWS)
    return pd.DataFrame({"x": noise if x is None else x, "y": y})


def walk() -> pd.DataFrame:
    """A random walk: y is tomorrow's value."""
    return frame(np.cumsum(np.random.default_rng(0).normal(size=ROWS + 1))[1:])


def test_the_last_value_is_selected_for_a_random_walk():
    found = best_rule(Series(), walk(), FOLD, SETTINGS)

    assert found.name == "last value"
    assert found.losses["last value"] < found.losses["train mean"] / 10
    y = walk()["y"].to_numpy(np.float32)
    # The target of the row before, which is today's value: known, and no later one.
    assert found.output[:, 0].tolist() == y[FOLD.test.start - 1 : FOLD.test.stop - 1].tolist()


def test_a_longer_horizon_looks_back_further():
    class Farther(Series):
        horizon_rows = 3

    found = best_rule(Farther(), walk(), FOLD, SETTINGS)

    y = walk()["y"].to_numpy(np.float32)
    assert found.output[:, 0].tolist() == y[FOLD.test.start - 3 : FOLD.test.stop - 3].tolist()


def test_a_season_is_found():
    y = np.tile([0.0, 5.0, 1.0, 7.0, 2.0, 9.0, 3.0], 200)[:ROWS]

    found = best_rule(Series(), frame(y), FOLD, SETTINGS)

    assert found.name == "seasonal last value, 7 rows"
    assert found.losses[found.name] == 0


def test_the_linear_rule_is_selected_if_inputs_determine_the_target():
    x = np.random.default_rng(1).normal(size=ROWS)

    found = best_rule(Series(), frame(2 * x + 1, x), FOLD, SETTINGS)

    assert found.name == "linear"
    assert found.losses["linear"] < 1e-4


def test_pure_noise_leaves_the_train_mean_or_what_equals_it():
    y = np.random.default_rng(2).normal(size=ROWS)

    found = best_rule(Series(), frame(y), FOLD, SETTINGS)

    assert found.name in ("train mean", "linear")
    assert found.losses["last value"] > 1.5 * found.losses["train mean"]


def test_rules_are_selected_on_validation_rows_only():
    """On validation rows the series walks; on test rows it is noise around the mean."""
    y = walk()["y"].to_numpy().copy()
    rng = np.random.default_rng(4)
    y[FOLD.test.start :] = y[: FOLD.train.stop].mean() + rng.normal(size=ROWS - FOLD.test.start)

    found = best_rule(Series(), frame(y), FOLD, SETTINGS)

    truth = torch.from_numpy(y[FOLD.test.start :].astype(np.float32))[:, None]
    mean = Series().baseline(frame(y), FOLD)
    assert found.name == "last value"
    assert float((found.output - truth).square().mean()) > float((mean - truth).square().mean())


def test_rows_without_an_order_have_no_last_value():
    found = best_rule(Unordered(), walk(), FOLD, SETTINGS)

    assert set(found.losses) == {"train mean", "linear"}


def test_classes_are_compared_with_logistic_regression():
    x = np.random.default_rng(1).normal(size=ROWS)
    y = np.digitize(x, [-0.5, 0.5]).astype(float)

    found = best_rule(Classes(), frame(y, x), FOLD, SETTINGS)

    assert found.name == "logistic"
    assert set(found.losses) == {"class shares", "logistic"}
    assert found.output.exp().sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)
    assert float((found.output.argmax(1).numpy() == y[FOLD.test.start :]).mean()) > 0.95


def test_a_class_without_train_rows_is_not_impossible():
    x = np.random.default_rng(1).normal(size=ROWS)
    y = (x > 0).astype(float)
    y[FOLD.val.start :: 7] = 2

    found = best_rule(Classes(), frame(y, x), FOLD, SETTINGS)

    assert all(math.isfinite(loss) for loss in found.losses.values())
    assert torch.isfinite(found.output).all()


def test_token_ids_are_not_quantities():
    class Tokens(Classes):
        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            found = super().examples(frame, rows)
            return Examples(x=found.x.long(), y=found.y, rows=found.rows)

    y = np.random.default_rng(1).integers(0, 3, ROWS).astype(float)

    assert set(best_rule(Tokens(), frame(y), FOLD, SETTINGS).losses) == {"class shares"}


def test_windows_and_rows_are_bounded_by_the_settings():
    class Windows(Series):
        settings_type = WorkloadSettings

    workload = Windows(WorkloadSettings(seq_len=50))
    x = np.random.default_rng(1).normal(size=ROWS)
    few = BaselineSettings(max_rows=100, max_inputs=1)

    found = best_rule(workload, frame(2 * x, x), FOLD, few)

    assert found.name == "linear"  # the newest row of the window is the input that is kept
    assert found.losses["linear"] < 1e-3


def test_a_baseline_of_the_workloads_own_is_kept():
    own = choose_baseline(Owned(), walk(), [FOLD], SETTINGS)

    assert own.name == "the workload's baseline"
    assert own.outputs[0].abs().sum() == 0
    assert own.losses == {}


def test_each_fold_selects_its_rule_and_the_name_lists_them():
    later = FOLD.model_copy(update={"fold_id": 1})
    found = choose_baseline(Series(), walk(), [FOLD, later], SETTINGS)

    assert found.name == "the best simple rule (last value)"
    assert set(found.outputs) == set(found.losses) == {0, 1}
    assert describe_rules(["linear", "last value"]) == (
        "the best simple rule (linear in 1 of 2 folds, last value in 1)"
    )


def test_the_last_class_is_selected_for_persistent_classes():
    class Ordered(Classes):
        horizon_rows = 1

    rng = np.random.default_rng(3)
    y = np.zeros(ROWS)
    for row in range(1, ROWS):
        y[row] = y[row - 1] if rng.random() < 0.97 else rng.integers(0, 3)

    found = best_rule(Ordered(), frame(y), FOLD, SETTINGS)

    assert found.name == "last class"
    hit = found.output.argmax(dim=1).numpy() == y[FOLD.test.start :]
    assert hit.mean() > 0.95
    assert found.output.exp().sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)


def test_a_season_without_rows_is_refused():
    with pytest.raises(SettingsError, match=r"at least 1 row each, got \[0, 7\]"):
        BaselineSettings(season_rows=(0, 7))
