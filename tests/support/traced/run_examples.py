"""Runs an example program of the documentation traced, in processes of its own."""

import os
import runpy
import socket
import warnings
from multiprocessing import get_context
from pathlib import Path

_LIMIT_S = 180
_PRELOADED = ["torch._dynamo", "torch.distributed", "sluice.trace.attach"]


def run_example(program: Path, traces: Path, *, ranks: int) -> None:
    """Run a program that may raise, as ``sluice trace -- torchrun`` does for several ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = get_context("forkserver")  # imports torch only once
    context.set_forkserver_preload(_PRELOADED)
    processes = [
        context.Process(target=_run, args=(program, traces, rank, ranks, port))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_LIMIT_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
    assert codes == [0] * ranks, f"exit codes {codes}"


def _run(program: Path, traces: Path, rank: int, ranks: int, port: int) -> None:
    import torch

    from sluice.trace.attach import traced
    from sluice.trace.settings import TraceSettings

    if ranks > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns of some of the faults itself
    with traced(traces, TraceSettings()):
        runpy.run_path(str(program), run_name="__main__")
