"""Forks ready-made processes of the command line: what they import is imported once, here.

Reads a JSON object a line on stdin. {"arguments", "environ", "out", "err"} starts a command with
its streams in these files and prints its process id; {"wait"} prints the exit code of a process id.
At the end of stdin whatever still runs is killed.
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
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            running.discard(asked["wait"])
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _command(**asked)
        running.add(pid)
        print(pid, flush=True)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # taking torch down takes seconds


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
