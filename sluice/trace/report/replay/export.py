"""Writes the replays of a folder of traces, and their curves as TensorBoard scalars."""

import math
from pathlib import Path

from sluice.base.errors import ContractError
from sluice.base.files import write_atomic
from sluice.trace.report.replay.page import replay_page
from sluice.trace.report.replay.series import curves
from sluice.trace.report.trace_report import report_traces
from sluice.trace.trace_reader import read_trace

PAGE = "replay.html"


def write_replays(traces: Path) -> tuple[Path, ...]:
    """Write the replay of every traced process into its folder, and return the files.

    Raises:
        StorageError: The folder contains no trace or cannot be written.
        ContractError: A trace is damaged.
    """
    pages = []
    for report in report_traces(traces):
        folder = Path(report.folder)
        page = replay_page(read_trace(folder), report.diagnoses)
        write_atomic(folder / PAGE, page.encode())
        pages.append(folder / PAGE)
    return tuple(pages)


def write_tensorboard(traces: Path, out: Path) -> int:
    """Write the curves of all traced processes to TensorBoard; return the number of scalars.

    Args:
        traces: Folder of traces.
        out: Log folder; each process writes to its own subfolder.

    Raises:
        ContractError: tensorboardX is not installed, or a trace is damaged.
        StorageError: The folder contains no trace.
    """
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise ContractError(
            "TensorBoard export requires the package tensorboardX, which is not installed.",
            fix="pip install tensorboardX",
        ) from error
    written = 0
    for report in report_traces(traces):
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
