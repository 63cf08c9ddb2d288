"""Forks a process for each command, so that modules are imported only once, in this process.

Reads JSON objects from stdin, one per line. {"arguments", "environ", "out", "err"} starts a command
whose stdout and stderr are these files, and prints its process id. {"wait": process id} prints the
exit code of a process. At the end of stdin, all running processes are killed.
"""

import contextlib
import json
import os
import signal
import sys

import sluice.serving.server_spec
from sluice.cli.app import run_command


def main() -> None:
    running_pids = set()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            running_pids.discard(request["wait"])
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _run_command(**request)
        running_pids.add(pid)
        print(pid, flush=True)
    for pid in running_pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # the regular exit of torch takes seconds


def _run_command(arguments: list[str], environ: dict[str, str], out: str, err: str) -> None:
    """Run a command in the child process; never return."""
    exit_code = 3
    try:
        os.environ.pop("SLUICE_REGISTRY_URL", None)
        os.environ.update(environ)
        for path, descriptor in ((out, 1), (err, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        exit_code = run_command(arguments)
    finally:
        os._exit(exit_code)


if __name__ == "__main__":
    assert sluice.serving.server_spec
    main()
