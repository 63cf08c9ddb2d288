"""Formats the trials of a running search as a short table, for a terminal and for a log."""

import math
from collections.abc import Mapping, Sequence

from sluice.tuning.records import TrialRecord
from sluice.tuning.study_summary import STATE_NAMES, display_value

Row = Mapping[str, object]
"""Cells of a table row, by column name."""

LOG_WIDTH = 120
"""Width of the table in a log [characters]."""
_NUM_BEST_TRIALS = 3
"""Number of best trials in the table."""
_MAX_ROWS = 8
_MAX_CELL_WIDTH = 16
"""Maximum width of a cell [characters]; longer text is cut."""
_COLUMN_GAP = 2
"""Space between two columns [characters]."""


def live_rows(trials: Sequence[TrialRecord]) -> list[Row]:
    """Return a row for each of the three best trials and each running trial, at most eight rows.

    Parameters are in the order of the search space, under their shortest unique names.
    """
    finite_trials = [trial for trial in trials if math.isfinite(trial.loss)]
    best_trials = sorted(finite_trials, key=lambda trial: (trial.loss, trial.id))[:_NUM_BEST_TRIALS]
    running_trials = [
        trial for trial in trials if trial.state == "running" and trial not in best_trials
    ]
    listed_trials = [*best_trials, *running_trials][:_MAX_ROWS]
    names = short_names(list(dict.fromkeys(path for trial in trials for path in trial.params)))
    return [
        {
            "trial": trial.id,
            "state": STATE_NAMES.get(trial.state, trial.state),
            "epochs": len(trial.epochs),
            "loss": trial.loss if math.isfinite(trial.loss) else "-",
            **{name: display_value(trial.params, path) for path, name in names.items()},
        }
        for trial in listed_trials
    ]


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return a short name for each path: its shortest suffix with which no other path ends.

    The name of a list item always contains the name of the list.

    >>> short_names(["training.learning_rate", "training.optimizer_arguments.betas.0"])
    {'training.learning_rate': 'learning_rate', 'training.optimizer_arguments.betas.0': 'betas.0'}
    """
    return {path: _short_name(path, [other for other in paths if other != path]) for path in paths}


def _short_name(path: str, other_paths: Sequence[str]) -> str:
    path_parts = path.split(".")
    for num_parts in range(2 if path_parts[-1].isdigit() else 1, len(path_parts)):
        name = ".".join(path_parts[-num_parts:])
        if not any(f".{other}".endswith(f".{name}") for other in other_paths):
            return name
    return path


def table_cells(rows: Sequence[Row], *, width: int) -> tuple[list[list[str]], list[str]]:
    """Return the cells of the columns that fit into a width, and the names of omitted columns.

    The cells are grouped by line. The first line is the header.

    Args:
        rows: Rows with the same column names.
        width: Width of the table, with two characters between columns [characters].
    """
    columns = [
        [name, *[cell_text(row.get(name, "")) for row in rows]]
        for name in (rows[0] if rows else ())
    ]
    fitting_columns: list[list[str]] = []
    free_width = width
    for column in columns:
        free_width -= max(map(len, column)) + _COLUMN_GAP
        if free_width + _COLUMN_GAP < 0:  # the last column needs no gap
            break
        fitting_columns.append(column)
    cells = [list(line) for line in zip(*fitting_columns, strict=True)]
    return cells, [column[0] for column in columns[len(fitting_columns) :]]


def table_text(rows: Sequence[Row], *, width: int = LOG_WIDTH) -> str:
    """Return the rows as aligned text, with a last line that lists omitted columns."""
    cells, omitted_names = table_cells(rows, width=width)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        (" " * _COLUMN_GAP).join(cell.rjust(size) for cell, size in zip(line, widths, strict=True))
        for line in cells
    ]
    return "\n".join([*lines, *([omitted_text(omitted_names)] if omitted_names else [])])


def omitted_text(names: Sequence[str]) -> str:
    """Return the line that lists omitted columns."""
    return f"not shown: {', '.join(names)}"


def cell_text(value: object) -> str:
    """Return a value as short text.

    A float has four significant digits. An import path is shortened to the class name, and a long
    text is cut.
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value).rpartition(":")[2]
    return text if len(text) <= _MAX_CELL_WIDTH else f"{text[: _MAX_CELL_WIDTH - 3]}..."
