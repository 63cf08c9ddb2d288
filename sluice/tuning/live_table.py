"""The trials of a running search as a short table, for a terminal and for a log."""

import math
from collections.abc import Mapping, Sequence

from sluice.tuning.records import TrialRecord
from sluice.tuning.study_summary import STATES, display_value

Row = Mapping[str, object]

LOG_WIDTH = 120
"""Width of the table in a log [characters]."""
_NUM_BEST = 3
_MAX_ROWS = 8
_MAX_CELL = 16
_GAP = 2


def live_rows(trials: Sequence[TrialRecord]) -> list[Row]:
    """Return a row for each of the best and of the running trials, at most eight.

    Parameters are in the order of the space, under their shortest unique names.
    """
    finite = [trial for trial in trials if math.isfinite(trial.loss)]
    best = sorted(finite, key=lambda trial: (trial.loss, trial.id))[:_NUM_BEST]
    running = [trial for trial in trials if trial.state == "running" and trial not in best]
    picked = [*best, *running][:_MAX_ROWS]
    names = short_names(list(dict.fromkeys(path for trial in trials for path in trial.params)))
    return [
        {
            "trial": trial.id,
            "state": STATES.get(trial.state, trial.state),
            "epochs": len(trial.epochs),
            "loss": trial.loss if math.isfinite(trial.loss) else "-",
            **{name: display_value(trial.params, path) for path, name in names.items()},
        }
        for trial in picked
    ]


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return for each path its shortest suffix that no other path ends with.

    The index of a list keeps the name of the list.

    >>> short_names(["training.learning_rate", "training.optimizer_arguments.betas.0"])
    {'training.learning_rate': 'learning_rate', 'training.optimizer_arguments.betas.0': 'betas.0'}
    """
    return {path: _short(path, [other for other in paths if other != path]) for path in paths}


def _short(path: str, others: Sequence[str]) -> str:
    parts = path.split(".")
    for count in range(2 if parts[-1].isdigit() else 1, len(parts)):
        name = ".".join(parts[-count:])
        if not any(f".{other}".endswith(f".{name}") for other in others):
            return name
    return path


def table_cells(rows: Sequence[Row], *, width: int) -> tuple[list[list[str]], list[str]]:
    """Return the cells of a table that fits, header first, and the columns that do not fit.

    Args:
        rows: Rows with the same names.
        width: Width of the table, with two characters between columns [characters].
    """
    columns = [
        [name, *[cell_text(row.get(name, "")) for row in rows]]
        for name in (rows[0] if rows else ())
    ]
    kept: list[list[str]] = []
    room = width
    for column in columns:
        room -= max(map(len, column)) + _GAP
        if room + _GAP < 0:
            break
        kept.append(column)
    cells = [list(line) for line in zip(*kept, strict=True)]
    return cells, [column[0] for column in columns[len(kept) :]]


def table_text(rows: Sequence[Row], *, width: int = LOG_WIDTH) -> str:
    """Return the rows as aligned text, with a last line that lists omitted columns."""
    cells, omitted = table_cells(rows, width=width)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        (" " * _GAP).join(cell.rjust(size) for cell, size in zip(line, widths, strict=True))
        for line in cells
    ]
    return "\n".join([*lines, *([omitted_text(omitted)] if omitted else [])])


def omitted_text(names: Sequence[str]) -> str:
    """Return the line that lists omitted columns."""
    return f"not shown: {', '.join(names)}"


def cell_text(value: object) -> str:
    """Return a value as a short cell: four digits of a float, the class of an import path."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value).rpartition(":")[2]
    return text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 3]}..."
