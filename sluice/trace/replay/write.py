"""Writes the replay of a folder of traces, and its curves for TensorBoard (TRACE-15)."""

import math
from pathlib import Path

from sluice.base.errors import ContractError
from sluice.base.files import write_atomic
from sluice.trace.reading import read_trace
from sluice.trace.replay.page import replay_page
from sluice.trace.replay.series import curves
from sluice.trace.report import report_on

PAGE = "replay.html"


def write_replays(traces: Path) -> tuple[Path, ...]:
    """Write the page of every traced process into its folder, and return the pages.

    Raises:
        StorageError: There is no trace, or its folder cannot be written.
        ContractError: A trace is damaged.
    """
    pages = []
    for report in report_on(traces):
        folder = Path(report.folder)
        page = replay_page(read_trace(folder), report.diagnoses)
        write_atomic(folder / PAGE, page.encode())
        pages.append(folder / PAGE)
    return tuple(pages)


def write_tensorboard(traces: Path, out: Path) -> int:
    """Write the curves of every traced process as TensorBoard scalars, and return how many.

    Args:
        traces: A folder of traces.
        out: Log folder; each process gets a folder of its own in it.

    Raises:
        ContractError: tensorboardX is not installed, or a trace is damaged.
        StorageError: There is no trace.
    """
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise ContractError(
            "Curves for TensorBoard need the package tensorboardX, which is not installed.",
            fix="pip install tensorboardX",
        ) from error
    written = 0
    for report in report_on(traces):
        folder = Path(report.folder)
        trace = read_trace(folder)
        with SummaryWriter(str(out / folder.name)) as writer:
            for title, lines in curves(trace).items():
                for name, curve in lines.items():
                    for step, value in curve:
                        if math.isfinite(value):
                            writer.add_scalar(f"{title}/{name}", value, step)
                            written += 1
    return written
