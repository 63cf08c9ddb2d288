"""Tests whether all randomness of a workload is derived from the base seed."""

from sluice.models.settings import ModelSettings
from sluice.probes.result import ProbeResult
from sluice.training.randomness_report import RandomnessReport, examine_randomness
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

NAME = "seeds"

_OF_THE_PROCESS = "PYTHONHASHSEED"
"""Must be set before a process starts; a workload cannot set it, and Sluice's workers have it."""


def probe_seeds(
    workload: Workload, model: ModelSettings, training: TrainSettings, *, seed: int
) -> ProbeResult:
    """Run every part of a workload once and report random draws without a derived seed.

    The caller's generators are neither read nor advanced.

    Raises:
        SluiceError: The workload breaks its contract.
        Exception: Any exception of the workload's code.
    """
    return result_of_audit(examine_randomness(workload, model, training, seed=seed))


def result_of_audit(report: RandomnessReport) -> ProbeResult:
    """Return the result for an audit; a pure function."""
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
            f"{operation.operation} has no deterministic form ({operation.place})"
            for operation in report.nondeterministic
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
            outcome="fail",
            seen="; ".join(offences[:4])
            + (f"; and {len(offences) - 4} more." if len(offences) > 4 else "."),
            numbers=numbers,
            why="The same base seed does not give the same bits: other code can change the draws.",
            fix="Give each of these its own generator, seeded with derive_seed(seed, stage)."
            if movers or report.shared or unseeded
            else "Use an operation that has a deterministic form.",
        )
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{len(report.audit.sources)} sources of randomness, none unseeded or shared; "
        f"{len(report.draws)} parts of the workload use no global generator ({hash_seed}).",
        numbers=numbers,
    )
