"""The rehearsal's side of its server: start it, know its port, end it whatever happens."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluice.base.errors import SettingsError, StorageError
from sluice.cluster.process import worker_path

if TYPE_CHECKING:
    from sluice.rehearsal.server import Order

# Ctrl-C reaches every process of a terminal; the rehearsal decides when its server ends.
_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path!r}
from sluice.training.orphans import end_with_parent
end_with_parent({parent})
from sluice.rehearsal.server import Order, main
main(Order.model_validate_json(sys.argv[1]))
"""
_READY_S = 60.0
_END_S = 10.0


@contextmanager
def starting_server(order: "Order") -> Iterator[Callable[[], int]]:
    """Start a server and yield what waits for its port; the server is gone afterwards.

    Waiting raises SettingsError when it cannot start, in its own words, and StorageError when it
    says nothing within a minute or ends without a word.
    """
    start = _START.format(path=worker_path(), parent=os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", start, order.model_dump_json()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield lambda: _port(process)
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None, "it is a pipe"
        process.stdout.close()


def _port(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None, "it is a pipe"
    is_there, _, _ = select.select([process.stdout], [], [], _READY_S)
    line = process.stdout.readline() if is_there else ""
    if not line:
        raise StorageError(
            f"The rehearsal's server must say where it listens within {_READY_S:g} s, and said "
            "nothing.",
            cause="The machine is too busy, or the version in production breaks its process.",
            fix="See whether it serves by itself: sluice serve",
        )
    said = json.loads(line)
    if "error" in said:
        error = said["error"]
        raise SettingsError(error["what"], cause=error["cause"], fix=error["fix"])
    return int(said["port"])
