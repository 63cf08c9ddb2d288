"""Starts and stops the server process of a rehearsal."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluice.base.errors import SettingsError, StorageError
from sluice.cluster.process import worker_sys_path

if TYPE_CHECKING:
    from sluice.rehearsal.server import ServerConfig

# The server ignores SIGINT, which Ctrl-C sends to every process of the terminal: the rehearsal ends
# its server itself.
_START_SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path!r}
from sluice.training.orphans import end_with_parent
end_with_parent({parent})
from sluice.rehearsal.server import ServerConfig, main
main(ServerConfig.model_validate_json(sys.argv[1]))
"""
_MAX_START_S = 180.0
"""Maximum time until the server reports its port [s]."""
_MAX_STOP_S = 10.0
"""Time after SIGTERM at which the server is killed [s]."""


@contextmanager
def running_server(config: "ServerConfig") -> Iterator[Callable[[], int]]:
    """Start a server, yield a function that waits for its port, and end the server afterwards.

    The yielded function returns the port. It raises SettingsError with the server's message if the
    server cannot start, and StorageError if the server prints nothing within three minutes or ends
    without a message.
    """
    start_code = _START_SCRIPT.format(path=worker_sys_path(), parent=os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", start_code, config.model_dump_json()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield lambda: _wait_for_port(process)
    finally:
        process.terminate()
        try:
            process.wait(_MAX_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None, "it is a pipe"
        process.stdout.close()


def _wait_for_port(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None, "it is a pipe"
    readable_streams, _, _ = select.select([process.stdout], [], [], _MAX_START_S)
    line = process.stdout.readline() if readable_streams else ""
    if not line:
        raise StorageError(
            f"The rehearsal's server must report its port within {_MAX_START_S:g} s, but did not.",
            cause="The machine is too busy, or the version in production crashes its process.",
            fix="Check whether the version can be served: sluice serve",
        )
    message = json.loads(line)
    if "error" in message:
        error = message["error"]
        raise SettingsError(error["what"], cause=error["cause"], fix=error["fix"])
    return int(message["port"])
