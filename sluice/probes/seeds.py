"""Whether every draw of a workload follows from the base seed (TRACE-6)."""

from sluice.models.settings import ModelSettings
from sluice.probes.result import ProbeResult
from sluice.training.randomness_report import RandomnessReport, examine_randomness
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

NAME, REQUIREMENT = "seeds", "TRACE-6"

_OF_THE_PROCESS = "PYTHONHASHSEED"
"""Set where a process is started; a workload cannot set it, and its own processes have it."""


def probe_seeds(
    workload: Workload, model: ModelSettings, training: TrainSettings, *, seed: int
) -> ProbeResult:
    """Run every part of a workload once and look for draws that no seed of ours decides.

    The caller's generators are neither read nor moved.

    Raises:
        SluiceError: The workload breaks its contract.
        Exception: Whatever the workload's own code raises.
    """
    return judge_randomness(examine_randomness(workload, model, training, seed=seed))


def judge_randomness(report: RandomnessReport) -> ProbeResult:
    """Judge what an audit found; pure."""
    unseeded = [
        source
        for source in report.audit.sources
        if source.name in report.audit.unseeded and source.name != _OF_THE_PROCESS
    ]
    movers = [draw for draw in report.draws if draw.moved]
    offences = [
        *(f"{one.operation} draws from {' and '.join(one.moved)}" for one in movers),
        *(f"{' and '.join(one.users)}: {one.why}" for one in report.shared),
        *(f"{source.name}, {source.status}: {source.detail}" for source in unseeded),
        *(
            f"{met.operation} has no deterministic form ({met.place})"
            for met in report.nondeterministic
        ),
    ]
    numbers: dict[str, float | int | str] = {
        "sources": len(report.audit.sources),
        "unseeded": len(unseeded),
        "parts_that_draw": len(movers),
        "shared_generators": len(report.shared),
        "nondeterministic_operations": len(report.nondeterministic),
    }
    hash_seed = ", ".join(
        f"{s.name} {s.status}" for s in report.audit.sources if s.name == _OF_THE_PROCESS
    )
    if offences:
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="fail",
            seen="; ".join(offences[:4])
            + (f"; and {len(offences) - 4} more." if len(offences) > 4 else "."),
            numbers=numbers,
            why="The same base seed does not give the same bits: other code moves what is drawn.",
            fix="Give each of these a generator of its own, seeded with derive_seed(seed, stage)."
            if movers or report.shared or unseeded
            else "Use an operation that has a deterministic form.",
        )
    return ProbeResult(
        name=NAME,
        requirement=REQUIREMENT,
        outcome="pass",
        seen=f"{len(report.audit.sources)} sources of randomness, none unseeded or shared; "
        f"{len(report.draws)} parts of the workload draw nothing of their own ({hash_seed}).",
        numbers=numbers,
    )
