"""Runs a program with the tracer.

The tracer does not change the code, results or exit code of the program, unless the non-finite
guard skips steps or stops the program.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import sluice
from sluice.base.errors import ContractError, StorageError
from sluice.base.files import make_folder, storage_error
from sluice.trace.settings import TraceSettings

_SITECUSTOMIZE_FOLDER = Path(__file__).parent / "injected"
SIGNAL_EXIT_BASE = 128
"""If a signal ended the program, the exit code is this number plus the number of the signal, as in
shells."""


def launch(
    command: Sequence[str], *, out: Path, settings: TraceSettings, environ: Mapping[str, str]
) -> int:
    """Run a command, trace its Python processes, and return its exit code.

    Every child process that imports torch and trains writes its own subfolder of ``out``, also
    under a shell script, ``torchrun`` or another launcher.

    Args:
        command: Program and arguments, such as ``["python", "train.py"]``.
        out: Folder of the traces. If it cannot be written, the processes report an error and run
            untraced.
        settings: Limits of the trace, and the response to non-finite losses.
        environ: Environment of the program.

    Returns:
        The exit code; 128 plus the signal number if a signal ended the program.

    Raises:
        ContractError: The command is empty, or the program cannot be started.
    """
    if not command:
        raise ContractError(
            "sluice trace requires a command to run; got none.",
            fix="Add the command after two dashes: sluice trace -- python train.py",
        )
    try:
        process = subprocess.Popen(command, env=traced_environment(out, settings, environ))
    except OSError as error:
        raise ContractError(
            f"Cannot start '{command[0]}' ({error.strerror or error}).",
            fix=f"Start a Python file with its interpreter: sluice trace -- python {command[0]}"
            if command[0].endswith(".py") and Path(command[0]).is_file()
            else "Check the spelling and the permissions. Do not quote the command as a whole.",
        ) from error
    return_code = _wait_for_exit(process)
    return return_code if return_code >= 0 else SIGNAL_EXIT_BASE - return_code


def traced_environment(
    out: Path, settings: TraceSettings, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment in which Python processes are traced."""
    # Put the folder of the tracer's sitecustomize first: Python imports the first sitecustomize on
    # its path when it starts.
    python_path = [str(_SITECUSTOMIZE_FOLDER), *filter(None, [environ.get("PYTHONPATH")])]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(python_path),
        "SLUICE_TRACE_OUT": str(out.absolute()),
        "SLUICE_TRACE_PACKAGE": str(Path(sluice.__file__).parent),
        "SLUICE_TRACE_SETTINGS": settings.model_dump_json(),
    }


def prepare_folder(out: Path) -> StorageError | None:
    """Create the folder of traces; return an error if it cannot be created or written."""
    try:
        make_folder(out)
    except OSError as error:
        return storage_error(out, error)
    if not os.access(out, os.W_OK):
        return StorageError(
            f"Cannot write to {out}: the folder belongs to another user or is read-only.",
            fix="Choose another folder with --out.",
        )
    return None


def _wait_for_exit(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the program, forward SIGTERM to it, and return its return code.

    The return code is negative if a signal ended the program.
    """

    def forward_signal(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # Ignore SIGINT here: on Ctrl-C, the terminal also sends SIGINT to the program, because both
    # processes are in the foreground process group.
    previous_handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward_signal),
    }
    try:
        return process.wait()
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
