"""One traced run from the command line: the program first, then what it did wrong."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.base.errors import StorageError
from sluice.base.home import Home
from sluice.trace.launcher import SIGNALLED, check_folder, launch
from sluice.trace.report import as_text, report_on
from sluice.trace.settings import TraceSettings
from sluice.trace.storage import unused_folder
from sluice.trace.tracer import say_on_stderr


def run_traced(
    command: Sequence[str],
    *,
    out: Path | None,
    settings: TraceSettings,
    environ: Mapping[str, str],
    cwd: Path,
) -> int:
    """Run a program traced, say on stderr what was found, and return the program's exit code.

    Args:
        command: The program and its arguments.
        out: Folder of the traces; a new one in ``SLUICE_HOME/traces`` when None.
        settings: Bounds of the trace, and what to do about losses that are not finite.
        environ: Of the program.
        cwd: Where relative paths begin.

    Raises:
        ContractError: There is no command, or no such program.
    """
    home = Home.from_environment(environ, cwd=cwd)
    folder = cwd / out if out is not None else unused_folder(home.traces, "run")
    refused = check_folder(folder)
    if refused is not None:
        say_on_stderr(f"sluice trace: {refused} The program runs untraced.")
    code = launch(command, out=folder, settings=settings, environ=environ)
    if refused is None:
        try:
            for report in report_on(folder):
                say_on_stderr(as_text(report))
        except StorageError as error:
            say_on_stderr(f"sluice trace: nothing was traced. {error}")
        except Exception as error:  # whatever it is, the exit code is the program's
            why = f"{type(error).__name__}: {error}"
            say_on_stderr(f"sluice trace: the trace in {folder} cannot be read ({why}).")
    if code > SIGNALLED:
        say_on_stderr(f"sluice trace: {_signal_text(code)}")
    return code


def _signal_text(code: int) -> str:
    """Say which signal an exit code stands for."""
    try:
        name = signal.Signals(code - SIGNALLED).name
    except ValueError:
        return f"the program ended with exit code {code}."
    hint = {
        "SIGKILL": " The system sends it when memory runs out: look for 'out of memory' in the "
        "kernel's log, and halve the batch.",
        "SIGSEGV": " That is a crash in native code: run it with python -X faulthandler.",
    }.get(name, "")
    return f"signal {name} ended the program (exit code {code}).{hint}"
