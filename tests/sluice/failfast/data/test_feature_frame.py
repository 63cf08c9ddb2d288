"""POC-8: the features can be computed, match their schema, vary, and exclude the target."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.config.poc_settings import PocSettings
from sluice.data.folds import Fold, FoldSettings, RowRange, walk_forward
from sluice.data.schema import Column, Schema
from sluice.failfast.data.feature_frame import check_features
from sluice.failfast.data.missing_classes import (
    find_classes_missing_in_splits,
    find_missing_classes,
)
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.bars import BarsWorkload
from sluice.workloads.examples import Examples
from sluice.workloads.image_folder import ImageFolderSettings, ImageFolderWorkload
from sluice.workloads.workload import Workload
from tests.sluice.workloads.bar_samples import random_bars
from tests.support.echo import Echo, SignOnly
from tests.support.failfast_workloads import OwnNet, Signals

ROWS = 600


class ChangedFrame(Signals):
    """Healthy workload whose feature frame is changed by ``change_frame``."""

    @staticmethod
    def change_frame(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return self.change_frame(super().compute_features(raw))


def run_check(workload: Workload, settings: PocSettings | None = None) -> CheckOutcome:
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    folds = workload.plan_folds(frame)
    return check_features(workload, raw, frame, folds, settings or PocSettings())


def check_changed_frame(change, **attributes: object) -> CheckOutcome:
    workload_class = type(
        "Planted", (ChangedFrame,), {"change_frame": staticmethod(change), **attributes}
    )
    return run_check(workload_class())


def check_digits(
    settings: PocSettings | None = None, *, num_constant: int = 3, num_columns: int = 64
) -> CheckOutcome:
    class Digits(Workload):
        raw_schema = Schema(columns=())
        feature_schema = Schema(columns=())
        feature_columns = tuple(f"p{i}" for i in range(num_columns))
        target_column = "digit"
        scale_target = False

        def load_rows(self) -> pd.DataFrame:
            rng = np.random.default_rng(0)
            pixels = rng.integers(0, 17, size=(ROWS, num_columns))
            pixels[:, :num_constant] = 0
            return pd.DataFrame(pixels, columns=self.feature_columns).assign(
                digit=rng.integers(0, 10, ROWS)
            )

        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            return raw

        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            part = frame.iloc[rows.start : rows.stop]
            x = torch.tensor(part[list(self.feature_columns)].to_numpy(np.float32))
            y = torch.tensor(part["digit"].to_numpy(np.int64))
            return Examples(x=x.reshape(-1, 1, num_columns), y=y, rows=rows.positions())

    return run_check(Digits(), settings)


@pytest.mark.parametrize("workload_class", [Signals, OwnNet, Echo, SignOnly])
def test_healthy_workloads_pass(workload_class: type[Workload]) -> None:
    finding = run_check(workload_class())

    assert (finding.outcome, finding.fault) == ("pass", None)


def test_one_feature_is_named_in_the_singular() -> None:
    assert (
        ", 1 feature; fold 0"
        in run_check(type("One", (Signals,), {"feature_columns": ("a",)})()).summary
    )


@pytest.mark.parametrize("target", ["log_gk_variance", "vs_return"])
def test_bars_pass_and_report_features_and_rows(target: str) -> None:
    workload = BarsWorkload(BarsWorkload().settings.model_copy(update={"target": target}))
    raw = random_bars(900)
    frame = workload.compute_features(raw)

    finding = check_features(workload, raw, frame, workload.plan_folds(frame), PocSettings())

    assert finding.outcome == "pass"
    assert finding.numbers["features"] == 9
    assert finding.numbers["rows"] == len(frame)


@pytest.mark.parametrize(
    ("change", "fault", "expected_text"),
    [
        (lambda f: f.rename(columns={"a": "A"}), "missing columns", "(nearest: 'A')"),
        (lambda f: f.drop(columns="b"), "missing columns", "name 'b', but"),
        (lambda f: f.assign(a=f["a"].shift(1)), "feature schema mismatch", "no nulls, got 1"),
        (lambda f: f.assign(c=f["c"].shift(1)), "feature schema mismatch", "x must be finite"),
        (lambda f: f.set_axis(f.index + 5), "feature schema mismatch", "5 of 700 are new"),
        (lambda f: f.head(99), "too few rows", "100 rows of features are required, got 99"),
        (lambda f: f.assign(b=2.5), "constant column", "'b' is 2.5"),
        (lambda f: f.assign(b=1e9 + 1e-7 * f["b"].round()), "constant column", "'b'"),
        (lambda f: f.assign(a=1.0, b=2.0), "constant column", "2 of 3 features"),
        (lambda f: f.assign(c=f["target"]), "target leakage", "at least 0.9999 for 'c'"),
        (lambda f: f.assign(c=3 - 100 * f["target"]), "target leakage", "at least 0.9999 for 'c'"),
        (lambda f: f.assign(c=f["target"].round(3)), "target leakage", "at least 0.9999 for 'c'"),
        (lambda f: f.assign(target=4.0), "constant target", "targets of fold 0 ('target') are 4"),
    ],
)
def test_each_defect_is_named_with_cause_and_fix(change, fault: str, expected_text: str) -> None:
    finding = check_changed_frame(change)

    assert (finding.outcome, finding.fault) == ("fail", fault)
    assert expected_text in finding.summary
    assert all(finding.response)


class Labelled(ChangedFrame):
    """Classification workload: the classes are intervals of the target's rank."""

    task = "classification"
    classes = ("low", "middle", "high")
    num_present = 3

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = super().compute_features(raw)
        ranks = frame["target"].rank(method="first") - 1
        return frame.assign(target=ranks * self.num_present // len(frame))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, ""),
        ({"num_present": 2}, "class 'high' has none among 700 rows"),
        ({"classes": tuple("abcdef")}, "the classes 'd', 'e', 'f' have none"),
        ({"classes": tuple(range(10))}, "'3', '4', '5', '6', '7' and 2 more have none"),
    ],
)
def test_every_declared_class_must_have_an_example(attributes, expected: str) -> None:
    finding = run_check(type("Planted", (Labelled,), attributes)())

    if expected:
        assert (finding.outcome, finding.fault) == ("fail", "raw schema mismatch")
        assert expected in finding.summary
        assert all(finding.response)
    else:
        assert finding.outcome == "pass"


@pytest.mark.parametrize(
    ("rows_of_high", "expected"),
    [
        ((slice(0, 4), slice(600, 604)), ""),
        ((slice(600, 604),), "Fold 0 has no train row of class 'high'."),
        ((slice(0, 4),), "No test row belongs to class 'high'."),
    ],
)
def test_class_without_train_or_test_rows_leads_to_a_warning(rows_of_high, expected) -> None:
    workload = Labelled()
    frame = pd.DataFrame({"target": np.arange(700) % 2})
    for rows in rows_of_high:
        frame.loc[frame.index[rows], "target"] = 2

    finding = find_classes_missing_in_splits(
        workload,
        frame,
        walk_forward(len(frame), FoldSettings(num_folds=2, first_test_share=0.5), horizon_rows=1),
    )

    assert (finding.summary if finding else "").startswith(expected)
    assert bool(finding) == bool(expected)
    if finding:
        assert (finding.outcome, finding.fault) == ("warn", "too few rows")


def test_feature_check_warns_of_a_class_without_train_rows() -> None:
    class Rare(Labelled):
        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            frame = super().compute_features(raw)
            labels = np.minimum(frame["target"].to_numpy(), 1)
            labels[-1] = 2
            return frame.assign(target=labels)

    finding = run_check(Rare())

    assert finding.outcome == "warn"
    assert "has no train row of class 'high'" in finding.summary


@pytest.mark.parametrize(
    ("is_removed", "expected"), [(False, "bird has no image"), (True, "bird does not exist")]
)
def test_the_folder_of_a_class_without_images_is_named(tmp_path, is_removed, expected) -> None:
    workload = type("Pets", (ImageFolderWorkload,), {"classes": ("bird", "cat", "dog")})(
        ImageFolderSettings(folder=str(tmp_path))
    )
    (tmp_path / "bird").mkdir()
    if is_removed:
        (tmp_path / "bird").rmdir()
    frame = pd.DataFrame({"class": [1, 2, 2, 1]})

    finding = find_missing_classes(workload, frame)

    assert finding is not None
    assert "class 'bird' has none among 4 rows" in finding.summary
    assert f"The folder {tmp_path / expected}." in finding.summary


def test_target_column_among_the_features_fails() -> None:
    finding = check_changed_frame(lambda f: f, feature_columns=("a", "b", "target"))

    assert finding.fault == "target leakage"
    assert "contains the target 'target' itself" in finding.summary


def test_declared_constant_column_passes() -> None:
    schema = Schema(columns=(Column(name="b", constant=True), Column(name="target")))

    assert check_changed_frame(lambda f: f.assign(b=0.0), feature_schema=schema).outcome == "pass"


def test_flag_that_is_constant_in_the_train_rows_warns() -> None:
    finding = check_changed_frame(lambda f: f.assign(b=(np.arange(len(f)) > 400) * 1.0))

    assert (finding.outcome, finding.fault) == ("warn", "constant column")


def test_other_feature_that_is_constant_in_the_train_rows_fails() -> None:
    later = np.random.default_rng(0).normal(size=700) * (np.arange(700) > 400)

    assert check_changed_frame(lambda f: f.assign(b=later)).outcome == "fail"


def test_constant_target_without_expected_signal_only_warns() -> None:
    finding = check_changed_frame(lambda f: f.assign(target=0.0), expects_signal=False)

    assert (finding.outcome, finding.fault) == ("warn", "constant target")


@pytest.mark.parametrize(
    ("num_constant", "num_columns", "expected"),
    [(0, 64, "pass"), (3, 64, "warn"), (32, 64, "warn"), (33, 64, "fail"), (3, 31, "fail")],
)
def test_up_to_half_constant_columns_only_warn_in_a_wide_table(
    num_constant: int, num_columns: int, expected: str
) -> None:
    assert check_digits(num_constant=num_constant, num_columns=num_columns).outcome == expected


def test_minimum_width_of_a_wide_table_is_a_setting() -> None:
    assert check_digits(PocSettings(wide_table_columns=65)).outcome == "fail"


@pytest.mark.parametrize(
    "series",
    [
        lambda rng: rng.normal(size=40_000).cumsum() + 1000,
        lambda _: np.sin(np.arange(3000) / 300),
        lambda rng: (rng.random(3000) < 0.001).cumsum() % 2.0,
        lambda _: np.arange(3000.0),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_latest_value_of_a_slow_series_is_not_target_leakage(series, seed: int) -> None:
    class Slow(Workload):
        raw_schema = feature_schema = Schema(columns=())
        feature_columns = ("now", "before")
        target_column = "next"

        def load_rows(self) -> pd.DataFrame:
            return pd.DataFrame({"now": series(np.random.default_rng(seed))})

        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            now = raw["now"]
            return raw.assign(before=now.shift(1), next=now.shift(-1)).dropna()

    assert run_check(Slow()).fault in (
        None,
        "constant column",
        "constant target",
        "shuffled labels",
    )
    leaky = type("Leaky", (Slow,), {"feature_columns": ("now", "next_again")})
    leaky.compute_features = lambda self, raw: (  # type: ignore[method-assign]
        Slow.compute_features(self, raw).assign(next_again=lambda f: f["next"])
    )
    assert run_check(leaky()).fault in ("target leakage", "constant target", "shuffled labels")


def test_target_column_may_be_a_feature_of_the_next_row() -> None:
    class Autoregressive(Signals):
        feature_columns = ("a", "b", "target")

        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            examples = super().examples(frame, rows)
            next_target = frame["target"].to_numpy(np.float32)[examples.rows + 1]
            return replace(examples, y=torch.from_numpy(next_target)[:, None])

    assert run_check(Autoregressive()).outcome == "pass"


def test_number_of_tokens_may_differ_between_splits() -> None:
    class Tokens(Signals):
        scale_inputs = False

        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            examples = super().examples(frame, rows)
            num_tokens = 5 + len(examples) % 7
            return replace(examples, x=torch.zeros(len(examples), num_tokens, dtype=torch.int64))

    assert run_check(Tokens()).outcome == "pass"


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        (lambda e: (e.x, e.y), "must return Examples, got tuple"),
        (lambda e: replace(e, y=e.y[1:]), "the same length and not be empty, got 225, 224 and 225"),
        (lambda e: replace(e, x=e.x.numpy()), "x must be a tensor or a row source, got ndarray"),
        (lambda e: replace(e, rows=e.rows + 400), "rows must be within 0:228, got 403 to 627"),
    ],
)
def test_malformed_examples_are_rejected(change, expected_text: str) -> None:
    class Broken(Signals):
        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            return change(super().examples(frame, rows))  # type: ignore[no-any-return]

    finding = run_check(Broken())

    assert (finding.outcome, finding.fault) == ("fail", "shape mismatch")
    assert expected_text in finding.summary


def test_splits_with_different_numbers_of_features_are_rejected() -> None:
    class Encoded(Signals):
        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            examples = super().examples(frame, rows)
            return replace(examples, x=examples.x[..., : 3 if rows.start == 0 else 2])

    assert "in train and" in run_check(Encoded()).summary


def test_non_table_is_rejected() -> None:
    workload = Signals()

    finding = check_features(workload, workload.load_rows(), None, (), PocSettings())  # type: ignore[arg-type]

    assert (finding.outcome, finding.fault) == ("fail", "feature schema mismatch")
    assert "compute_features() must return a pandas DataFrame" in finding.summary


def test_missing_folds_and_folds_beyond_the_table_are_rejected() -> None:
    class NoFolds(Signals):
        def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:  # noqa: ARG002
            return ()

    class LongFolds(Signals):
        def plan_folds(self, frame: pd.DataFrame) -> tuple[Fold, ...]:
            (*others, last) = super().plan_folds(frame)
            test_rows = RowRange(start=last.test.start, stop=last.test.stop + 1)
            return (*others, last.model_copy(update={"test": test_rows}))

    assert "plan_folds() returned none" in run_check(NoFolds()).summary
    assert "Fold 3 extends to row 701, but there are only 700" in run_check(LongFolds()).summary
