"""Runs an example program of the documentation with the tracer, in separate processes."""

import contextlib
import faulthandler
import os
import runpy
import socket
import tempfile
import warnings
from pathlib import Path

from tests.support.traced.processes import run_processes

_LIMIT_S = 60
_PRELOADED = ["torch._dynamo", "torch.distributed", "sluice.trace.attach"]


def run_example(program: Path, traces: Path, *, ranks: int) -> None:
    """Run a traced program in one process per rank, like ``sluice trace -- torchrun``."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"rank {rank}" for rank in range(ranks)]
        exit_codes = run_processes(
            _run_rank,
            [(program, traces, rank, ranks, port, log) for rank, log in enumerate(logs)],
            preloaded=_PRELOADED,
            limit_s=_LIMIT_S,
        )
        log_texts = [log.read_text() if log.exists() else "did not start" for log in logs]
    assert exit_codes == [0] * ranks, f"exit codes {exit_codes}\n" + "\n".join(log_texts)


def _free_port() -> int:
    """Return a free port below the ephemeral ports, which stays free until rank 0 binds it."""
    first_port = 20_000 + 16 * (os.getpid() % 500)
    for port in range(first_port, first_port + 16):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port from {first_port} to {first_port + 15} is free")


def _run_rank(program: Path, traces: Path, rank: int, ranks: int, port: int, log: Path) -> None:
    log_file = log.open("w")
    os.dup2(log_file.fileno(), 2)
    faulthandler.dump_traceback_later(_LIMIT_S - 5, exit=True, file=log_file)
    import torch

    from sluice.trace.attach import traced
    from sluice.trace.settings import TraceSettings

    if ranks > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns about some of the faults
    with traced(traces, TraceSettings()):
        runpy.run_path(str(program), run_name="__main__")
