"""The table of planted defects: each one is caught by the named check, with the right response.

POC-1 to POC-13, LOG-1, RESP-1.
"""

import io
import json

import pytest

from sluice.bench.poc.defects import DEFECTS
from sluice.bench.poc.planted import PlantedDefect
from sluice.bench.poc.report import benchmark_page, defect_line, healthy_line
from sluice.bench.poc.result import BenchmarkReport, HealthyResult
from sluice.bench.poc.runner import judge_defect, run_defect, run_defects
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.result import CheckResult

ASKED_FOR = 38
"""Defects that the table must hold at least."""

MOST_SECONDS = 30.0
NAMES = [defect.name for defect in DEFECTS]
SEEN_BY_THE_SUPERVISOR = {
    "forward pass that never ends",
    "loader that hangs",
    "loader that ends the process",
    "crash in native code",
}
SEEN_IN_ANOTHER_FORM = {
    "feature of a centred window",
    "examples drawn at random",
    "selector that maximises the loss",
    "loss with the wrong sign",
    "learning rate 10, recurrent",
    "learning rate 1e-9, images",
    "exploding predictions",
}
CASES = [
    pytest.param(
        defect,
        id=defect.name,
        marks=[pytest.mark.exhaustive]
        if defect.name in SEEN_BY_THE_SUPERVISOR | SEEN_IN_ANOTHER_FORM
        else [],
    )
    for defect in DEFECTS
]


@pytest.mark.slow
@pytest.mark.parametrize("defect", CASES)
def test_the_named_check_is_the_first_to_object_and_says_what_to_do(defect, tmp_path):
    result = run_defect(defect, tmp_path)

    assert result.is_caught, str(defect_line(result))
    assert result.seconds < MOST_SECONDS


def test_the_table_is_long_its_names_are_unique_and_its_checks_exist():
    known = {check.name for check in CHECKS}
    named = {defect.check for defect in DEFECTS if isinstance(defect, PlantedDefect)}

    assert len(NAMES) == len(set(NAMES)) >= ASKED_FOR
    assert named == known
    assert all(defect.summary_texts and defect.advice_text for defect in DEFECTS)


DEFECT = next(defect for defect in DEFECTS if defect.name == "renamed column")
WARNING = next(defect for defect in DEFECTS if defect.expected == "warn")


def told(defect, *, outcome="fail", name=None, summary=None, fix=None):
    return CheckResult(
        name=name or defect.check,
        check_id="raw_schema",
        outcome=outcome,
        numbers={},
        seconds=0.5,
        typical_s=1.0,
        max_s=2.0,
        summary=" ".join(defect.summary_texts) if summary is None else summary,
        cause="A reason.",
        fix=defect.advice_text if fix is None else fix,
    )


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((told(DEFECT),), "caught"),
        ((told(DEFECT, name="data_loads", outcome="pass"), told(DEFECT)), "caught"),
        ((told(DEFECT), told(DEFECT, name="selector_finds_best_epoch")), "caught"),
        ((told(DEFECT, name="data_loads"), told(DEFECT)), "other check"),
        ((told(DEFECT, outcome="insufficient"),), "other check"),
        ((told(DEFECT, outcome="warn"),), "missed"),
        ((told(DEFECT, outcome="pass"),), "missed"),
        ((told(DEFECT, summary="Something is wrong."),), "wrong response"),
        ((told(DEFECT, fix="Try again."),), "wrong response"),
        ((told(DEFECT, fix=""),), "wrong response"),
    ],
)
def test_only_the_right_words_of_the_right_check_count_as_caught(results, verdict):
    assert judge_defect(DEFECT, results).verdict == verdict


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((told(WARNING, outcome="warn"),), "caught"),
        ((told(WARNING, outcome="warn", name="data_loads"),), "missed"),
        ((told(WARNING, outcome="fail"),), "other check"),
        ((told(WARNING, outcome="warn"), told(WARNING, name="data_loads")), "other check"),
    ],
)
def test_an_expected_warning_is_caught_when_nothing_fails(results, verdict):
    assert judge_defect(WARNING, results).verdict == verdict


def test_seconds_are_those_of_the_checks_without_the_sum_over_them():
    results = (told(DEFECT), told(DEFECT, name="gate_finishes_in_time"))

    assert judge_defect(DEFECT, results).seconds == 0.5


def test_every_so_manieth_entry_of_the_table_is_run_and_nothing_is_left(tmp_path):
    alone = [defect for defect in DEFECTS if not isinstance(defect, PlantedDefect)]

    results = list(run_defects(alone, every=2, folder=tmp_path))

    assert [result.name for result in results] == [defect.name for defect in alone[::2]]
    assert list(tmp_path.iterdir()) == []


def report(*, defect="caught", objections=()):
    result = judge_defect(DEFECT, (told(DEFECT),)).model_copy(update={"verdict": defect})
    healthy = HealthyResult(name="h", objections=objections, warnings=("a: b",), seconds=1.0)
    return BenchmarkReport(defects=(result,), healthy=(healthy,))


def test_the_benchmark_passes_only_when_all_is_caught_and_nothing_healthy_fails():
    assert report().passed
    assert not report(defect="missed").passed
    assert not report(defect="wrong response").passed
    assert not report(objections=("data_loads: no",)).passed


def test_the_report_counts_caught_missed_and_false_alarms_for_people_and_machines():
    from rich.console import Console

    bad = report(defect="missed", objections=("data_loads: [no] rows",))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(benchmark_page(bad))
    console.print(defect_line(bad.defects[0]), healthy_line(bad.healthy[0]))
    shown = console.export_text()

    assert "0 of 1 (0.0%, 95 % interval 0.0% to 97.5%)" in shown
    assert "raw_rows_match_schema should have failed, but nothing did" in shown
    assert "false alarm" in shown
    assert "[no] rows" in shown
    assert BenchmarkReport.model_validate(json.loads(bad.model_dump_json())) == bad
