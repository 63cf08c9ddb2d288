"""Forks processes of the command line, so that their imports happen only once, in this process.

Reads JSON objects from stdin, one per line. {"arguments", "environ", "out", "err"} starts a command
with its streams in these files and prints its process id. {"wait": process id} prints the exit code
of a process. At the end of stdin, all running processes are killed.
"""

import contextlib
import json
import os
import signal
import sys

import sluice.serving.server_spec
from sluice.cli.app import run_command


def main() -> None:
    running = set()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            running.discard(request["wait"])
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _command(**request)
        running.add(pid)
        print(pid, flush=True)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # the regular exit of torch takes seconds


def _command(arguments: list[str], environ: dict[str, str], out: str, err: str) -> None:
    """Run in the child; never returns."""
    code = 3
    try:
        os.environ.pop("SLUICE_REGISTRY_URL", None)
        os.environ.update(environ)
        for path, number in ((out, 1), (err, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = run_command(arguments)
    finally:
        os._exit(code)


if __name__ == "__main__":
    assert sluice.serving.server_spec
    main()
