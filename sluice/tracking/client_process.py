"""Runs a tracking client in a separate process, with a time limit.

Output, side effects, retries and failures of the client do not affect the caller.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.base.redaction import redact


class ClientFailed(Exception):
    """The tracking client failed or took too long."""


def package_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that can import this package."""
    sluice_parent = str(Path(__file__).resolve().parents[2])
    python_path = [sluice_parent, *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(python_path)}


def run_client_process(
    module: str,
    payload: Mapping[str, Any],
    *,
    timeout_s: float,
    folder: Path,
    environ: Mapping[str, str],
) -> Any:
    """Run a module that reads a JSON object from stdin and prints a JSON value.

    Args:
        module: Module to run with ``python -m``; the last line that it prints is its result.
        payload: Content of stdin.
        timeout_s: Time limit [s].
        folder: Working folder of the process.
        environ: Environment variables of the process; this package is added to PYTHONPATH.

    Returns:
        The printed value.

    Raises:
        ClientFailed: The process failed, ended without a result, or was killed because it exceeded
            the time limit.
        OSError: The process cannot be started.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        env=package_environment(environ),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that one kill also ends the client's child processes
    )
    try:
        output, errors = process.communicate(json.dumps(payload).encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"not finished after {timeout_s:g} s (timeout_s).") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        process.wait()
    if process.returncode:
        error_lines = errors.decode(errors="replace").strip().splitlines()
        raise ClientFailed(
            redact(error_lines[-1]) if error_lines else f"exit code {process.returncode}."
        )
    # The last line is the result; the client may have printed other lines before. The result may be
    # missing, because code that the client runs, such as a model, may end the process.
    try:
        return json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ClientFailed("the process ended without a result.") from None
