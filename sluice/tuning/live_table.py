"""The trials of a running search as a short table."""

import math
from collections.abc import Mapping, Sequence

from sluice.tuning.records import Trial
from sluice.tuning.study import trial_rows

Row = Mapping[str, object]

_BEST = 3
_MOST = 8


def live_rows(trials: Sequence[Trial]) -> list[Row]:
    """Return a line for each of the best trials and of those that run, at most eight."""
    finite = [trial for trial in trials if math.isfinite(trial.loss)]
    best = sorted(finite, key=lambda trial: (trial.loss, trial.id))[:_BEST]
    running = [trial for trial in trials if trial.state == "running" and trial not in best]
    shown = [*best, *running][:_MOST]
    return [
        {name: value for name, value in row.items() if name != "why it ended"}
        for row in trial_rows(shown)
    ]


def table_text(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text, for a log."""
    if not rows:
        return ""
    names = list(rows[0])
    cells = [names, *[[_cell(row.get(name, "")) for name in names] for row in rows]]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
