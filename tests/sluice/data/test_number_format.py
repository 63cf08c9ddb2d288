"""The guess of decimal and group separators."""

import pandas as pd
import pytest

from sluice.data.number_format import find_missing_markers, guess_number_format


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"a": ["1.5", "2"], "b": ["x", "y"]}, (".", None)),
        ({"a": ["1,5", "2"], "b": ["x", "y"]}, (",", None)),
        ({"a": ["1.234,5", "7"]}, (",", ".")),
        ({"a": ["12,5", "7"], "b": ["1.000", "1.234.567"]}, (",", ".")),
        ({"a": ["1,234.5", "7"]}, (".", ",")),
        ({"a": ["1\u202f234,5", None]}, (",", " ")),
        ({"a": ["1\u2019234.5", "-2"]}, (".", "'")),
        ({"a": ["1,234", "5,678"]}, (".", None)),  # thousands or a decimal comma
        ({"a": ["1,234", "5,678"], "b": ["0.5", "1.25"]}, (".", ",")),
        ({"a": ["1,234", "5,678"], "b": ["0,5", "1,25"]}, (",", None)),
        ({"a": ["0,5", "1,25"], "b": ["0.5", "1.25"]}, (".", None)),  # the columns disagree
        ({"a": ["31.12.2024", "01.01.2025"], "b": ["1", "2"]}, (".", None)),
        ({"a": ["030 123", "040 456"]}, (".", None)),  # no groups: they begin with 0
        ({"a": ["1,5", "?"], "b": ["-", "2,25"]}, (",", None)),
        ({"a": [None, None]}, (".", None)),
        ({}, (".", None)),
    ],
)
def test_the_format_with_most_numeric_columns_is_guessed(columns, expected):
    assert guess_number_format(pd.DataFrame(columns, dtype="str")) == expected


def test_markers_of_missing_numbers_are_found():
    texts = pd.DataFrame(
        {
            "number": ["1,5", "?", "2,5", "-1"],
            "category": ["yes", "no", "unknown", "--"],
            "mostly missing": ["*", "*", "*", "3"],
            "grouped": ["1.000", ".", "2", "3"],
        },
        dtype="str",
    )

    assert find_missing_markers(texts, decimal=",", thousands=".") == (".", "?")
    assert find_missing_markers(texts, decimal=".", thousands=None) == (".",)
