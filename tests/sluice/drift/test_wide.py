"""Wide tables are tested in a sample of columns, and the omitted ones are reported."""

import numpy as np
import pandas as pd
import pytest

from sluice.config.drift_settings import DriftSettings
from sluice.drift.page import drift_page
from sluice.drift.reference import build_reference
from sluice.drift.reference_file import parse_reference, reference_bytes
from sluice.drift.window_evaluation import evaluate_window

SETTINGS = DriftSettings(
    min_resamples=99, num_features=16, max_columns=8, alpha=0.1, window_rows=200
)


def make_wide_frame(seed: int, num_rows: int, num_columns: int) -> pd.DataFrame:
    x = np.random.default_rng(seed).standard_normal((num_rows, num_columns), dtype=np.float32)
    return pd.DataFrame(x, columns=[f"p{number}" for number in range(num_columns)])


@pytest.fixture(scope="module")
def reference():
    return build_reference(make_wide_frame(0, 1000, 3000), SETTINGS, seed=0, threads=1)


def test_a_wide_table_is_tested_in_a_sample_of_its_columns(reference):
    names = {column.name for column in reference.columns}

    assert len(names) == 8
    assert reference.num_tests == 9
    assert reference.joint is not None
    assert len(reference.features.numeric_positions) == 8
    assert (
        reference.calibration.joint.smallest_p_D.size
        == SETTINGS.num_resamples(9)
        < SETTINGS.num_resamples(3001)
    )
    assert len(reference.excluded_columns) == 2992
    assert not names & set(reference.excluded_columns)


def test_excluded_columns_are_reported_in_the_reference_the_report_and_the_page(reference):
    report = evaluate_window(reference, make_wide_frame(1, 200, 3000), window="w", threads=1)
    page = drift_page(report, reference, title="wide")

    for text in (reference.omission, report.left_out, report.reason, page):
        assert "2,992 of 3,000 columns are left out" in text
        assert "drift.max_columns" in text
    assert report.extra_columns == ()
    assert (
        parse_reference(reference_bytes(reference)).excluded_columns == reference.excluded_columns
    )


def test_a_table_of_max_columns_is_tested_completely():
    reference = build_reference(make_wide_frame(0, 300, 8), SETTINGS, seed=0, threads=1)

    assert (len(reference.columns), reference.excluded_columns, reference.omission) == (8, (), "")


def test_the_sample_depends_on_the_seed_and_not_on_the_order_of_columns(reference):
    frame = make_wide_frame(0, 1000, 3000)
    backwards = build_reference(frame.iloc[:, ::-1], SETTINGS, seed=0, threads=1)
    other = build_reference(frame, SETTINGS, seed=1, threads=1)

    assert set(backwards.excluded_columns) == set(reference.excluded_columns)
    assert set(other.excluded_columns) != set(reference.excluded_columns)


def test_progress_is_reported_while_columns_are_measured_and_calibrated():
    messages: list[str] = []
    settings = SETTINGS.model_copy(update={"max_columns": 20})

    build_reference(
        make_wide_frame(0, 300, 30), settings, seed=0, threads=1, on_progress=messages.append
    )

    assert messages == [
        "measured 16 of 20 columns",
        "measured 20 of 20 columns",
        "calibrated 16 of 20 columns",
        "calibrated 20 of 20 columns",
    ]


@pytest.mark.slow
def test_the_false_alarm_rate_of_a_sample_of_columns_is_nominal(reference):
    verdicts = [
        evaluate_window(reference, make_wide_frame(seed, 200, 3000), window="w", threads=1).verdict
        for seed in range(100, 300)
    ]
    rate = np.mean([verdict == "DRIFT" for verdict in verdicts])

    # alpha is 0.1, so 200 windows have a standard error of 0.021.
    assert rate <= 0.1 + 3 * 0.021


def test_drift_in_a_sampled_column_of_a_wide_table_is_detected(reference):
    frame = make_wide_frame(1, 200, 3000)
    name = reference.columns[3].name
    frame[name] += 1

    report = evaluate_window(reference, frame, window="w", threads=1)

    assert report.drifted_columns[0].column == name
