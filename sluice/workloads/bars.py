"""Workload for daily price bars: forecasts the next variance, compared with a HAR baseline."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data import sources
from sluice.data.expectations import Expectation
from sluice.data.folds import Fold, rows_needed
from sluice.data.rows.protocol import read_all_as_tensor
from sluice.data.schema import Schema
from sluice.data.source_settings import PackagedBars, SourceSettings
from sluice.data.validation import validate_schema
from sluice.metrics.trading import trading_metrics
from sluice.workloads.bars_contract import (
    FEATURES,
    RAW_SCHEMA,
    TARGETS,
    feature_expectations,
    feature_schema,
    raw_expectations,
    validate_bars,
)
from sluice.workloads.bars_features import (
    FeatureSettings,
    log_gk_variance,
    log_returns,
    nine_features,
    trailing_volatility,
)
from sluice.workloads.examples import Examples
from sluice.workloads.har import HarSettings, har_forecast
from sluice.workloads.volatility_target import PositionSettings, volatility_position
from sluice.workloads.workload import Workload, WorkloadSettings

_MAX_LOG_VOL = 50.0
"""Magnitude at which forecasts of log volatility are clipped. No market reaches it, and its
exponential is still representable as a float."""


class BarsSettings(WorkloadSettings):
    """Settings of the source of the bars, the target, the features and the position."""

    source: SourceSettings = Field(PackagedBars(), description="Source of the bars.")
    target: Literal["log_gk_variance", "vs_return"] = Field(
        "log_gk_variance",
        description="Target: the log Garman-Klass variance of the next row, or the return of the "
        "next row in standard deviations.",
    )
    seq_len: int = Field(22, ge=1, le=10_000, description="Length of the input window [rows].")
    min_rows: int = Field(500, ge=1, description="Minimum number of bars [rows].")
    features: FeatureSettings = FeatureSettings()
    har: HarSettings = HarSettings()
    position: PositionSettings = PositionSettings()


class BarsWorkload(Workload):
    """Workload of price bars with nine features and a target from the next row.

    The baseline for the target ``log_gk_variance`` is HAR. The baseline for ``vs_return`` is the
    mean of the train targets, the average drift of the market: returns have no persistence that a
    regression like HAR could use.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = BarsSettings
    settings: BarsSettings

    raw_schema: Schema = RAW_SCHEMA
    feature_columns: tuple[str, ...] = tuple(column.name for column in FEATURES)
    headline_metric: str = "sharpe"

    def __init__(self, settings: BarsSettings | None = None) -> None:
        self.settings = settings if settings is not None else BarsSettings()
        target = TARGETS[self.settings.target]
        self.target_column = target.name
        self.expects_signal = self.settings.target == "log_gk_variance"
        self.loss_unit = f"({target.unit}) squared"
        self.feature_schema = feature_schema(self.settings.target)
        self.raw_expectations: tuple[Expectation, ...] = raw_expectations(
            min_rows=self.required_rows
        )
        self.feature_expectations: tuple[Expectation, ...] = feature_expectations(
            self.settings.target,
            self.settings.features,
            min_rows=self.required_rows - self._num_dropped_rows,
        )

    @property
    def required_rows(self) -> int:
        """Number of bars that warm-up, all folds and the baseline need; at least ``min_rows``."""
        return max(self.settings.min_rows, self._num_fold_rows + self._num_dropped_rows)

    @property
    def _num_fold_rows(self) -> int:
        settings = self.settings
        return rows_needed(
            settings.folds,
            horizon_rows=self.horizon_rows,
            min_train_rows=settings.seq_len + settings.har.month_rows,
        )

    @property
    def _num_dropped_rows(self) -> int:
        # Features are undefined during the warm-up, and the last bar has no target.
        return self.settings.features.warm_up_rows + self.horizon_rows

    def load_rows(self) -> pd.DataFrame:
        """Return the unchanged bars of the source.

        Raises:
            SourceError: The source is missing, empty or unreadable.
            ContractError: The source has fewer than ``required_rows`` bars.
        """
        rows = sources.load_rows(self.settings.source, schema=self.raw_schema)
        self._require_enough_rows(len(rows))
        return rows

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the nine features, the target, ``log_var``, ``trailing_vol``, ``next_return``.

        The first rows, whose features are not yet defined, and the last row, which has no target,
        are dropped. Only the target and ``next_return`` look one row ahead.

        Raises:
            SchemaError: ``raw`` does not match the raw schema.
            ContractError: The bars are inconsistent.
        """
        validate_schema(raw, self.raw_schema, "raw")
        validate_bars(raw)
        settings = self.settings.features
        close = raw["close"]
        volatility = trailing_volatility(
            close, rows=settings.vol_rows, floor=settings.min_volatility
        )
        log_var = log_gk_variance(raw, floor=settings.min_volatility**2)
        frame = nine_features(raw, settings)
        if self.settings.target == "log_gk_variance":
            frame[self.target_column] = log_var.shift(-1)
        else:
            frame[self.target_column] = log_returns(close).shift(-1) / volatility
        frame["log_var"] = log_var
        frame["trailing_vol"] = volatility
        frame["next_return"] = close.shift(-1) / close - 1
        return frame.iloc[settings.warm_up_rows : len(frame) - self.horizon_rows]

    def metrics(
        self, output: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> Mapping[str, float]:
        """Return loss (mean squared error), mae, and the trading metrics of the position.

        The position is opened at the row's close and earns ``next_return``, without costs:

        - ``log_gk_variance``: ``clip(target volatility / exp(forecast / 2), 0, max_leverage)``;
        - ``vs_return``: ``clip(forecast, -1, 1)`` times the same position, with the trailing
          volatility instead of ``exp(forecast / 2)``. So a forecast of at least one standard
          deviation takes the full position.

        For Sharpe, Sortino, drawdown, turnover and hit rate see ``trading_metrics``; undefined
        metrics, such as the Sortino ratio without a negative return, are NaN.
        """
        output = output.detach()
        error = (output - examples.targets).double()
        position_metrics = trading_metrics(
            self._compute_positions(output, examples, frame),
            frame["next_return"].to_numpy(np.float64)[examples.rows],
            rows_per_year=self.settings.position.rows_per_year,
        )
        return {
            "loss": float(self.losses(output, examples.targets).mean()),
            "mae": float(error.abs().mean()),
            **position_metrics.numbers,
        }

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return HAR's forecasts of the test examples; for ``vs_return`` the train mean.

        Raises:
            ContractError: The history before the test window is too short.
        """
        if self.settings.target == "vs_return":
            return read_all_as_tensor(super().baseline(frame, fold), what="baseline predictions")
        forecast_N = har_forecast(
            frame["log_var"],
            frame[self.target_column],
            train_rows=fold.train.positions(),
            test_rows=self.examples(frame, fold.test).rows,
            settings=self.settings.har,
        )
        return torch.from_numpy(forecast_N.astype(np.float32))[:, None]

    def _compute_positions(
        self, output: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> "np.ndarray[Any, np.dtype[np.float64]]":
        forecast_N = output.cpu().double().flatten().numpy()
        if self.settings.target == "log_gk_variance":
            log_vol_N = np.clip(forecast_N / 2, -_MAX_LOG_VOL, _MAX_LOG_VOL)
            return volatility_position(np.exp(log_vol_N), self.settings.position)
        trailing_N = frame["trailing_vol"].to_numpy(np.float64)[examples.rows]
        return np.asarray(
            np.clip(forecast_N, -1, 1) * volatility_position(trailing_N, self.settings.position)
        )

    def _require_enough_rows(self, num_rows: int) -> None:
        if num_rows < self.required_rows:
            raise ContractError(
                f"At least {self.required_rows} bars are required, got {num_rows} (min_rows "
                f"{self.settings.min_rows}; warm-up and target need {self._num_dropped_rows}, and "
                f"the baseline and {self.settings.folds.num_folds} folds with their gaps need "
                f"{self._num_fold_rows}).",
                cause="The history of the source is too short.",
                fix="Provide more bars, raise first_test_share, or lower min_rows, embargo_rows or "
                "the feature windows.",
            )
