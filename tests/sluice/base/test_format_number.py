"""Formatting of numbers and durations."""

import math

import pytest

from sluice.base.format_number import format_ms, format_number


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.123456, "0.1235"), (math.nan, "not computable"), (-math.inf, "not computable")],
)
def test_non_finite_numbers_are_not_computable(value, expected):
    assert format_number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.70512, "0.705 ms"),
        (12.34, "12.3 ms"),
        (999.4, "999 ms"),
        (999.6, "1,000 ms"),
        (1212.7, "1,213 ms"),
    ],
)
def test_milliseconds_have_three_digits_and_no_exponent(value, expected):
    assert format_ms(value) == expected
