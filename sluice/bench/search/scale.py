"""What the decisions of a large study cost, on a virtual cluster inside this process."""

import gc
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.bench.search.virtual_cluster import Proposals, SimulatedStudy, VirtualCluster

if TYPE_CHECKING:
    from sluice.tuning.resumable.study import Study

_PROPOSALS: tuple[Proposals, ...] = ("random", "tpe")
_MIB = 2.0**20


class ScaleCost(Record):
    """What the process that decides about a large study spends; its workers are simulated."""

    proposals: Proposals
    ordered: bool = Field(description="Results in the order of a virtual clock, else of arrival.")
    num_trials: int
    num_workers: int = Field(description="Simulated; no process runs for any of them.")
    num_results: int = Field(description="Reported by all trials, one for each epoch.")
    result_ms: float = Field(
        description="Mean time for each result: scheduler, suggestions, journal on disk [ms]."
    )
    result_cpu_ms: float = Field(
        description="Of it, processor time; the rest is the disk, and other programs [ms]."
    )
    slowest_ms: float = Field(description="The longest that a worker waited for a decision [ms].")
    memory_mib: float = Field(description="That this process grew by [MiB].")
    journal_mib: float = Field(description="Size of the journal [MiB].")
    copy_mib: float = Field(description="Size of the last copy of the study beside it [MiB].")
    restore_s: float = Field(description="To open the study again after a kill at its end [s].")


def measure_scale(*, num_trials: int, num_workers: int, folder: Path) -> tuple[ScaleCost, ...]:
    """Run ASHA with random values and with TPE, by arrival and ordered, on simulated workers.

    Args:
        num_trials: Trials of each study.
        num_workers: Simulated workers.
        folder: For the journals; its disk is part of what is measured.
    """
    found: list[ScaleCost] = []
    kept: list[Study] = []  # freed memory would hide what the next study needs
    _warm_up(folder)
    for proposals in _PROPOSALS:
        for ordered in (False, True):
            case = SimulatedStudy(
                proposals=proposals,
                ordered=ordered,
                num_trials=num_trials,
                num_workers=num_workers,
                folder=folder / f"{proposals}-{'ordered' if ordered else 'arrival'}",
            )
            found.append(_measure(case, kept))
    return tuple(found)


def _measure(case: SimulatedStudy, kept: list["Study"]) -> ScaleCost:
    before = _resident()
    opened = case.open()
    cluster = VirtualCluster(opened)
    cluster.run()
    grown = _resident() - before
    opened.journal.close()
    copy = case.journal.with_name(case.journal.name + ".copy")
    copied = copy.stat().st_size if copy.exists() else 0
    restore_s, restored = time_restore(case, opened.study)
    kept += [opened.study, restored]
    return ScaleCost(
        proposals=case.proposals,
        ordered=case.ordered,
        num_trials=case.num_trials,
        num_workers=case.num_workers,
        num_results=cluster.num_results,
        result_ms=1000 * math.fsum(cluster.decisions_s) / cluster.num_results,
        result_cpu_ms=1000 * cluster.cpu_s / cluster.num_results,
        slowest_ms=1000 * max(cluster.decisions_s),
        memory_mib=grown / _MIB,
        journal_mib=opened.journal.size / _MIB,
        copy_mib=copied / _MIB,
        restore_s=restore_s,
    )


def time_restore(case: SimulatedStudy, original: "Study") -> tuple[float, "Study"]:
    """Open a study again and return how long that takes [s], and the study.

    Args:
        case: The study, closed.
        original: What it must lead to.

    Raises:
        ContractError: It is not the study that was closed.
    """
    began = time.perf_counter()
    opened = case.open()
    seconds = time.perf_counter() - began
    opened.journal.close()
    ends, again = (
        [(trial.config, trial.status, trial.time) for trial in study.trials]
        for study in (original, opened.study)
    )
    if ends != again:
        differing = sum(a != b for a, b in zip(ends, again, strict=False))
        raise ContractError(
            f"The same trials are required after a restore; of {len(ends)}, {len(again)} are "
            f"there and {differing} differ.",
            cause="A decision followed from something that is not in the journal.",
            fix=f"Keep {case.journal} and report it.",
        )
    return seconds, opened.study


def _resident() -> int:
    """Return the memory of this process [bytes]."""
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _warm_up(folder: Path) -> None:
    """Load the libraries, which take seconds once and are no part of a study's memory."""
    for proposals in _PROPOSALS:
        case = SimulatedStudy(
            proposals=proposals,
            ordered=False,
            num_trials=12,
            num_workers=2,
            folder=folder / f"warm-{proposals}",
        )
        opened = case.open()
        VirtualCluster(opened).run()
        opened.journal.close()
