"""Command-line tracing: runs a program with the tracer, then prints the report."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.base.errors import StorageError
from sluice.base.home import Home
from sluice.trace.launcher import SIGNAL_EXIT_BASE, launch, prepare_folder
from sluice.trace.recording.storage import unique_folder
from sluice.trace.report.trace_report import format_report, report_traces
from sluice.trace.settings import TraceSettings
from sluice.trace.tracer import print_to_stderr


def run_traced(
    command: Sequence[str],
    *,
    out: Path | None,
    settings: TraceSettings,
    environ: Mapping[str, str],
    cwd: Path,
) -> int:
    """Run a program with the tracer, print the report to stderr, and return the exit code.

    Args:
        command: The program and its arguments.
        out: Folder of the traces; None for a new folder in ``SLUICE_HOME/traces``.
        settings: Limits of the trace, and the response to non-finite losses.
        environ: Environment of the program.
        cwd: Working directory that relative paths refer to.

    Raises:
        ContractError: The command is empty, or the program cannot be started.
    """
    home = Home.from_environment(environ, cwd=cwd)
    folder = cwd / out if out is not None else unique_folder(home.traces, "run")
    folder_error = prepare_folder(folder)
    if folder_error is not None:
        print_to_stderr(f"sluice trace: {folder_error} The program runs untraced.")
    exit_code = launch(command, out=folder, settings=settings, environ=environ)
    if folder_error is None:
        try:
            for report in report_traces(folder):
                print_to_stderr(format_report(report))
        except StorageError as error:
            print_to_stderr(f"sluice trace: no trace was recorded. {error}")
        except Exception as error:  # the exit code must be returned, whatever fails here
            reason = f"{type(error).__name__}: {error}"
            print_to_stderr(f"sluice trace: the trace in {folder} cannot be read ({reason}).")
    if exit_code > SIGNAL_EXIT_BASE:
        print_to_stderr(f"sluice trace: {_signal_text(exit_code)}")
    return exit_code


def _signal_text(exit_code: int) -> str:
    """Return a text that names the signal of an exit code above 128, and its likely cause."""
    try:
        name = signal.Signals(exit_code - SIGNAL_EXIT_BASE).name
    except ValueError:
        return f"the program ended with exit code {exit_code}."
    hint = {
        "SIGKILL": " The system sends it when memory runs out. If the kernel log contains 'out of "
        "memory', halve the batch size.",
        "SIGSEGV": " The program crashed in native code. Run it with python -X faulthandler.",
    }.get(name, "")
    return f"signal {name} ended the program (exit code {exit_code}).{hint}"
