"""Runs traced programs in two processes that form a gloo group."""

import os
from datetime import timedelta
from pathlib import Path

from sluice.bench.tracer.case import CaseSetup
from tests.support.traced.processes import run_processes

NUM_RANKS = 2
_LIMIT_S = 120
_PRELOADED = ["torch._dynamo", "sluice.trace.attach", "sluice.bench.tracer.faults.ranks"]


def run_in_ranks(programs, folder):
    """Run all programs in one pair of processes; return the trace folder of each program by key.

    Args:
        programs: By key, an importable program and fields of its setup, such as ``has_fault``.
        folder: Empty folder.
    """
    exit_codes = run_processes(
        _run_rank,
        [(programs, folder, rank) for rank in range(NUM_RANKS)],
        preloaded=_PRELOADED,
        limit_s=_LIMIT_S,
    )
    assert exit_codes == [0] * NUM_RANKS, f"exit codes {exit_codes}"
    return {key: folder / key / "traces" for key in programs}


def _run_rank(programs, folder: Path, rank: int):
    import torch

    from sluice.trace.attach import traced
    from sluice.trace.settings import TraceSettings

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group",
        rank=rank,
        world_size=NUM_RANKS,
        timeout=timedelta(seconds=_LIMIT_S),
    )
    for key, (program, fields) in programs.items():
        rank_folder = folder / key / f"own-{rank}"
        rank_folder.mkdir(parents=True, exist_ok=True)
        setup = CaseSetup(
            **{"net": "mlp", "seed": 1, **fields},
            folder=rank_folder,
            rank=rank,
            num_ranks=NUM_RANKS,
        )
        with traced(folder / key / "traces", TraceSettings()):
            program(setup)
    torch.distributed.destroy_process_group()
