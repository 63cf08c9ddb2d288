"""Measures false alarm and missed alarm rates of a workload's expectations.

False alarms are counted in rolling windows of the pipeline's rows, which are assumed to be good.
Missed alarms are counted in some of these windows, into which a typical corruption is inserted.
Each window runs through all steps: raw schema, raw expectations, feature code, feature schema,
feature expectations.

Windows overlap, so their outcomes are not independent. The confidence intervals of the false alarm
rates therefore use the number of windows that fit without overlap.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from sluice.base.errors import ContractError
from sluice.checks.alarm_report import (
    AlarmRate,
    AlarmReport,
    AlarmSettings,
    CorruptionRates,
    ExpectationRates,
    TableName,
)
from sluice.checks.corruptions import CORRUPTIONS
from sluice.checks.expectations import with_implied
from sluice.checks.suite_report import columns_of, describe
from sluice.checks.window_outcomes import find_alarms
from sluice.checks.window_trials import (
    WindowTrial,
    evenly_spaced_positions,
    run_feature_corruptions,
    run_raw_corruptions,
    run_through_pipeline,
    select_windows,
)
from sluice.data.expectations import EngineExpectation, Expectation, RowCount
from sluice.workloads.workload import Workload

Progress = Callable[[str], None]


def measure_alarms(
    workload: Workload,
    settings: AlarmSettings,
    *,
    name: str,
    progress: Progress,
) -> AlarmReport:
    """Measure false and missed alarms of a workload's expectations.

    Args:
        workload: Workload; its rows are assumed to be good.
        settings: Windows and numbers of corruptions.
        name: Name of the pipeline or workload, for the report.
        progress: Receives a description of the current step.

    Raises:
        ContractError: The source has fewer than two windows of rows, or an expectation refers to
            a column that the table does not have.

    Cost:
        About 0.02 s per window, mostly for the feature code, after an import of 2 to 4 s.
    """
    progress("reading the rows")
    raw = workload.load_rows()
    features = workload.compute_features(raw)
    _require_columns(workload, raw, features)
    # Add the number of raw rows without features, such as the first rows of a rolling mean.
    raw_window_rows = settings.window_rows + len(raw) - len(features)
    good_windows = select_windows(raw, raw_window_rows, settings)
    progress(f"{len(good_windows)} windows of good rows")
    good_trials = [run_through_pipeline(workload, window) for window in good_windows]
    max_corrupted_windows = settings.plantings
    progress("inserting corruptions into the raw rows")
    corrupted_raw_trials = list(
        run_raw_corruptions(
            workload, _evenly_spaced_frames(good_windows, max_corrupted_windows), settings
        )
    )
    progress(
        f"{len(corrupted_raw_trials)} corrupted windows; inserting corruptions into the features"
    )
    good_features = [trial.features for trial in good_trials if trial.features is not None]
    corrupted_feature_trials = list(
        run_feature_corruptions(
            workload, _evenly_spaced_frames(good_features, max_corrupted_windows), settings
        )
    )
    progress(f"{len(corrupted_feature_trials)} corrupted feature windows; evaluating all windows")
    alarms_by_window = _find_alarms_by_window(
        workload, [*good_trials, *corrupted_raw_trials, *corrupted_feature_trials]
    )
    features_start = len(good_trials) + len(corrupted_raw_trials)
    num_disjoint_windows = max(1, len(raw) // raw_window_rows)
    return AlarmReport(
        workload=name,
        settings=settings,
        num_rows=len(raw),
        num_windows=len(good_trials),
        disjoint_windows=num_disjoint_windows,
        refused_windows=sum(bool(t.rejected_by) for t in good_trials),
        expectations=tuple(
            _expectation_rates(
                workload,
                alarms_by_window,
                len(good_trials),
                num_disjoint_windows,
                settings.confidence,
            )
        ),
        corruptions=(
            *_corruption_rates(
                "raw_data",
                corrupted_raw_trials,
                alarms_by_window[len(good_trials) : features_start],
                settings,
            ),
            *_corruption_rates(
                "features", corrupted_feature_trials, alarms_by_window[features_start:], settings
            ),
        ),
    )


def _evenly_spaced_frames(frames: Sequence[pd.DataFrame], max_frames: int) -> list[pd.DataFrame]:
    return [frames[position] for position in evenly_spaced_positions(len(frames), max_frames)]


def _require_columns(workload: Workload, raw: pd.DataFrame, features: pd.DataFrame) -> None:
    for table, frame in (("raw_data", raw), ("features", features)):
        for expectation in _all_expectations(workload, table):  # type: ignore[arg-type]
            missing_columns = [c for c in columns_of(expectation) if c not in frame]
            if missing_columns:
                raise ContractError(
                    f"Every column of an expectation must exist, but '{missing_columns[0]}' of "
                    f"'{describe(expectation)}' is not in {table}.",
                    fix="Correct the workload's expectation; no data can satisfy it.",
                )


def _find_alarms_by_window(
    workload: Workload, trials: Sequence[WindowTrial]
) -> list[dict[TableName, set[str]]]:
    """Return for each window, by table, the descriptions of the expectations that did not pass."""
    alarms_by_window: list[dict[TableName, set[str]]] = [
        {"raw_data": set(), "features": set()} for _ in trials
    ]
    for table, frames in (
        ("raw_data", [t.raw for t in trials]),
        ("features", [t.features for t in trials]),
    ):
        window_expectations = _window_expectations(_all_expectations(workload, table))  # type: ignore[arg-type]
        sentences = [describe(e) for e in window_expectations]
        positions = [i for i, frame in enumerate(frames) if frame is not None]
        if not window_expectations or not positions:
            continue
        # W = windows, E = expectations.
        is_alarm_WE = find_alarms([f for f in frames if f is not None], window_expectations)
        for i, is_alarm_E in zip(positions, is_alarm_WE, strict=True):
            alarms_by_window[i][table] = {  # type: ignore[index]
                sentence
                for sentence, is_alarm in zip(sentences, is_alarm_E, strict=True)
                if is_alarm
            }
    return alarms_by_window


def _all_expectations(workload: Workload, table: TableName) -> tuple[Expectation, ...]:
    """Return the declared expectations of a table, and the not-null expectations they imply."""
    declared_expectations = (
        workload.raw_expectations if table == "raw_data" else workload.feature_expectations
    )
    all_expectations, _ = with_implied(declared_expectations)
    return all_expectations


def _window_expectations(expectations: Sequence[Expectation]) -> list[Expectation]:
    """Return the expectations that can be evaluated on windows of rows.

    A ``RowCount`` limits the number of rows of the whole table. An ``EngineExpectation``, a class
    of Great Expectations, may use a value of the whole table, such as its mean.
    """
    return [e for e in expectations if not isinstance(e, RowCount | EngineExpectation)]


def _expectation_rates(
    workload: Workload,
    alarms_by_window: Sequence[dict[TableName, set[str]]],
    num_good_windows: int,
    num_disjoint_windows: int,
    confidence: float,
) -> Iterator[ExpectationRates]:
    tables: tuple[TableName, ...] = ("raw_data", "features")
    for table in tables:
        for expectation in _all_expectations(workload, table):
            sentence = describe(expectation)
            num_alarms = sum(
                sentence in sentences[table] for sentences in alarms_by_window[:num_good_windows]
            )
            yield ExpectationRates(
                table=table,
                sentence=sentence,
                false_alarms=None
                if isinstance(expectation, RowCount | EngineExpectation)
                else AlarmRate.of_windows(
                    num_alarms,
                    num_good_windows,
                    confidence=confidence,
                    num_independent=num_disjoint_windows,
                ),
                caught=sum(
                    sentence in sentences[table]
                    for sentences in alarms_by_window[num_good_windows:]
                ),
            )


def _corruption_rates(
    planted_in: TableName,
    trials: Sequence[WindowTrial],
    alarms_by_window: Sequence[dict[TableName, set[str]]],
    settings: AlarmSettings,
) -> Iterator[CorruptionRates]:
    for corruption in CORRUPTIONS:
        outcomes = [
            (t, sentences_by_table)
            for t, sentences_by_table in zip(trials, alarms_by_window, strict=True)
            if t.corruption is corruption
        ]
        if not outcomes:
            continue
        detected_by: Counter[str] = Counter()
        missed_columns: Counter[str] = Counter()
        num_caught = num_rejected = 0
        for trial, sentences_by_table in outcomes:
            detectors = [
                f"{table}: {sentence}"
                for table, sentences in sentences_by_table.items()
                for sentence in sorted(sentences)
            ]
            detected_by.update([*detectors, *trial.rejected_by])
            num_caught += bool(detectors)
            num_rejected += bool(trial.rejected_by) and not detectors
            if not detectors and not trial.rejected_by:
                missed_columns[" and ".join(trial.columns) or "rows"] += 1
        yield CorruptionRates(
            planted_in=planted_in,
            corruption=corruption.name,
            planted=len(outcomes),
            caught=num_caught,
            refused=num_rejected,
            missed=AlarmRate.of_windows(
                missed_columns.total(), len(outcomes), confidence=settings.confidence
            ),
            caught_by=dict(detected_by.most_common()),
            missed_in=dict(missed_columns.most_common()),
        )
