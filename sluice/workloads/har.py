"""Heterogeneous autoregressive (HAR) model of variance, the baseline of variance forecasts.

The forecast of the next log variance is a linear function of three features: the current log
variance, and its means over the last week and the last month.

Source:
    Corsi (2009), "A simple approximate long-memory model of realized volatility", Journal of
    Financial Econometrics 7(2).
"""

from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sluice.base.errors import ContractError
from sluice.base.settings import Settings


class HarSettings(Settings):
    """Window lengths of the averages."""

    week_rows: int = Field(5, ge=2, le=1_000, description="Rows in a week [rows].")
    month_rows: int = Field(
        22, ge=3, le=10_000, description="Rows in a month, more than in a week [rows]."
    )

    @model_validator(mode="after")
    def _require_longer_month(self) -> Self:
        if self.month_rows <= self.week_rows:
            raise ValueError(
                f"month_rows must exceed week_rows, got {self.month_rows} and {self.week_rows}"
            )
        return self


def har_forecast(
    log_var: "pd.Series[Any]",
    target: "pd.Series[Any]",
    *,
    train_rows: NDArray[np.int64],
    test_rows: NDArray[np.int64],
    settings: HarSettings,
) -> NDArray[np.float64]:
    """Fit the model by least squares on ``train_rows`` only, and forecast ``test_rows``.

    Shape legend: N = rows of the table, M = test rows.

    Args:
        log_var: Log variance of each row (N,), known at that row.
        target: Forecast target (N,): the log variance of the next row.
        train_rows: Positions of the rows to fit on; rows without a month of history are ignored.
        test_rows: Positions (M,) of the rows to forecast. The forecast for a row uses this row and
            earlier rows.
        settings: Window lengths.

    Returns:
        Forecasts (M,) [unit of ``target``].

    Raises:
        ContractError: A test row has less than a month of history, or the train rows with a month
            of history are fewer than the coefficients.
    """
    x = np.column_stack(
        [
            np.ones(len(log_var)),
            log_var.to_numpy(np.float64),
            log_var.rolling(settings.week_rows).mean().to_numpy(np.float64),
            log_var.rolling(settings.month_rows).mean().to_numpy(np.float64),
        ]
    )
    has_history = np.isfinite(x).all(axis=1)
    fit_rows = train_rows[has_history[train_rows]]
    if len(fit_rows) < x.shape[1] or not has_history[test_rows].all():
        raise ContractError(
            f"HAR requires {settings.month_rows} rows up to every row it forecasts, and "
            f"{x.shape[1]} rows to fit on, got {len(fit_rows)} train rows with this history and "
            f"{int((~has_history[test_rows]).sum())} test rows without it.",
            fix="Provide more rows before the first test window, or shorten month_rows.",
        )
    coefficients, *_ = np.linalg.lstsq(
        x[fit_rows], target.to_numpy(np.float64)[fit_rows], rcond=None
    )
    return np.asarray(x[test_rows] @ coefficients)
