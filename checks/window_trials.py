"""Runs windows of rows, good or corrupted, through the schemas and the feature code."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.base.seeding import derive_seed
from sluice.checks.alarm_report import AlarmSettings
from sluice.checks.corruptions import CORRUPTIONS, Corruption, corruptible_columns
from sluice.data.schema import Schema
from sluice.data.validation import validate_schema
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTrial:
    """Window of rows with its features, and the schemas or code that rejected the window."""

    corruption: Corruption | None
    columns: tuple[str, ...]
    """Corrupted columns; empty for a good window, and if whole rows are corrupted."""

    raw: pd.DataFrame | None
    """Raw rows; None if the corruption is inserted into the features."""

    features: pd.DataFrame | None
    """Features; None if they could not be computed or if a column of the schema is missing."""

    rejected_by: tuple[str, ...]
    """Schemas or code that rejected the window, such as "the raw schema"; usually empty."""


def select_windows(raw: pd.DataFrame, length: int, settings: AlarmSettings) -> list[pd.DataFrame]:
    """Return at most ``settings.max_windows`` rolling windows of ``length`` rows.

    Raises:
        ContractError: The rows are too few for two windows.
    """
    starts = range(0, len(raw) - length + 1, settings.step_rows)
    if len(starts) < 2:
        raise ContractError(
            f"At least two windows of {length} rows are required ({settings.window_rows} rows with "
            f"features and {length - settings.window_rows} rows without), got {len(raw)} rows at "
            f"steps of {settings.step_rows}.",
            fix="Choose shorter windows or a shorter step.",
        )
    selected_starts = [
        starts[i] for i in evenly_spaced_positions(len(starts), settings.max_windows)
    ]
    return [raw.iloc[start : start + length] for start in selected_starts]


def evenly_spaced_positions(num_available: int, max_positions: int) -> list[int]:
    """Return at most ``max_positions`` evenly spaced positions of ``num_available``."""
    positions = np.linspace(0, num_available - 1, min(num_available, max_positions))
    return sorted({round(position) for position in positions})


def run_raw_corruptions(
    workload: Workload, windows: Sequence[pd.DataFrame], settings: AlarmSettings
) -> Iterator[WindowTrial]:
    """Yield the result of each corruption of the raw rows in each window."""
    for corruption, columns, corrupted_frame in _corrupted_frames(
        windows, workload.raw_schema, "raw", settings
    ):
        yield run_through_pipeline(workload, corrupted_frame, corruption, columns)


def run_feature_corruptions(
    workload: Workload, frames: Sequence[pd.DataFrame], settings: AlarmSettings
) -> Iterator[WindowTrial]:
    """Yield the result of each corruption of one feature column; it simulates faulty code."""
    schema = workload.feature_schema
    for corruption, columns, corrupted_frame in _corrupted_frames(
        frames, schema, "features", settings
    ):
        if corruption.inserted_into != "column":
            continue
        is_rejected = _is_rejected(lambda c=corrupted_frame: validate_schema(c, schema, "features"))  # type: ignore[misc]
        yield WindowTrial(
            corruption=corruption,
            columns=columns,
            raw=None,
            features=corrupted_frame,
            rejected_by=("the feature schema",) if is_rejected else (),
        )


def _corrupted_frames(
    frames: Sequence[pd.DataFrame], schema: Schema, stage: str, settings: AlarmSettings
) -> Iterator[tuple[Corruption, tuple[str, ...], pd.DataFrame]]:
    """Yield (corruption, columns, corrupted frame) for each frame that a corruption changes."""
    for corruption in CORRUPTIONS:
        for columns in corruptible_columns(corruption, schema):
            seed = derive_seed(settings.seed, f"{stage}_{corruption.name}_{'_'.join(columns)}")
            rng = np.random.default_rng(seed)
            for frame in frames:
                corrupted_frame = corruption.plant(frame, columns, rng)
                if not corrupted_frame.equals(frame):
                    yield corruption, columns, corrupted_frame


def run_through_pipeline(
    workload: Workload,
    raw: pd.DataFrame,
    corruption: Corruption | None = None,
    columns: tuple[str, ...] = (),
) -> WindowTrial:
    """Run one window through the raw schema, the feature code and the feature schema."""
    rejected_by = []
    if _is_rejected(lambda: validate_schema(raw, workload.raw_schema, "raw")):
        rejected_by.append("the raw schema")
    features: pd.DataFrame | None = None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # Corrupted rows cause warnings such as division by zero.
            warnings.simplefilter("ignore")
            with wrap_user_errors("compute_features of the workload"):
                features = workload.compute_features(raw)
        validate_schema(features, workload.feature_schema, "features")
    except ContractError:
        rejected_by.append("the feature code" if features is None else "the feature schema")
    if features is not None and not set(workload.feature_schema.names) <= set(features):
        features = None  # a column of the schema is missing, so expectations cannot be evaluated
    return WindowTrial(
        corruption=corruption,
        columns=columns,
        raw=raw,
        features=features,
        rejected_by=tuple(rejected_by),
    )


def _is_rejected(check: Callable[[], None]) -> bool:
    try:
        check()
    except ContractError:
        return True
    return False
