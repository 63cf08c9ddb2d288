"""Schemas and expectations of the pictures of digits, and validation of their classes."""

import pandas as pd

from sluice.base.errors import ContractError
from sluice.data.expectations import Between, Expectation, InSet, NotNull, RowCount, StdBetween
from sluice.data.schema import Column, Schema

SIDE = 8
"""Side length of a picture [pixels]."""
MAX_PIXEL_VALUE = 16.0
"""Maximum value of a raw pixel."""
CLASSES = tuple(range(10))
KEY = "image"
"""Name of the index: the key of each picture from ``in_hash_order``."""

PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))
# The outer columns are blank in nearly all pictures, and may be blank in all rows of a small split.
_MARGIN = {f"pixel_{row}_{column}" for row in range(SIDE) for column in (0, SIDE - 1)}
DIGIT = Column(name="digit", kind="int", description="Written digit, 0 to 9.")
INK = Column(name="ink", unit="share", description="Mean of the scaled pixels.")


def _pixel_columns(unit: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, unit=unit, constant=name in _MARGIN) for name in PIXELS)


RAW_SCHEMA = Schema(columns=(*_pixel_columns("0 to 16"), DIGIT), index_name=KEY, index_kind="int")
"""Schema of raw pictures. The key is a hash of the pixels and must be unique, so that no picture is
in both train and test rows."""

FEATURE_SCHEMA = Schema(
    columns=(*_pixel_columns("share"), DIGIT, INK), index_name=KEY, index_kind="int"
)

# The packaged digits have a standard deviation of 2.87. Without the two lowest or the two highest
# digits it is 2.29, and with half of all labels changed to 5 it is 2.11. A single missing or rare
# class is detected by ``validate_digits``.
_DIGIT_SPREAD = StdBetween(column=DIGIT.name, low=2.4, high=3.4)


def raw_expectations(*, min_rows: int) -> tuple[Expectation, ...]:
    """Return the expectations of raw pictures."""
    return (
        RowCount(low=min_rows),
        *(NotNull(column=name) for name in RAW_SCHEMA.names),
        *(Between(column=name, low=0, high=MAX_PIXEL_VALUE) for name in PIXELS),
        InSet(column=DIGIT.name, values=CLASSES),
        _DIGIT_SPREAD,
    )


def feature_expectations(*, min_rows: int) -> tuple[Expectation, ...]:
    """Return the expectations of the feature frame.

    The range of the scaled pixels follows from the range of the raw pixels and is not checked
    again. The ink of the packaged pictures is 0.18 to 0.42, with a standard deviation of 0.034. The
    expected ranges are wider, but inverted scans, blank pages and other units violate them.
    """
    return (
        RowCount(low=min_rows),
        *(NotNull(column=name) for name in FEATURE_SCHEMA.names),
        InSet(column=DIGIT.name, values=CLASSES),
        _DIGIT_SPREAD,
        Between(column=INK.name, low=0.05, high=0.6),
        StdBetween(column=INK.name, low=0.01, high=0.15),
    )


def validate_digits(df: pd.DataFrame, *, min_class_share: float) -> None:
    """Raise an error if a class is missing or rare, because scores would not be valid for it.

    Raises:
        ContractError: A digit has less than ``min_class_share`` of the rows.
    """
    share = df[DIGIT.name].value_counts(normalize=True).reindex(list(CLASSES), fill_value=0.0)
    if not share.min() >= min_class_share:
        shares = ", ".join(f"{digit}: {value:.1%}" for digit, value in share.items())
        raise ContractError(
            f"Every digit must have at least {min_class_share:.1%} of the {len(df)} rows, got "
            f"{shares}.",
            cause="A filter or a join dropped a class, or the label of a class changed.",
            fix="Correct the source, or lower min_class_share.",
        )
