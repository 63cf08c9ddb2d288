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
    """Cost of the decisions of a large study, without training; workers are simulated."""

    proposals: Proposals = Field(description="Sampler of the values.")
    ordered: bool = Field(
        description="Whether results are applied in the order of a virtual clock; otherwise they "
        "are applied in the order of arrival."
    )
    num_trials: int
    num_workers: int = Field(description="Number of simulated workers.")
    num_results: int = Field(description="Number of results of all trials, one per epoch.")
    result_ms: float = Field(
        description="Mean wall time per result for scheduler, suggestions, journal and "
        "snapshots [ms]."
    )
    result_cpu_ms: float = Field(
        description="Mean CPU time per result [ms]. In the rest of ``result_ms``, the process "
        "waits for the disk or for other programs."
    )
    slowest_decision_ms: float = Field(
        description="Wall time of the slowest decision, snapshots included [ms]."
    )
    memory_mib: float = Field(description="Growth of the memory of this process [MiB].")
    journal_mib: float = Field(description="Size of the journal [MiB].")
    snapshot_mib: float = Field(description="Size of the last snapshot of the study [MiB].")
    restore_s: float = Field(
        description="Time to open the complete study again from its journal and snapshot [s]."
    )


def measure_scale(*, num_trials: int, num_workers: int, folder: Path) -> tuple[ScaleCost, ...]:
    """Run four ASHA studies on simulated workers: random values or TPE, by arrival or ordered.

    Args:
        num_trials: Number of trials of each study.
        num_workers: Number of simulated workers.
        folder: Folder of the journals; its disk is part of the measurement.
    """
    costs: list[ScaleCost] = []
    # Studies are kept, because memory that is freed would hide the growth by the next study.
    retained_studies: list[Study] = []
    _warm_up(folder)
    for proposals in _PROPOSALS:
        for ordered in (False, True):
            simulated_study = SimulatedStudy(
                proposals=proposals,
                ordered=ordered,
                num_trials=num_trials,
                num_workers=num_workers,
                folder=folder / f"{proposals}-{'ordered' if ordered else 'arrival'}",
            )
            costs.append(_measure(simulated_study, retained_studies))
    return tuple(costs)


def _measure(simulated_study: SimulatedStudy, retained_studies: list["Study"]) -> ScaleCost:
    resident_bytes_before = _resident_bytes()
    open_study = simulated_study.open()
    cluster = VirtualCluster(open_study)
    cluster.run()
    growth_bytes = _resident_bytes() - resident_bytes_before
    open_study.journal.close()
    snapshot = simulated_study.journal_path.with_name(simulated_study.journal_path.name + ".copy")
    snapshot_bytes = snapshot.stat().st_size if snapshot.exists() else 0
    restore_s, restored_study = time_restore(simulated_study, open_study.study)
    retained_studies += [open_study.study, restored_study]
    return ScaleCost(
        proposals=simulated_study.proposals,
        ordered=simulated_study.ordered,
        num_trials=simulated_study.num_trials,
        num_workers=simulated_study.num_workers,
        num_results=cluster.num_results,
        result_ms=1000 * math.fsum(cluster.decisions_s) / cluster.num_results,
        result_cpu_ms=1000 * cluster.cpu_s / cluster.num_results,
        slowest_decision_ms=1000 * max(cluster.decisions_s),
        memory_mib=growth_bytes / _MIB,
        journal_mib=open_study.journal.size / _MIB,
        snapshot_mib=snapshot_bytes / _MIB,
        restore_s=restore_s,
    )


def time_restore(simulated_study: SimulatedStudy, original_study: "Study") -> tuple[float, "Study"]:
    """Open a closed study again; return the duration [s] and the restored study.

    Args:
        simulated_study: The study, whose journal is closed.
        original_study: State of the study when its journal was closed, for comparison.

    Raises:
        ContractError: The restored study differs.
    """
    start_s = time.perf_counter()
    open_study = simulated_study.open()
    seconds = time.perf_counter() - start_s
    open_study.journal.close()
    original_trials, restored_trials = (
        [(trial.config, trial.status, trial.time) for trial in study.trials]
        for study in (original_study, open_study.study)
    )
    if original_trials != restored_trials:
        num_differing = sum(a != b for a, b in zip(original_trials, restored_trials, strict=False))
        raise ContractError(
            f"A restored study must have the same trials. It has {len(restored_trials)} of "
            f"{len(original_trials)} trials, and {num_differing} of them differ.",
            cause="A decision depended on state that is not in the journal.",
            fix=f"Keep {simulated_study.journal_path} and report it as a bug.",
        )
    return seconds, open_study.study


def _resident_bytes() -> int:
    """Return the resident memory of this process after a garbage collection [bytes]."""
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _warm_up(folder: Path) -> None:
    """Run small studies, so that the import of libraries is not attributed to the first study."""
    for proposals in _PROPOSALS:
        simulated_study = SimulatedStudy(
            proposals=proposals,
            ordered=False,
            num_trials=12,
            num_workers=2,
            folder=folder / f"warm-{proposals}",
        )
        open_study = simulated_study.open()
        VirtualCluster(open_study).run()
        open_study.journal.close()
