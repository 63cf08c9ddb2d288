"""Formatting of ranges."""

import pytest

from sluice.base.format_range import format_range


@pytest.mark.parametrize(
    ("low", "high", "spec", "expected"),
    [(3, 5, "", "3 to 5"), (3, 3, "", "3"), (0.5, 2000.0, ",.4g", "0.5 to 2,000")],
)
def test_range_of_equal_numbers_is_one_number(low, high, spec, expected):
    assert format_range(low, high, spec) == expected


def test_range_of_numbers_equal_after_rounding_is_one_number():
    assert format_range(1.0001, 1.0002, ".2g") == "1"
