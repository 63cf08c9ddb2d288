"""Runs the tables of entries and compares the gate's results with the expected ones."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluice.bench.planted.scratch import scratch_folder
from sluice.bench.poc.defects import DEFECTS
from sluice.bench.poc.healthy import HEALTHY, HealthySetup
from sluice.bench.poc.planted import Defect, PlantedDefect, ValidatorDefect
from sluice.bench.poc.result import DefectResult, HealthyResult, Verdict
from sluice.config.poc_settings import TimeLimit
from sluice.failfast.result import CheckResult, GateReport

_NO_LIMIT = TimeLimit(typical_s=86_400.0, max_s=86_400.0)


def run_defects(
    defects: Sequence[Defect] = DEFECTS, *, every: int = 1, folder: Path | None = None
) -> Iterator[DefectResult]:
    """Yield the result of each planted defect as soon as it is known.

    Args:
        defects: The table.
        every: Run only every n-th entry, starting with the first.
        folder: Folder in which the checks write; a temporary one when None. It is left empty.
    """
    for defect in defects[::every]:
        with scratch_folder(folder) as scratch:
            yield run_defect(defect, scratch)


def run_healthy(
    setups: Sequence[HealthySetup] = HEALTHY, *, every: int = 1, folder: Path | None = None
) -> Iterator[HealthyResult]:
    """Yield the result of each healthy set-up as soon as it is known.

    Args:
        setups: The table.
        every: Run only every n-th entry, starting with the first.
        folder: Folder in which the checks write; a temporary one when None. It is left empty.
    """
    for healthy in setups[::every]:
        with scratch_folder(folder) as scratch:
            yield run_one_healthy(healthy, scratch)


def run_defect(defect: Defect, folder: Path) -> DefectResult:
    """Run one planted defect; its checks write to ``folder``."""
    if isinstance(defect, ValidatorDefect):
        return judge_defect(defect, (_run_validator(defect, folder),))
    return judge_defect(defect, _run_gate(defect, folder).results)


def run_one_healthy(healthy: HealthySetup, folder: Path) -> HealthyResult:
    """Run one healthy set-up; its checks write to ``folder``."""
    return judge_healthy(healthy.name, healthy.setup.run(folder))


def judge_healthy(name: str, report: GateReport) -> HealthyResult:
    """Return the checks that did not pass, including skipped and insufficient ones."""
    return HealthyResult(
        name=name,
        objections=tuple(_headline(r) for r in report.results if not r.passed),
        warnings=tuple(_headline(r) for r in report.results if r.outcome == "warn"),
        seconds=report.seconds,
    )


def judge_defect(defect: Defect, results: tuple[CheckResult, ...]) -> DefectResult:
    """Compare the results of the checks with the expected ones.

    The first check that failed, or had insufficient data, must be the named one. Where a warning is
    expected, no check may fail, and the named check must warn.
    """
    failed = [r for r in results if r.outcome in ("fail", "insufficient")]
    warned = [r for r in results if r.outcome == "warn" and r.name == defect.check]
    first = next(iter(failed or (warned if defect.expected == "warn" else [])), None)
    if first is None:
        return _defect_result(defect, None, "missed", (), results)
    if first.name != defect.check or first.outcome != defect.expected:
        return _defect_result(defect, first, "other check", (), results)
    response = f"{first.cause} {first.fix}".lower()
    absent = [part for part in defect.summary_texts if part.lower() not in first.summary.lower()]
    absent += [defect.advice_text] if defect.advice_text.lower() not in response else []
    absent += [name for name in ("cause", "fix") if not getattr(first, name)]
    verdict: Verdict = "wrong response" if absent else "caught"
    return _defect_result(defect, first, verdict, tuple(absent), results)


def _defect_result(
    defect: Defect,
    first: CheckResult | None,
    verdict: Verdict,
    absent: tuple[str, ...],
    results: tuple[CheckResult, ...],
) -> DefectResult:
    return DefectResult(
        name=defect.name,
        check=defect.check,
        verdict=verdict,
        objected=first.name if first else "",
        outcome=first.outcome if first else "pass",
        summary=first.summary if first else "",
        cause=first.cause if first else "",
        fix=first.fix if first else "",
        absent=absent,
        seconds=sum(r.seconds for r in results if r.name != "gate_finishes_in_time"),
    )


def _run_gate(defect: PlantedDefect, folder: Path) -> GateReport:
    match defect.where:
        case "here":
            return defect.setup.run(folder)
        case "apart":
            return defect.setup.run_apart(folder)
        case "unwritable":
            # A file in place of the folder, because permissions do not stop the superuser.
            return defect.setup.run(Path(os.devnull))


def _run_validator(defect: ValidatorDefect, folder: Path) -> CheckResult:
    started = time.perf_counter()
    finding = defect.validate(folder)
    return CheckResult.of(
        finding,
        name=defect.check,
        check_id=defect.check_id,
        seconds=time.perf_counter() - started,
        limit=_NO_LIMIT,
    )


def _headline(result: CheckResult) -> str:
    return f"{result.name}: {result.summary}"
