"""Guesses of ``sluice init`` about the data, from which it writes the files of a pipeline."""

from dataclasses import dataclass
from typing import Any

FIRST_FOLDS: dict[str, Any] = {"num_folds": 2, "first_test_share": 0.5, "val_share": 0.2}
"""Folds of a first run: half of the rows precede the first test rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Value that was chosen from the data, and the reason, which becomes a comment."""

    value: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGuess:
    """Column of the data, or a lag of the target, that is an input or is left out."""

    name: str
    code: str
    """Python expression of the input; empty for a column that is left out."""

    reason: str
    kind: str = ""
    """Name of the class that ``code`` constructs, such as Number; empty without ``code``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGuess:
    """Everything that the templates need to know about a table."""

    data: str
    """Path of the data file, relative to the folder of the written files."""

    num_rows: int
    source: dict[str, Any]
    """Settings of the source."""

    order: Guess
    """Whether rows are in time order ("time") or independent ("hash")."""

    has_repeated_times: bool
    """Whether several rows have the same time."""

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
