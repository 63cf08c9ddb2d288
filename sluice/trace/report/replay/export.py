"""Writes a folder of traces as replays, and the curves of the traces as TensorBoard scalars."""

import math
from pathlib import Path

from sluice.base.errors import ContractError
from sluice.base.files import write_atomic
from sluice.trace.report.replay.page import replay_page
from sluice.trace.report.replay.series import curves
from sluice.trace.report.trace_report import report_traces
from sluice.trace.trace_reader import read_trace

_PAGE_NAME = "replay.html"


def write_replays(traces: Path) -> tuple[Path, ...]:
    """Write the replay of every traced process into the folder of its trace; return the files.

    Raises:
        StorageError: The folder contains no trace or cannot be written.
        ContractError: A trace is damaged.
    """
    files = []
    for report in report_traces(traces):
        folder = Path(report.folder)
        file, page = folder / _PAGE_NAME, replay_page(read_trace(folder), report.diagnoses)
        write_atomic(file, page.encode())
        files.append(file)
    return tuple(files)


def write_tensorboard(traces: Path, out: Path) -> int:
    """Write the curves of all traced processes to TensorBoard; return the number of scalars.

    Non-finite values are omitted.

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
    num_scalars = 0
    for report in report_traces(traces):
        folder = Path(report.folder)
        with SummaryWriter(str(out / folder.name)) as writer:
            for title, curve_by_name in curves(read_trace(folder)).items():
                for name, curve in curve_by_name.items():
                    for step, value in curve:
                        if math.isfinite(value):
                            writer.add_scalar(f"{title}/{name}", value, step)
                            num_scalars += 1
    return num_scalars
