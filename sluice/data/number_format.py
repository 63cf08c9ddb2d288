"""Numbers in CSV files: their separators, and markers of missing values."""

import functools
import re
from collections.abc import Collection
from typing import Any, Literal

import pandas as pd

DecimalSeparator = Literal[".", ","]
GroupSeparator = Literal[",", ".", " ", "'"]

_SEPARATOR_CHARACTERS: dict[str, str] = {" ": " \u00a0\u202f", "'": "'\u2019"}
"""Characters that a group separator matches, if it matches several: spaces and no-break spaces,
straight and typographic apostrophes."""

MISSING_MARKERS = frozenset(
    ("?", "-", "--", "\u2013", "\u2014", ".", "*", "n.a.", "N.A.", "unknown", "missing")
)
"""Texts that often mark a missing value in a column of numbers."""

_FORMATS: tuple[tuple[DecimalSeparator, GroupSeparator | None], ...] = (
    (".", None),
    (",", None),
    (".", ","),
    (",", "."),
    (",", " "),
    (".", " "),
    (".", "'"),
)
"""Combinations of decimal separator and group separator that are tried, the usual formats first."""


def convert_grouped_numbers(
    rows: pd.DataFrame,
    *,
    decimal: DecimalSeparator,
    thousands: GroupSeparator,
    text_column: str | None,
) -> pd.DataFrame:
    """Return the rows with columns of texts such as ``1.234,5`` converted to numbers.

    A column is converted only if each of its values is such a number or missing. Dates such as
    ``31.12.2024`` stay texts; pandas itself would convert them to numbers with ``thousands="."``.

    Args:
        rows: Table in which numbers without groups are converted already.
        decimal: Decimal separator.
        thousands: Separator of groups of three digits.
        text_column: Name of a column that stays text.
    """
    rows = rows.copy(deep=False)
    for name in rows.columns:
        if name == text_column or rows[name].dtype.kind != "O":
            continue
        values = rows[name].dropna()
        if _are_numbers(values.tolist(), decimal, thousands):
            plain_numbers = values.map(lambda value: plain_number(value, decimal, thousands))
            rows[name] = pd.to_numeric(plain_numbers).reindex(rows.index)
    return rows


def plain_number(value: Any, decimal: DecimalSeparator, thousands: GroupSeparator | None) -> Any:
    """Return the text of a number with a decimal point and without groups.

    The result is None for a text that is not a number in this format. A value that is not a text is
    returned unchanged.
    """
    if not isinstance(value, str):
        return value
    if _number_pattern(decimal, thousands).fullmatch(value) is None:
        return None
    text = value.strip()
    if thousands is not None:
        for character in _SEPARATOR_CHARACTERS.get(thousands, thousands):
            text = text.replace(character, "")
    return text.replace(decimal, ".")


def guess_number_format(texts: pd.DataFrame) -> tuple[DecimalSeparator, GroupSeparator | None]:
    """Return the decimal separator and the group separator with which most columns are numbers.

    Of several formats with the same number of numeric columns, the first of ``_FORMATS`` is
    returned. If these formats have different decimal separators, the result is a decimal point
    without groups: the text ``1,234`` alone is ambiguous.

    Args:
        texts: Rows of the file, with all values as texts.
    """
    texts = texts.mask(texts.isin(MISSING_MARKERS))
    columns = [texts[name].dropna().unique().tolist() for name in texts.columns]
    counts = {
        (decimal, thousands): sum(_are_numbers(values, decimal, thousands) for values in columns)
        for decimal, thousands in _FORMATS
    }
    best_formats = [
        number_format for number_format in _FORMATS if counts[number_format] == max(counts.values())
    ]
    if len({decimal for decimal, _ in best_formats}) > 1:
        return _FORMATS[0]
    return best_formats[0]


def find_missing_markers(
    texts: pd.DataFrame, *, decimal: DecimalSeparator, thousands: GroupSeparator | None
) -> tuple[str, ...]:
    """Return the texts that mark missing values in columns of numbers, such as ``?``; sorted.

    A column counts as numbers if most of its values are numbers and all others are in
    ``MISSING_MARKERS``.

    Args:
        texts: Rows of the file, with all values as texts.
        decimal: Decimal separator.
        thousands: Separator of groups of three digits.
    """
    found: set[str] = set()
    for name in texts.columns:
        values = texts[name].dropna().tolist()
        numbers = [value for value in values if value not in MISSING_MARKERS]
        if 2 * len(numbers) > len(values) and _are_numbers({*numbers}, decimal, thousands):
            found |= {*values} & MISSING_MARKERS
    return tuple(sorted(found))


def _are_numbers(
    values: Collection[Any], decimal: DecimalSeparator, thousands: GroupSeparator | None
) -> bool:
    """Return whether all values are texts of numbers; False if there are no values."""
    pattern = _number_pattern(decimal, thousands)
    return bool(values) and all(
        isinstance(value, str) and pattern.fullmatch(value) is not None for value in values
    )


@functools.cache
def _number_pattern(decimal: DecimalSeparator, thousands: GroupSeparator | None) -> re.Pattern[str]:
    """Return the pattern of numbers; of the digits of all scripts, pandas converts only ASCII."""
    digits = "[0-9]+"
    if thousands is not None:
        separators = _SEPARATOR_CHARACTERS.get(thousands, thousands)
        digits = rf"(?:[0-9]+|[1-9][0-9]{{0,2}}(?:[{separators}][0-9]{{3}})+)"
    return re.compile(rf"\s*[+-]?{digits}(?:[{decimal}][0-9]*)?(?:[eE][+-]?[0-9]+)?\s*")
