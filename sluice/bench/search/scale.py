"""Cost of the decisions of a large study, on a simulated cluster in this process."""

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
    """Cost of the deciding process of a large study with simulated workers."""

    proposals: Proposals
    ordered: bool = Field(
        description="Whether results are applied in the order of a virtual clock; otherwise they "
        "are applied in the order of arrival."
    )
    num_trials: int
    num_workers: int = Field(description="Number of simulated workers.")
    num_results: int = Field(description="Number of results of all trials, one per epoch.")
    result_ms: float = Field(
        description="Mean wall time per result: scheduler, suggestions, journal on disk [ms]."
    )
    result_cpu_ms: float = Field(
        description="Mean CPU time per result [ms]; the rest of ``result_ms`` is spent on the disk "
        "and on other programs."
    )
    slowest_ms: float = Field(description="Longest wait of a worker for a decision [ms].")
    memory_mib: float = Field(description="Growth of the memory of this process [MiB].")
    journal_mib: float = Field(description="Size of the journal [MiB].")
    copy_mib: float = Field(description="Size of the last snapshot of the study [MiB].")
    restore_s: float = Field(
        description="Time to open the study again after a kill at its end [s]."
    )


def measure_scale(*, num_trials: int, num_workers: int, folder: Path) -> tuple[ScaleCost, ...]:
    """Run ASHA with random values and with TPE, by arrival and ordered, on simulated workers.

    Args:
        num_trials: Trials of each study.
        num_workers: Simulated workers.
        folder: Folder of the journals; its disk is part of the measurement.
    """
    costs: list[ScaleCost] = []
    retained: list[Study] = []  # freed memory would hide the growth of the next study
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
            costs.append(_measure(case, retained))
    return tuple(costs)


def _measure(case: SimulatedStudy, retained: list["Study"]) -> ScaleCost:
    resident_before = _resident_bytes()
    opened = case.open()
    cluster = VirtualCluster(opened)
    cluster.run()
    growth_bytes = _resident_bytes() - resident_before
    opened.journal.close()
    copy = case.journal.with_name(case.journal.name + ".copy")
    copy_bytes = copy.stat().st_size if copy.exists() else 0
    restore_s, restored = time_restore(case, opened.study)
    retained += [opened.study, restored]
    return ScaleCost(
        proposals=case.proposals,
        ordered=case.ordered,
        num_trials=case.num_trials,
        num_workers=case.num_workers,
        num_results=cluster.num_results,
        result_ms=1000 * math.fsum(cluster.decisions_s) / cluster.num_results,
        result_cpu_ms=1000 * cluster.cpu_s / cluster.num_results,
        slowest_ms=1000 * max(cluster.decisions_s),
        memory_mib=growth_bytes / _MIB,
        journal_mib=opened.journal.size / _MIB,
        copy_mib=copy_bytes / _MIB,
        restore_s=restore_s,
    )


def time_restore(case: SimulatedStudy, original: "Study") -> tuple[float, "Study"]:
    """Open a study again; return the duration [s] and the study.

    Args:
        case: The closed study.
        original: The study before it was closed, for comparison.

    Raises:
        ContractError: The restored study differs.
    """
    began = time.perf_counter()
    opened = case.open()
    seconds = time.perf_counter() - began
    opened.journal.close()
    original_trials, restored_trials = (
        [(trial.config, trial.status, trial.time) for trial in study.trials]
        for study in (original, opened.study)
    )
    if original_trials != restored_trials:
        differing = sum(a != b for a, b in zip(original_trials, restored_trials, strict=False))
        raise ContractError(
            f"A restored study must have the same trials. It has {len(restored_trials)} of "
            f"{len(original_trials)} trials, and {differing} of them differ.",
            cause="A decision depended on state that is not in the journal.",
            fix=f"Keep {case.journal} and report it.",
        )
    return seconds, opened.study


def _resident_bytes() -> int:
    """Return the memory of this process [bytes]."""
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _warm_up(folder: Path) -> None:
    """Import the libraries, whose import time and memory are not those of a study."""
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
