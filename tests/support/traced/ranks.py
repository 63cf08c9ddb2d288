"""Runs programs in two real processes of one gloo group, each traced."""

import os
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

from sluice.bench.tracer.case import Setup

RANKS = 2
_LIMIT_S = 120
_PRELOADED = ["torch._dynamo", "sluice.trace.attach", "sluice.bench.tracer.faults.ranks"]


def run_in_ranks(programs, folder):
    """Run every program in one pair of processes; return the folder of its traces, by its key.

    Args:
        programs: Key to an importable program and what its setup has, such as ``has_fault``.
        folder: Empty.
    """
    context = get_context("forkserver")  # torch is imported once
    context.set_forkserver_preload(_PRELOADED)
    processes = [
        context.Process(target=_rank, args=(programs, folder, rank)) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_LIMIT_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
    assert codes == [0] * RANKS, f"exit codes {codes}"
    return {key: folder / key / "traces" for key in programs}


def _rank(programs, folder: Path, rank: int):
    import torch

    from sluice.trace.attach import traced
    from sluice.trace.settings import TraceSettings

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=_LIMIT_S),
    )
    for key, (program, fields) in programs.items():
        own = folder / key / f"own-{rank}"
        own.mkdir(parents=True, exist_ok=True)
        setup = Setup(**{"net": "mlp", "seed": 1, **fields}, folder=own, rank=rank, ranks=RANKS)
        with traced(folder / key / "traces", TraceSettings()):
            program(setup)
    torch.distributed.destroy_process_group()
