"""Runs planted defects and healthy set-ups, and compares the results with the expected ones."""

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
from sluice.failfast.gate.timing import WHOLE_GATE_CHECK
from sluice.failfast.result import CheckResult, GateReport

_NO_LIMIT = TimeLimit(typical_s=86_400.0, max_s=86_400.0)


def run_defects(
    defects: Sequence[Defect] = DEFECTS, *, every: int = 1, folder: Path | None = None
) -> Iterator[DefectResult]:
    """Yield the result of each planted defect as soon as it is known.

    Args:
        defects: The table of defects.
        every: Run only every n-th entry of the table, beginning with the first.
        folder: Folder in which each run gets a temporary folder; if None, the system's folder for
            temporary files.
    """
    for defect in defects[::every]:
        with scratch_folder(folder) as scratch:
            yield run_defect(defect, scratch)


def run_healthy(
    setups: Sequence[HealthySetup] = HEALTHY, *, every: int = 1, folder: Path | None = None
) -> Iterator[HealthyResult]:
    """Yield the result of each healthy set-up as soon as it is known.

    Args:
        setups: The table of set-ups.
        every: Run only every n-th entry of the table, beginning with the first.
        folder: Folder in which each run gets a temporary folder; if None, the system's folder for
            temporary files.
    """
    for healthy in setups[::every]:
        with scratch_folder(folder) as scratch:
            yield run_healthy_setup(healthy, scratch)


def run_defect(defect: Defect, folder: Path) -> DefectResult:
    """Run one planted defect; its checks write to ``folder``."""
    if isinstance(defect, ValidatorDefect):
        return compare_with_expected(defect, (_run_validator(defect, folder),))
    return compare_with_expected(defect, _run_gate(defect, folder).results)


def run_healthy_setup(healthy: HealthySetup, folder: Path) -> HealthyResult:
    """Run one healthy set-up; its checks write to ``folder``."""
    return summarize_healthy(healthy.name, healthy.setup.run(folder))


def summarize_healthy(name: str, report: GateReport) -> HealthyResult:
    """Return the result of a healthy set-up.

    Skipped checks and checks with insufficient data count as objections, too.
    """
    return HealthyResult(
        name=name,
        objections=tuple(
            _name_and_summary(result) for result in report.results if not result.passed
        ),
        warnings=tuple(
            _name_and_summary(result) for result in report.results if result.outcome == "warn"
        ),
        seconds=report.seconds,
    )


def compare_with_expected(defect: Defect, results: tuple[CheckResult, ...]) -> DefectResult:
    """Compare the results of all checks with the expected result of the named check.

    The first check that failed, or had insufficient data, must be the named check. If a warning is
    expected, no check may fail, and the named check must warn.
    """
    objections = [result for result in results if result.outcome in ("fail", "insufficient")]
    if not objections and defect.expected_outcome == "warn":
        objections = [
            result for result in results if result.outcome == "warn" and result.name == defect.check
        ]
    first_objection = next(iter(objections), None)
    if first_objection is None:
        return _defect_result(defect, None, "missed", (), results)
    if first_objection.name != defect.check or first_objection.outcome != defect.expected_outcome:
        return _defect_result(defect, first_objection, "other check", (), results)
    advice = f"{first_objection.cause} {first_objection.fix}".lower()
    summary = first_objection.summary.lower()
    missing_texts = [text for text in defect.summary_texts if text.lower() not in summary]
    missing_texts += [defect.advice_text] if defect.advice_text.lower() not in advice else []
    missing_texts += [name for name in ("cause", "fix") if not getattr(first_objection, name)]
    verdict: Verdict = "wrong response" if missing_texts else "caught"
    return _defect_result(defect, first_objection, verdict, tuple(missing_texts), results)


def _defect_result(
    defect: Defect,
    first_objection: CheckResult | None,
    verdict: Verdict,
    missing_texts: tuple[str, ...],
    results: tuple[CheckResult, ...],
) -> DefectResult:
    return DefectResult(
        name=defect.name,
        check=defect.check,
        verdict=verdict,
        first_check=first_objection.name if first_objection else "",
        outcome=first_objection.outcome if first_objection else "pass",
        summary=first_objection.summary if first_objection else "",
        cause=first_objection.cause if first_objection else "",
        fix=first_objection.fix if first_objection else "",
        missing_texts=missing_texts,
        seconds=sum(result.seconds for result in results if result.name != WHOLE_GATE_CHECK),
    )


def _run_gate(defect: PlantedDefect, folder: Path) -> GateReport:
    match defect.run_mode:
        case "this process":
            return defect.setup.run(folder)
        case "child process":
            return defect.setup.run_in_child(folder)
        case "unwritable folder":
            # A device file replaces the folder, because permissions do not stop the superuser.
            return defect.setup.run(Path(os.devnull))


def _run_validator(defect: ValidatorDefect, folder: Path) -> CheckResult:
    start_s = time.perf_counter()
    outcome = defect.validate(folder)
    return CheckResult.of(
        outcome,
        name=defect.check,
        check_id=defect.check_id,
        seconds=time.perf_counter() - start_s,
        limit=_NO_LIMIT,
    )


def _name_and_summary(result: CheckResult) -> str:
    return f"{result.name}: {result.summary}"
