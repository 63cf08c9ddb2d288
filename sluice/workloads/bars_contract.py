"""Schemas and expectations of price bars and their features, and validation of bars."""

import math

import pandas as pd

from sluice.base.errors import ContractError
from sluice.data.expectations import (
    Between,
    Expectation,
    GreaterOrEqual,
    NotNull,
    RowCount,
    StdBetween,
)
from sluice.data.schema import Column, Schema
from sluice.workloads.bars_features import FeatureSettings

RAW_SCHEMA = Schema(
    columns=(
        Column(name="open", unit="price", description="First price of the bar."),
        Column(name="high", unit="price", description="Highest price of the bar."),
        Column(name="low", unit="price", description="Lowest price of the bar."),
        Column(name="close", unit="price", description="Last price of the bar."),
        Column(name="volume", unit="shares or contracts", description="Amount traded in the bar."),
    ),
    index_name="date",
    index_kind="datetime",
)

FEATURES = (
    Column(name="returns_vs", unit="deviations", description="Return divided by past volatility."),
    Column(name="momentum_z", unit="deviations", description="Z-score of the momentum."),
    Column(name="atr_pct", unit="ln rate", description="Log of average true range over close."),
    Column(name="volume_z", unit="deviations", description="Z-score of the log volume."),
    Column(name="rsi_14", unit="points", description="Relative strength index, 0 to 100."),
    Column(name="bb_pct_b", unit="share", description="Close within the Bollinger bands."),
    Column(name="vol_regime", unit="log ratio", description="Short- over long-term volatility."),
    Column(
        name="return_accel",
        unit="deviations",
        description="Latest return minus the previous return.",
    ),
    Column(
        name="pv_divergence",
        unit="correlation",
        description="Negative correlation of price changes and volume changes.",
    ),
)

AUXILIARY_COLUMNS = (
    Column(name="log_var", unit="ln variance", description="Log Garman-Klass variance of the row."),
    Column(name="trailing_vol", unit="log return", description="Volatility of the last rows."),
    Column(name="next_return", unit="rate", description="Return to the next close; not a feature."),
)

TARGETS = {
    "log_gk_variance": Column(
        name="next_log_var", unit="ln variance", description="log_var of the next row."
    ),
    "vs_return": Column(
        name="next_vs_return",
        unit="deviations",
        description="Log return of the next row divided by the volatility at this row.",
    ),
}

MIN_PRICE = 1e-9
"""Lower bound of prices. It is not 0, because prices must be above 0 and the ranges of Great
Expectations include their ends."""

ROUNDING_TOLERANCE = 1e-6
"""Tolerance for rounding errors, for bounds that hold exactly in real numbers."""


def feature_schema(target: str) -> Schema:
    """Return the schema of the feature frame for a target."""
    return Schema(
        columns=(*FEATURES, TARGETS[target], *AUXILIARY_COLUMNS),
        index_name="date",
        index_kind="datetime",
    )


def raw_expectations(*, min_rows: int) -> tuple[Expectation, ...]:
    """Return the expectations of raw bars, which no real market violates."""
    return (
        RowCount(low=min_rows),
        *(NotNull(column=name) for name in RAW_SCHEMA.names),
        *(Between(column=name, low=MIN_PRICE) for name in ("open", "high", "low", "close")),
        Between(column="volume", low=0),
        GreaterOrEqual(column="high", other="low"),
        GreaterOrEqual(column="high", other="open"),
        GreaterOrEqual(column="high", other="close"),
        GreaterOrEqual(column="open", other="low"),
        GreaterOrEqual(column="close", other="low"),
    )


def feature_expectations(
    target: str, settings: FeatureSettings, *, min_rows: int
) -> tuple[Expectation, ...]:
    """Return the expectations of the feature frame.

    If possible, the bounds of a feature follow from its formula. The other bounds are far beyond
    any observed market (a return of 500 standard deviations, a high of six times the low). The
    accepted standard deviations are a tenth to ten times those of two stock indices, measured for
    each year from 1999 to 2018. Other standard deviations indicate wrong units or stale columns.
    ``sluice doctor expectations`` measures bounds and standard deviations.
    """
    columns = feature_schema(target).names
    return (
        RowCount(low=min_rows),
        *(NotNull(column=name) for name in columns),
        *(
            Between(column=name, low=low, high=high)
            for name, (low, high) in _value_bounds(target, settings).items()
        ),
        *(
            StdBetween(column=name, low=low, high=high)
            for name, (low, high) in _deviation_bounds(target).items()
        ),
    )


def validate_bars(df: pd.DataFrame) -> None:
    """Raise an error for inconsistent bars.

    Raises:
        ContractError: Lists every violated rule with the count and the first invalid row: a
            non-positive price, high below low, open or close outside of low to high, negative
            volume.
    """
    prices = df[["open", "high", "low", "close"]]
    violations = {
        "prices must be above 0": (prices <= 0).any(axis=1),
        "high must be at least low": df["high"] < df["low"],
        "high must be at least open and close": df["high"] < df[["open", "close"]].max(axis=1),
        "low must be at most open and close": df["low"] > df[["open", "close"]].min(axis=1),
        "volume must be at least 0": df["volume"] < 0,
    }
    problems = []
    for rule, is_violated in violations.items():
        if is_violated.any():
            row = int(is_violated.to_numpy().argmax())
            values = ", ".join(f"{name} {df[name].iloc[row]:g}" for name in RAW_SCHEMA.names)
            problems.append(
                f"{rule}, violated by {is_violated.sum()} of {len(df)} rows, first at row {row} "
                f"(label {df.index[row]}: {values})"
            )
    if problems:
        raise ContractError(
            f"Bars are inconsistent: {'; '.join(problems)}.",
            cause="Columns are swapped, only some prices are adjusted, or the data source lost a "
            "digit.",
            fix="Correct or remove these rows at the source.",
        )


def _value_bounds(target: str, settings: FeatureSettings) -> dict[str, tuple[float, float]]:
    max_band_distance = math.sqrt(settings.band_rows - 1) / (2 * settings.band_width)
    max_vol_regime = 0.5 * math.log(settings.regime_long_rows / settings.regime_short_rows)
    log_variance = (2 * math.log(settings.min_volatility) - ROUNDING_TOLERANCE, 0.5)
    return {
        "returns_vs": (-500.0, 500.0),
        "momentum_z": _z_range(settings.momentum_z_rows),
        "atr_pct": (math.log(settings.min_volatility) - ROUNDING_TOLERANCE, math.log(10)),
        "volume_z": _z_range(settings.volume_rows),
        "rsi_14": (0.0 - ROUNDING_TOLERANCE, 100.0 + ROUNDING_TOLERANCE),
        "bb_pct_b": (
            0.5 - max_band_distance - ROUNDING_TOLERANCE,
            0.5 + max_band_distance + ROUNDING_TOLERANCE,
        ),
        "vol_regime": (2 * math.log(settings.min_volatility), max_vol_regime + ROUNDING_TOLERANCE),
        "return_accel": (-500.0, 500.0),
        "pv_divergence": (-1.0, 1.0),
        "log_var": log_variance,
        "trailing_vol": (settings.min_volatility * (1 - ROUNDING_TOLERANCE), 1.0),
        "next_return": (-1.0, 10.0),
        TARGETS[target].name: log_variance if target == "log_gk_variance" else (-500.0, 500.0),
    }


def _deviation_bounds(target: str) -> dict[str, tuple[float, float]]:
    scaled_return, log_variance = (0.1, 30.0), (0.05, 20.0)
    return {
        "returns_vs": scaled_return,
        "momentum_z": (0.1, 10.0),
        "atr_pct": (0.005, 5.0),
        "volume_z": (0.1, 10.0),
        "rsi_14": (0.5, 50.0),
        "bb_pct_b": (0.02, 3.0),
        "vol_regime": (0.01, 3.0),
        "return_accel": scaled_return,
        "pv_divergence": (0.01, 1.0),
        "log_var": log_variance,
        "trailing_vol": (1e-6, 1.0),
        "next_return": (1e-6, 1.0),
        TARGETS[target].name: log_variance if target == "log_gk_variance" else scaled_return,
    }


def _z_range(rows: int) -> tuple[float, float]:
    """Return the range that a z-score among ``rows`` values can have.

    Source:
        Samuelson (1968), "How deviant can you be?", JASA 63(324).
    """
    bound = (rows - 1) / math.sqrt(rows) + ROUNDING_TOLERANCE
    return -bound, bound
