"""BarsWorkload on the packaged bars: features, targets, baseline, metrics and settings."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError, SchemaError, SettingsError, SourceError
from sluice.data.validation import validate_schema
from sluice.workloads.bars import BarsSettings, BarsWorkload
from tests.sluice.workloads.bar_samples import random_bars


@pytest.fixture(scope="module")
def workload() -> BarsWorkload:
    return BarsWorkload()


@pytest.fixture(scope="module")
def raw(workload) -> pd.DataFrame:
    return workload.load_rows()


@pytest.fixture(scope="module")
def frame(workload, raw) -> pd.DataFrame:
    return workload.compute_features(raw)


def test_features_match_the_schema_and_drop_only_warm_up_and_last_row(workload, raw, frame):
    validate_schema(frame, workload.feature_schema, "features")

    # The warm-up has 10 + 63 - 1 rows; the last row has no target.
    assert frame.index.equals(raw.index[72:-1])
    assert list(frame.columns[:9]) == list(workload.feature_columns)


def test_target_is_the_next_row_and_features_have_no_look_ahead(workload, raw, frame):
    assert frame["next_log_var"].iloc[:-1].tolist() == frame["log_var"].iloc[1:].tolist()
    closes = raw["close"].loc[frame.index]
    assert frame["next_return"].iloc[0] == pytest.approx(closes.iloc[1] / closes.iloc[0] - 1)

    changed = raw.copy()
    changed.iloc[1001:] *= 1.5
    changed_frame = workload.compute_features(changed)
    row = 1000 - 72
    future_columns = ["next_log_var", "next_return"]
    expected = frame.drop(columns=future_columns).iloc[: row + 1]
    pd.testing.assert_frame_equal(
        changed_frame.drop(columns=future_columns).iloc[: row + 1], expected, check_exact=True
    )
    pd.testing.assert_frame_equal(changed_frame.iloc[:row], frame.iloc[:row], check_exact=True)
    assert changed_frame["next_return"].iloc[row] != frame["next_return"].iloc[row]


def test_vs_return_target_is_the_next_return_divided_by_trailing_volatility(raw):
    workload = BarsWorkload(BarsSettings(target="vs_return"))
    frame = workload.compute_features(raw)

    validate_schema(frame, workload.feature_schema, "features")
    expected = np.log1p(frame["next_return"]) / frame["trailing_vol"]
    np.testing.assert_allclose(frame["next_vs_return"], expected, rtol=1e-9)
    np.testing.assert_allclose(
        frame["next_vs_return"].iloc[:-1], frame["returns_vs"].iloc[1:], rtol=1e-9
    )


def test_features_are_bitwise_reproducible(workload, raw, frame):
    pd.testing.assert_frame_equal(workload.compute_features(raw), frame, check_exact=True)


def test_har_loss_on_packaged_bars_is_unchanged(workload, frame):
    """The loss is 0.701 over 2,975 test days; the prototype had 0.697 over 2,958."""
    losses = []
    for fold in workload.plan_folds(frame):
        test = workload.examples(frame, fold.test)
        forecast = workload.baseline(frame, fold)
        assert forecast.shape == test.y.shape
        losses.append(workload.losses(forecast, test.y))

    assert len(torch.cat(losses)) == 2975
    assert float(torch.cat(losses).mean()) == pytest.approx(0.7011, abs=2e-4)


def test_har_loss_is_20_percent_below_the_train_mean(workload, frame):
    for fold in workload.plan_folds(frame):
        test = workload.examples(frame, fold.test)
        mean = super(BarsWorkload, workload).baseline(frame, fold)
        har = workload.baseline(frame, fold)

        assert workload.losses(har, test.y).mean() < 0.8 * workload.losses(mean, test.y).mean()


def test_baseline_of_vs_return_is_the_train_mean(raw):
    workload = BarsWorkload(BarsSettings(target="vs_return"))
    frame = workload.compute_features(raw)
    fold = workload.plan_folds(frame)[0]

    forecast = workload.baseline(frame, fold)

    train = frame["next_vs_return"].iloc[21 : fold.train.stop].mean()
    assert forecast.shape == (len(fold.test), 1)
    np.testing.assert_allclose(forecast, train, rtol=1e-4)


def test_metrics_equal_a_python_loop(workload, frame):
    fold = workload.plan_folds(frame)[1]
    examples = workload.examples(frame, fold.test)
    output = workload.baseline(frame, fold)

    metrics = workload.metrics(output, examples, frame)

    returns, squared_errors, absolute_errors = [], [], []
    for row, value in zip(examples.rows, output.flatten().tolist(), strict=True):
        position = min(2.0, 0.10 / math.sqrt(252) / math.sqrt(math.exp(value)))
        returns.append(position * frame["next_return"].iloc[row])
        squared_errors.append((value - frame["next_log_var"].iloc[row]) ** 2)
        absolute_errors.append(abs(value - frame["next_log_var"].iloc[row]))
    mean = sum(returns) / len(returns)
    variance = sum((x - mean) ** 2 for x in returns) / (len(returns) - 1)
    downside = sum(min(x, 0) ** 2 for x in returns) / len(returns)
    assert metrics["loss"] == pytest.approx(sum(squared_errors) / len(squared_errors), rel=1e-4)
    assert metrics["mae"] == pytest.approx(sum(absolute_errors) / len(absolute_errors), rel=1e-4)
    assert metrics["sharpe"] == pytest.approx(mean / math.sqrt(variance) * math.sqrt(252), rel=1e-5)
    assert metrics["sortino"] == pytest.approx(
        mean / math.sqrt(downside) * math.sqrt(252), rel=1e-5
    )
    assert workload.headline_metric in metrics


def test_perfect_forecast_has_positive_sharpe_and_its_negative_the_opposite(raw):
    workload = BarsWorkload(BarsSettings(target="vs_return"))
    frame = workload.compute_features(raw)
    examples = workload.examples(frame, workload.plan_folds(frame)[0].test)

    perfect = workload.metrics(examples.y, examples, frame)
    negated = workload.metrics(-examples.y, examples, frame)

    assert perfect["loss"] == 0
    assert perfect["sharpe"] > 5
    assert negated["sharpe"] == pytest.approx(-perfect["sharpe"])


@pytest.mark.parametrize("value", [1e4, -1e4, float("nan")])
def test_metrics_of_extreme_or_nan_outputs_do_not_raise(workload, frame, value):
    examples = workload.examples(frame, workload.plan_folds(frame)[0].test)
    output = torch.full_like(examples.y, value, requires_grad=True)

    metrics = workload.metrics(output, examples, frame)

    assert math.isnan(metrics["loss"]) == math.isnan(value)
    assert math.isnan(metrics["sharpe"]) == math.isnan(value)


def write_csv_source(bars: pd.DataFrame, tmp_path, **rename: str) -> dict[str, object]:
    """Write bars as a CSV file and return the settings of its source."""
    path = tmp_path / "bars.csv"
    bars.rename(columns=rename).to_csv(path)
    return {"kind": "csv", "uri": str(path), "index": "date"}


def test_user_csv_is_configurable_without_code(tmp_path):
    bars = random_bars(700)
    values = {
        "source": write_csv_source(bars, tmp_path, close="Last") | {"rename": {"Last": "close"}},
        "folds": {"num_folds": 3, "embargo_rows": 2},
        "features": {"regime_long_rows": 40},
        "position": {"max_leverage": 1.5},
        "har": {"month_rows": 20},
        "target": "log_gk_variance",
        "min_rows": 600,
    }
    workload = BarsWorkload(BarsSettings.parse(values, where="test"))

    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    pd.testing.assert_frame_equal(raw, bars, check_freq=False, check_index_type=False)
    assert len(workload.plan_folds(frame)) == 3
    for fold in workload.plan_folds(frame):
        assert torch.isfinite(workload.baseline(frame, fold)).all()


def test_too_few_bars_are_rejected_with_the_required_number(tmp_path):
    """The minimum number of rows of a workload is checked (POC-6)."""
    source = write_csv_source(random_bars(40), tmp_path)
    settings = BarsSettings.parse({"source": source}, where="test")

    with pytest.raises(ContractError, match="At least 500 bars are required, got 40 "):
        BarsWorkload(settings).load_rows()


def test_required_rows_cover_folds_and_warm_up_even_if_min_rows_is_lower(tmp_path):
    settings = BarsSettings.parse({"min_rows": 1}, where="test")
    required = BarsWorkload(settings).required_rows
    assert 100 < required < 500

    too_few = BarsSettings.parse(
        {"min_rows": 1, "source": write_csv_source(random_bars(required - 1), tmp_path)},
        where="test",
    )
    with pytest.raises(ContractError, match=f"At least {required} bars"):
        BarsWorkload(too_few).load_rows()

    settings = BarsSettings.parse(
        {"min_rows": 1, "source": write_csv_source(random_bars(required), tmp_path)}, where="test"
    )
    workload = BarsWorkload(settings)
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    assert torch.isfinite(workload.baseline(frame, fold)).all()
    assert len(workload.examples(frame, fold.train)) >= 1


def test_invalid_bars_are_rejected_by_compute_features(workload):
    bars = random_bars(600)

    with pytest.raises(SchemaError, match="'close' is missing"):
        workload.compute_features(bars.drop(columns="close"))
    with pytest.raises(SchemaError, match="must be sorted"):
        workload.compute_features(bars[::-1])
    with pytest.raises(SchemaError, match="must be unique"):
        workload.compute_features(pd.concat([bars, bars.iloc[-1:]]))
    with pytest.raises(SchemaError, match="no nulls"):
        workload.compute_features(bars.assign(low=bars["low"].where(bars.index.day != 5)))
    with pytest.raises(ContractError, match="high must be at least low"):
        workload.compute_features(bars.rename(columns={"high": "low", "low": "high"}))


def test_missing_file_raises_source_error(tmp_path):
    source = {"kind": "csv", "uri": str(tmp_path / "no.csv")}

    with pytest.raises(SourceError, match="There is no file"):
        BarsWorkload(BarsSettings.parse({"source": source}, where="test")).load_rows()


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"traget": "vs_return"}, "Did you mean 'target'"),
        ({"target": "log_gk"}, "'target'"),
        ({"source": {"kind": "csv", "url": "x"}}, "Did you mean 'uri'"),
        ({"source": {"kind": "cvs", "uri": "x"}}, "'csv'"),
        ({"features": {"vol_row": 3}}, "Did you mean 'vol_rows'"),
        ({"seq_len": "22"}, "'seq_len'"),
        ({"seq_len": 0}, "greater than or equal to 1"),
        ({"min_rows": 1.5}, "'min_rows'"),
    ],
)
def test_invalid_setting_error_names_the_setting(values, cause):
    """Settings errors suggest the valid name (CONF-1)."""
    with pytest.raises(SettingsError, match=cause):
        BarsSettings.parse(values, where="defs.yaml")
