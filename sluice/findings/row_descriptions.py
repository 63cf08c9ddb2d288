"""Describes rows whose labels mean nothing to a reader, such as hashes of images and texts."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_MAX_DESCRIPTION_LENGTH = 80
"""Maximum length of a description [characters]. Longer descriptions are cut."""


def describe_rows(
    frame: pd.DataFrame, rows: Sequence[int] | NDArray[np.int64], column: str | None
) -> tuple[str, ...]:
    """Return the value of the display column for each row, as one short line.

    Args:
        frame: Feature frame.
        rows: Positions of the rows in ``frame``.
        column: Display column of the workload. Without one, or if the frame lacks it, every
            description is empty.
    """
    if column is None or column not in frame.columns:
        return ("",) * len(rows)
    values = frame[column].iloc[np.asarray(rows, np.int64)]
    return tuple(_shorten(" ".join(str(value).split())) for value in values)


def _shorten(text: str) -> str:
    return (
        text
        if len(text) <= _MAX_DESCRIPTION_LENGTH
        else text[: _MAX_DESCRIPTION_LENGTH - 3].rstrip() + "..."
    )
