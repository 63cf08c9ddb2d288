"""Decides whether rows with equal inputs are separate observations or copies of one row."""

import pandas as pd

_MIN_GROUP_ROWS = 11
"""A group of equal rows with at least this number of rows cannot be explained by copies."""

_MIN_SHARE = 0.2
"""Equal rows are separate observations if at least this share of all rows is in such groups."""


def are_separate_observations(inputs: pd.DataFrame) -> bool:
    """Return whether rows with equal inputs are separate observations.

    This is so if the inputs have few combinations of values, such as class, sex and age group of
    passengers. A table with many combinations can contain equal rows by mistake, for example
    because an export was appended twice.

    Args:
        inputs: Input columns of all rows.
    """
    combination_N = pd.util.hash_pandas_object(inputs, index=False)
    group_size_N = combination_N.map(combination_N.value_counts())
    return bool((group_size_N >= _MIN_GROUP_ROWS).mean() >= _MIN_SHARE)
