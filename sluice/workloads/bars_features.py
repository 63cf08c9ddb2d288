"""Computes nine features of price bars, and the variance and volatility of the bars.

Every function is pure, vectorised and causal: the value of a row uses only this row and earlier
rows. It is NaN if there are too few earlier rows. In formulas, ``r`` is the log return
ln(C_t / C_t-1), ``n`` is the length of a window [rows], and ``k`` is the number of rows over which
a momentum is measured (``span_rows``). Bars are assumed to pass ``validate_bars``.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from sluice.base.settings import Settings


class FeatureSettings(Settings):
    """Window lengths and lower limits of the features."""

    vol_rows: int = Field(
        22, ge=3, le=10_000, description="Window length of the volatility [rows]."
    )
    momentum_rows: int = Field(
        10,
        ge=1,
        le=10_000,
        description="The momentum is the log return over this number of rows [rows].",
    )
    momentum_z_rows: int = Field(
        63, ge=3, le=10_000, description="Window length of the z-score of the momentum [rows]."
    )
    atr_rows: int = Field(
        14, ge=1, le=10_000, description="Wilder's period of the average true range [rows]."
    )
    volume_rows: int = Field(
        22, ge=3, le=10_000, description="Window length of the z-score of the volume [rows]."
    )
    band_rows: int = Field(
        20, ge=3, le=10_000, description="Window length of the Bollinger bands [rows]."
    )
    band_width: float = Field(
        2.0, gt=0, le=100, description="Half width of the Bollinger bands [standard deviations]."
    )
    regime_short_rows: int = Field(
        5, ge=1, le=10_000, description="Length of the short window of vol_regime [rows]."
    )
    regime_long_rows: int = Field(
        63, ge=2, le=10_000, description="Length of the long window of vol_regime [rows]."
    )
    accel_rows: int = Field(
        5,
        ge=1,
        le=10_000,
        description="Length of each of the two returns of return_accel [rows].",
    )
    divergence_rows: int = Field(
        22, ge=3, le=10_000, description="Window length of pv_divergence [rows]."
    )
    min_volatility: float = Field(
        1e-4,
        gt=0,
        le=1,
        description="Lower limit of the volatility per row [log return]; its square is the lower "
        "limit of the variance.",
    )
    min_deviation: float = Field(
        1e-6,
        gt=0,
        le=1,
        description="Largest standard deviation that may be a rounding error. Values with at most "
        "this deviation count as constant. The deviation of closing prices is divided by their "
        "mean. The other compared values are logs.",
    )

    @model_validator(mode="after")
    def _require_shorter_short_window(self) -> "FeatureSettings":
        if self.regime_short_rows >= self.regime_long_rows:
            raise ValueError("regime_short_rows must be smaller than regime_long_rows")
        return self

    @property
    def warm_up_rows(self) -> int:
        """Number of initial rows in which at least one feature is undefined [rows]."""
        return max(
            self.vol_rows + 1,
            self.momentum_rows + self.momentum_z_rows - 1,
            self.atr_rows - 1,
            self.volume_rows - 1,
            RSI_ROWS,
            self.band_rows - 1,
            self.regime_long_rows - 1,
            2 * self.accel_rows,
            self.divergence_rows,
        )


RSI_ROWS = 14
"""Wilder's period [rows]. It is part of the feature's name and therefore not a setting."""


def nine_features(bars: pd.DataFrame, settings: FeatureSettings) -> pd.DataFrame:
    """Return the nine features of every bar; NaN where the history is too short.

    Cost:
        0.3 s for 1,000,000 rows on one core, 8 ms for 5,000.
    """
    close = bars["close"]
    high, low, volume = bars["high"], bars["low"], bars["volume"]
    return pd.DataFrame(
        {
            "returns_vs": returns_vs(close, rows=settings.vol_rows, floor=settings.min_volatility),
            "momentum_z": momentum_z(
                close,
                span_rows=settings.momentum_rows,
                rows=settings.momentum_z_rows,
                min_deviation=settings.min_deviation,
            ),
            "atr_pct": atr_pct(
                high, low, close, rows=settings.atr_rows, floor=settings.min_volatility
            ),
            "volume_z": volume_z(
                volume, rows=settings.volume_rows, min_deviation=settings.min_deviation
            ),
            "rsi_14": rsi_14(close),
            "bb_pct_b": bb_pct_b(
                close,
                rows=settings.band_rows,
                width=settings.band_width,
                min_deviation=settings.min_deviation,
            ),
            "vol_regime": vol_regime(
                gk_variance(bars, floor=settings.min_volatility**2),
                short_rows=settings.regime_short_rows,
                long_rows=settings.regime_long_rows,
            ),
            "return_accel": return_accel(
                close,
                span_rows=settings.accel_rows,
                vol_rows=settings.vol_rows,
                floor=settings.min_volatility,
            ),
            "pv_divergence": pv_divergence(
                close, volume, rows=settings.divergence_rows, min_deviation=settings.min_deviation
            ),
        }
    )


def returns_vs(close: "pd.Series[Any]", *, rows: int, floor: float) -> "pd.Series[Any]":
    """Return the log return in units of the volatility at the previous row [deviations].

    Formula: r_t / max(std(r_t-n .. r_t-1), floor), with the sample deviation.

    Source:
        Moskowitz, Ooi & Pedersen (2012), "Time series momentum", Journal of Financial Economics
        104(2): returns scaled by ex-ante volatility.
    """
    return log_returns(close) / trailing_volatility(close, rows=rows, floor=floor).shift(1)


def momentum_z(
    close: "pd.Series[Any]", *, span_rows: int, rows: int, min_deviation: float
) -> "pd.Series[Any]":
    """Return the z-score of the momentum within the last ``rows`` values [deviations].

    Formula: (m_t - mean(m)) / std(m) with the momentum m_t = ln(C_t / C_t-k), over n rows up to t,
    with the sample deviation; 0 if all m are equal. By construction the absolute value is at most
    (n - 1) / sqrt(n).

    Source:
        Jegadeesh & Titman (1993), "Returns to buying winners and selling losers", Journal of
        Finance 48(1), for momentum; the standardisation is ours.
    """
    price = _log(close)
    return _standardise(price - price.shift(span_rows), rows=rows, min_deviation=min_deviation)


def atr_pct(
    high: "pd.Series[Any]",
    low: "pd.Series[Any]",
    close: "pd.Series[Any]",
    *,
    rows: int,
    floor: float,
) -> "pd.Series[Any]":
    """Return the log of Wilder's average true range as a share of the close [ln rate].

    Formula: ln max(A / C, floor), where A is the Wilder average over n rows of the true range
    TR_t = max(H_t, C_t-1) - min(L_t, C_t-1). The first row has no previous close, so its range is
    H - L. Bars without range give the log of the floor. The log is used because the ranges of calm
    and volatile years differ by factors, and because the target is a log, too.

    Source:
        Wilder (1978), "New Concepts in Technical Trading Systems"; the log is ours.
    """
    previous = close.shift(1)
    top = high.where(~(previous > high), previous)
    bottom = low.where(~(previous < low), previous)
    return _log((_wilder_mean(top - bottom, rows=rows) / close).clip(lower=floor))


def volume_z(volume: "pd.Series[Any]", *, rows: int, min_deviation: float) -> "pd.Series[Any]":
    """Return the z-score of the log volume within the last ``rows`` values [deviations].

    Formula: (v_t - mean(v)) / std(v) with v = ln(1 + V), over n rows up to t, with the sample
    deviation; 0 if all v are equal. Because of the 1, v is finite for a bar without trades. The
    absolute value is at most (n - 1) / sqrt(n).

    Source:
        Gervais, Kaniel & Mingelgrin (2001), "The high-volume return premium", Journal of Finance
        56(3), for volume against its own recent past; the standardisation is ours.
    """
    return _standardise(_log(1 + volume), rows=rows, min_deviation=min_deviation)


def rsi_14(close: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return Wilder's relative strength index over 14 rows [points, 0 to 100].

    Formula: 100 * G / (G + D), where G and D are the Wilder averages of the rises and falls of the
    close; 50 if the close has not changed at all.

    Source:
        Wilder (1978), "New Concepts in Technical Trading Systems".
    """
    change = close.diff()
    rise = _wilder_mean(change.clip(lower=0), rows=RSI_ROWS)
    fall = _wilder_mean((-change).clip(lower=0), rows=RSI_ROWS)
    total = rise + fall
    return (100 * rise / total.where(total > 0)).mask(total == 0, 50.0)


def bb_pct_b(
    close: "pd.Series[Any]", *, rows: int, width: float, min_deviation: float
) -> "pd.Series[Any]":
    """Return the position of the close in its Bollinger bands [share: 0 lower, 1 upper].

    Formula: (C - (m - w s)) / (2 w s), where m and s are the mean and the population deviation of n
    closes up to t; 0.5 if they are all equal. By construction the distance from 0.5 is at most
    sqrt(n - 1) / (2 w).

    Source:
        Bollinger (2001), "Bollinger on Bollinger Bands".
    """
    middle, deviation = _window_moments(close, rows=rows)
    is_flat = deviation <= min_deviation * middle
    position = 0.5 + (close - middle) / (2 * width * deviation.mask(is_flat))
    return position.mask(is_flat, 0.5)


def vol_regime(variance: "pd.Series[Any]", *, short_rows: int, long_rows: int) -> "pd.Series[Any]":
    """Return the volatility in a short window relative to a long window [log ratio].

    Formula: ln(mean(v, short) / mean(v, long)) / 2 over the rows up to t, where v is the floored
    Garman-Klass variance, which is more precise than the squared return. By construction the value
    is at most ln(long / short) / 2.

    Source:
        Corsi (2009), "A simple approximate long-memory model of realized volatility", Journal of
        Financial Econometrics 7(2), for volatility at several horizons, not for the ratio.
    """
    short = variance.rolling(short_rows).mean()
    return _log(short / variance.rolling(long_rows).mean()) / 2


def return_accel(
    close: "pd.Series[Any]", *, span_rows: int, vol_rows: int, floor: float
) -> "pd.Series[Any]":
    """Return the latest return minus the previous return [deviations].

    Formula: (m_t - m_t-k) / (s sqrt(2 k)) with the momentum m_t = ln(C_t / C_t-k), where s is the
    floored trailing volatility at t. If returns are independent, the result has the variance 1.

    Source:
        Gettleman & Marks (2006), "Acceleration strategies", working paper, for the change of
        momentum; the scale is ours.
    """
    price = _log(close)
    momentum = price - price.shift(span_rows)
    volatility = trailing_volatility(close, rows=vol_rows, floor=floor)
    return (momentum - momentum.shift(span_rows)) / (volatility * math.sqrt(2 * span_rows))


def pv_divergence(
    close: "pd.Series[Any]", volume: "pd.Series[Any]", *, rows: int, min_deviation: float
) -> "pd.Series[Any]":
    """Return the negative correlation of price and volume changes [-1 to 1].

    Formula: minus the Pearson correlation of r with the change of ln(1 + V) over n rows up to t;
    0 if r or the change is constant.

    Source:
        Karpoff (1987), "The relation between price changes and trading volume", Journal of
        Financial and Quantitative Analysis 22(1).
    """
    returns = log_returns(close)
    volume_change = _log(1 + volume).diff()
    is_constant = (returns.rolling(rows).std() <= min_deviation) | (
        volume_change.rolling(rows).std() <= min_deviation
    )
    return (-returns.rolling(rows).corr(volume_change).clip(-1, 1)).mask(is_constant, 0.0)


def log_returns(close: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return ln(C_t / C_t-1) [log return]; NaN in the first row."""
    return _log(close).diff()


def trailing_volatility(close: "pd.Series[Any]", *, rows: int, floor: float) -> "pd.Series[Any]":
    """Return the sample deviation of the last ``rows`` log returns, at least ``floor``."""
    return log_returns(close).rolling(rows).std().clip(lower=floor)


def gk_variance(bars: pd.DataFrame, *, floor: float) -> "pd.Series[Any]":
    """Return each bar's Garman-Klass variance, open to close [log return squared].

    Formula: max(ln(H/L)^2 / 2 - (2 ln 2 - 1) ln(C/O)^2, floor). The floor is needed for bars
    without range, whose variance is 0, because the log of 0 is undefined.

    Args:
        bars: Columns open, high, low, close.
        floor: Lower limit of the variance [log return squared].

    Source:
        Garman & Klass (1980), "On the estimation of security price volatilities from historical
        data", Journal of Business 53(1).
    """
    spread = _log(bars["high"] / bars["low"])
    drift = _log(bars["close"] / bars["open"])
    variance = 0.5 * spread**2 - (2 * math.log(2) - 1) * drift**2
    return variance.clip(lower=floor)


def log_gk_variance(bars: pd.DataFrame, *, floor: float) -> "pd.Series[Any]":
    """Return the log of ``gk_variance`` [ln(log return squared)]."""
    return _log(gk_variance(bars, floor=floor))


def _standardise(series: "pd.Series[Any]", *, rows: int, min_deviation: float) -> "pd.Series[Any]":
    window = series.rolling(rows)
    deviation = window.std()
    is_flat = deviation <= min_deviation
    return ((series - window.mean()) / deviation.mask(is_flat)).mask(is_flat, 0.0)


def _window_moments(
    series: "pd.Series[Any]", *, rows: int
) -> tuple["pd.Series[Any]", "pd.Series[Any]"]:
    """Return mean and population deviation of the last ``rows`` values.

    Each row is computed from its own window. pandas is not used, because the rounding errors of its
    running sums exceed the deviation after a price has fallen by a factor of 1e8.
    """
    values = series.to_numpy(np.float64)
    middle, deviation = np.full(len(values), np.nan), np.full(len(values), np.nan)
    if len(values) >= rows:
        lags = np.lib.stride_tricks.sliding_window_view(values, rows).T
        mean = sum(lags) / rows
        middle[rows - 1 :] = mean
        deviation[rows - 1 :] = np.sqrt(sum((lag - mean) ** 2 for lag in lags) / rows)
    return pd.Series(middle, series.index), pd.Series(deviation, series.index)


def _log(series: "pd.Series[Any]") -> "pd.Series[Any]":
    return pd.Series(np.log(series.to_numpy()), index=series.index)


def _wilder_mean(series: "pd.Series[Any]", *, rows: int) -> "pd.Series[Any]":
    """Return Wilder's average a_t = a_t-1 + (x_t - a_t-1) / n.

    It is initialised with the mean of the first n values.
    """
    start = int(series.notna().to_numpy().argmax())  # the first row with a value
    initialised = series.copy()
    initialised.iloc[: start + rows - 1] = np.nan
    if len(series) >= start + rows:
        initialised.iloc[start + rows - 1] = series.iloc[start : start + rows].mean()
    return initialised.ewm(alpha=1 / rows, adjust=False).mean()
