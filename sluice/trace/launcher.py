"""Runs a program with the tracer in it: no edit, same output, same exit code (TRACE-1)."""

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

_INJECTED = Path(__file__).parent / "injected"
_OUT, _PACKAGE, _SETTINGS = "SLUICE_TRACE_OUT", "SLUICE_TRACE_PACKAGE", "SLUICE_TRACE_SETTINGS"
SIGNALLED = 128
"""A shell adds this to the number of the signal that ended a program."""


def launch(
    command: Sequence[str], *, out: Path, settings: TraceSettings, environ: Mapping[str, str]
) -> int:
    """Run a command whose Python processes are traced, and return its exit code.

    Every process below it that imports torch and trains writes a folder of its own in ``out``:
    also under a shell script, ``torchrun`` or another launcher.

    Args:
        command: As on a command line, such as ``["python", "train.py"]``.
        out: Folder of the traces; made here. One that cannot be written is said, and the program
            runs untraced.
        settings: Bounds of the trace.
        environ: Of the program.

    Returns:
        The exit code; of a program that a signal ended 128 and its number.

    Raises:
        ContractError: There is no command, or no such program.
    """
    if not command:
        raise ContractError(
            "sluice trace needs a command to run; got none.",
            fix="Give it after two dashes: sluice trace -- python train.py",
        )
    try:
        process = subprocess.Popen(command, env=traced_environment(out, settings, environ))
    except OSError as error:
        raise ContractError(
            f"Cannot start '{command[0]}' ({error.strerror or error}).",
            fix="Check the spelling; write the command as the shell would run it.",
        ) from error
    code = _wait(process)
    return code if code >= 0 else SIGNALLED - code


def traced_environment(
    out: Path, settings: TraceSettings, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment whose Python processes are traced."""
    path = [str(_INJECTED), *filter(None, [environ.get("PYTHONPATH")])]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(path),
        _OUT: str(out.absolute()),
        _PACKAGE: str(Path(sluice.__file__).parent),
        _SETTINGS: settings.model_dump_json(),
    }


def check_folder(out: Path) -> StorageError | None:
    """Make the folder of traces, and return why not when that fails."""
    try:
        make_folder(out)
    except OSError as error:
        return storage_error(out, error)
    if not os.access(out, os.W_OK):
        return StorageError(
            f"Cannot write {out}: it belongs to somebody else or is read-only.",
            fix="Name another folder with --out.",
        )
    return None


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the program; what should end this process is the program's to answer."""

    def hand_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # Ctrl-C reaches the program by itself: it is in the terminal's foreground, too.
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
    }
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
