"""Measured error rates of the tracer's rules, computed from a run of ``sluice bench faults``."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate
from sluice.bench.tracer.result import RunResult

ERROR_RATES_FILE = "rules/error_rates.json"
"""Path of the stored rates in the folder of the documentation."""


class FaultRates(Record):
    """Numbers of runs in which the rules that report one fault were right and wrong."""

    planted: int = Field(0, description="Number of runs of programs with this fault.")
    caught: int = Field(
        0,
        description="Number of runs with this fault in which the fault was reported with the "
        "required severity.",
    )
    first: int = Field(
        0, description="Number of runs with this fault in which the fault was ranked first."
    )
    false_errors: int = Field(
        0, description="Number of healthy runs in which this fault was reported as an error."
    )
    false_others: int = Field(
        0,
        description="Number of healthy runs in which this fault was reported as a warning or a "
        "finding to confirm.",
    )


class ErrorRates(Record):
    """Rates of all faults on the programs of the fault benchmark."""

    commit: str = Field(description="Commit that was measured.")
    seeds: tuple[int, ...] = Field(description="Seeds of the runs with a fault.")
    faulty_runs: int = Field(description="Number of runs with a fault.")
    healthy_runs: int = Field(
        description="Number of runs without a fault: healthy programs, and faulty programs without "
        "their fault."
    )
    failed_runs: int = Field(
        description="Number of runs without a result. Other fields do not count them."
    )
    faults: dict[str, FaultRates]

    @classmethod
    def of(cls, runs: Sequence[RunResult], *, commit: str) -> Self:
        """Return the rates of all runs.

        ``RunResult.right`` contains the correct causes of a run with a fault. The run counts for
        each correct cause that was reported; if none was reported, for each correct cause.

        Raises:
            ContractError: The results contain no run with a fault.
        """
        finished_runs = [run for run in runs if not run.failed]
        faulty_runs = [run for run in finished_runs if run.kind == "fault"]
        healthy_runs = [run for run in finished_runs if run.kind != "fault"]
        if not faulty_runs:
            raise ContractError(
                "The results contain no run with a fault.",
                fix="Pass the output of 'sluice bench faults --json'.",
            )
        counts: dict[str, Counter[str]] = {}
        for run in faulty_runs:
            reported_faults = [answer.fault for answer in run.answers]
            for fault in [cause for cause in run.right if cause in reported_faults] or run.right:
                fault_counts = counts.setdefault(fault, Counter())
                fault_counts["planted"] += 1
                fault_counts["caught"] += fault in reported_faults and run.correct_rank is not None
                fault_counts["first"] += reported_faults[:1] == [fault] and run.correct_rank == 1
        for run in healthy_runs:
            errors = {answer.fault for answer in run.answers if answer.severity == "error"}
            for fault in errors:
                counts.setdefault(fault, Counter())["false_errors"] += 1
            for fault in {answer.fault for answer in run.answers} - errors:
                counts.setdefault(fault, Counter())["false_others"] += 1
        return cls(
            commit=commit,
            seeds=tuple(sorted({run.seed for run in faulty_runs})),
            faulty_runs=len(faulty_runs),
            healthy_runs=len(healthy_runs),
            failed_runs=len(runs) - len(finished_runs),
            faults={fault: FaultRates(**counts[fault]) for fault in sorted(counts)},
        )


def read_rates(docs: Path) -> ErrorRates:
    """Return the rates that are stored in the folder of the documentation."""
    return ErrorRates.model_validate_json((docs / ERROR_RATES_FILE).read_bytes())


def describe_rates(rates: ErrorRates, fault: str) -> str:
    """Return sentences about the error rates of a fault, with exact intervals."""
    fault_rates = rates.faults.get(fault, FaultRates())
    num_healthy = rates.healthy_runs
    errors = Rate(count=fault_rates.false_errors, total=num_healthy).exact_text
    others = Rate(count=fault_rates.false_others, total=num_healthy).exact_text
    detection_text = "Detection was not measured: the benchmark has no program with this fault."
    if fault_rates.planted:
        detection = Rate(count=fault_rates.caught, total=fault_rates.planted)
        detection_text = (
            f"Reported in {detection.exact_text} of the runs with this fault, and ranked first in "
            f"{fault_rates.first}."
        )
    seeds_text = f"seed{'' if len(rates.seeds) == 1 else 's'} {', '.join(map(str, rates.seeds))}"
    return (
        f"{detection_text} False alarms in healthy runs: errors in {errors}, warnings or findings "
        f"to confirm in {others}. Measured with `sluice bench faults` on {seeds_text} at commit "
        f"{rates.commit[:7]}, together for all rules that report this fault."
    )
