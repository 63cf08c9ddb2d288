"""Guesses about the data, from which the files of a new pipeline are generated."""

from dataclasses import dataclass
from typing import Any

from sluice.data.schema import ColumnKind

FIRST_FOLDS: dict[str, Any] = {"num_folds": 2, "first_test_share": 0.5, "val_share": 0.2}
"""Fold settings of a first run: half of the rows precede the first test rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Value that was guessed from the data, and the reason, which becomes a comment."""

    value: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGuess:
    """Guess for a column, or a lag of the target: how it becomes an input, or why it does not."""

    name: str
    code: str
    """Python expression that constructs the input; empty for a column that is left out."""

    reason: str
    kind: str = ""
    """Name of the input class in ``code``, such as Number; empty for a column that is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGuess:
    """Everything that the templates need to know about a table."""

    data: str
    """Path of the data file, relative to the folder of the written files."""

    num_rows: int
    source: dict[str, Any]
    """Settings of the data source."""

    order: Guess
    """Either "time" for rows in time order, or "hash" for independent rows."""

    index_kind: ColumnKind | None
    """Type of the times; None for independent rows."""

    has_repeated_times: bool
    """Whether several rows have the same time."""

    has_repeated_inputs: bool
    """Whether independent rows with equal inputs are separate observations."""

    target: str
    task: Guess
    """Either "regression" or "classification"."""

    classes: tuple[str, ...]
    """Labels of the classes; empty for a regression."""

    target_notes: tuple[str, ...]
    """Remarks on the target, which become comments."""

    inputs: tuple[InputGuess, ...]
    left_out: tuple[InputGuess, ...]
    max_duplicate_share: Guess | None
    """Setting of the POC gate for a table with many equal rows; None for the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGuess:
    """Everything that the templates need to know about a folder of images."""

    data: str
    """Path of the folder, relative to the folder of the written files."""

    num_rows: int
    """Number of images."""

    classes: tuple[str, ...]
    """Names of the subfolders."""

    class_notes: tuple[str, ...]
    """Remarks on the classes, which become comments."""

    size: Guess
    """Height and width to which all images are resized [pixels]."""
