"""Tests whether all randomness of a workload is derived from the base seed."""

from sluice.models.settings import ModelSettings
from sluice.probes.result import ProbeResult
from sluice.training.randomness_report import RandomnessReport, examine_randomness
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

NAME = "seeds"

_HASH_SEED_VARIABLE = "PYTHONHASHSEED"
"""Name of a source of randomness that is not a fault of the workload. This variable must be set
before a process starts, and Sluice sets it for its workers."""


def probe_seeds(
    workload: Workload, model: ModelSettings, training: TrainSettings, *, seed: int
) -> ProbeResult:
    """Run each operation of a workload once, and report random draws without a derived seed.

    The state of the caller's random generators has no effect and does not change.

    Raises:
        SluiceError: The workload breaks its contract.
        Exception: Any exception of the workload's code.
    """
    return result_from_report(examine_randomness(workload, model, training, seed=seed))


def result_from_report(report: RandomnessReport) -> ProbeResult:
    """Return the result of the probe for a report about the randomness of a workload."""
    unseeded_sources = [
        source
        for source in report.audit.sources
        if source.name in report.audit.unseeded and source.name != _HASH_SEED_VARIABLE
    ]
    unseeded_draws = [draw for draw in report.draws if draw.moved]
    problems = [
        *(f"{draw.operation} draws from {' and '.join(draw.moved)}" for draw in unseeded_draws),
        *(f"{' and '.join(shared.users)}: {shared.why}" for shared in report.shared),
        *(f"{source.name}, {source.status}: {source.detail}" for source in unseeded_sources),
        *(
            f"{operation.operation} has no deterministic implementation ({operation.place})"
            for operation in report.nondeterministic
        ),
    ]
    numbers: dict[str, float | int | str] = {
        "sources": len(report.audit.sources),
        "unseeded": len(unseeded_sources),
        "parts_that_draw": len(unseeded_draws),
        "shared_generators": len(report.shared),
        "nondeterministic_operations": len(report.nondeterministic),
    }
    hash_seed = ", ".join(
        f"{s.name} {s.status}" for s in report.audit.sources if s.name == _HASH_SEED_VARIABLE
    )
    is_undetermined = bool(unseeded_draws or report.shared or unseeded_sources)
    if problems:
        return ProbeResult(
            name=NAME,
            outcome="fail",
            seen="; ".join(problems[:4])
            + (f"; and {len(problems) - 4} more." if len(problems) > 4 else "."),
            numbers=numbers,
            why="The same base seed does not give the same bits, because other code can change the "
            "random numbers."
            if is_undetermined
            else "The same base seed may not give the same bits, because an operation is "
            "nondeterministic.",
            fix="Use a separate generator for each operation, with derive_seed(seed, purpose)."
            if is_undetermined
            else "Use an operation that has a deterministic implementation.",
        )
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{len(report.audit.sources)} sources of randomness, none unseeded or shared; "
        f"{len(report.draws)} operations of the workload use no global generator ({hash_seed}).",
        numbers=numbers,
    )
