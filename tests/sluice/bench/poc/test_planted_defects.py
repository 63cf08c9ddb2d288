"""The table of planted defects: the named check catches each one, with the right response.

POC-1 to POC-13, LOG-1, RESP-1.
"""

import io
import json

import pytest

from sluice.bench.poc.defects import DEFECTS
from sluice.bench.poc.planted import PlantedDefect
from sluice.bench.poc.report import benchmark_page, defect_line, healthy_line
from sluice.bench.poc.result import HealthyResult, PocBenchmarkReport
from sluice.bench.poc.runner import compare_with_expected, run_defect, run_defects
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.result import CheckResult

MIN_DEFECTS = 38
MAX_SECONDS = 30.0
NAMES = [defect.name for defect in DEFECTS]
CAUGHT_BY_SUPERVISOR = {
    "forward pass that never ends",
    "loader that hangs",
    "loader that ends the process",
    "crash in native code",
}
SIMILAR_TO_OTHERS = {
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
        if defect.name in CAUGHT_BY_SUPERVISOR | SIMILAR_TO_OTHERS
        else [],
    )
    for defect in DEFECTS
]


@pytest.mark.slow
@pytest.mark.parametrize("defect", CASES)
def test_named_check_catches_the_defect_first_with_the_right_response(defect, tmp_path):
    result = run_defect(defect, tmp_path)

    assert result.is_caught, str(defect_line(result))
    assert result.seconds < MAX_SECONDS


def test_the_table_is_long_its_names_are_unique_and_its_checks_exist():
    known = {check.name for check in CHECKS}
    named = {defect.check for defect in DEFECTS if isinstance(defect, PlantedDefect)}

    assert len(NAMES) == len(set(NAMES)) >= MIN_DEFECTS
    assert named == known
    assert all(defect.summary_texts and defect.advice_text for defect in DEFECTS)


DEFECT = next(defect for defect in DEFECTS if defect.name == "renamed column")
WARNING = next(defect for defect in DEFECTS if defect.expected_outcome == "warn")


def make_result(defect, *, outcome="fail", name=None, summary=None, fix=None):
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
        ((make_result(DEFECT),), "caught"),
        ((make_result(DEFECT, name="data_loads", outcome="pass"), make_result(DEFECT)), "caught"),
        ((make_result(DEFECT), make_result(DEFECT, name="selector_finds_best_epoch")), "caught"),
        ((make_result(DEFECT, name="data_loads"), make_result(DEFECT)), "other check"),
        ((make_result(DEFECT, outcome="insufficient"),), "other check"),
        ((make_result(DEFECT, outcome="warn"),), "missed"),
        ((make_result(DEFECT, outcome="pass"),), "missed"),
        ((make_result(DEFECT, summary="Something is wrong."),), "wrong response"),
        ((make_result(DEFECT, fix="Try again."),), "wrong response"),
        ((make_result(DEFECT, fix=""),), "wrong response"),
    ],
)
def test_only_the_expected_texts_of_the_named_check_count_as_caught(results, verdict):
    assert compare_with_expected(DEFECT, results).verdict == verdict


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((make_result(WARNING, outcome="warn"),), "caught"),
        ((make_result(WARNING, outcome="warn", name="data_loads"),), "missed"),
        ((make_result(WARNING, outcome="fail"),), "other check"),
        (
            (make_result(WARNING, outcome="warn"), make_result(WARNING, name="data_loads")),
            "other check",
        ),
    ],
)
def test_an_expected_warning_is_caught_when_nothing_fails(results, verdict):
    assert compare_with_expected(WARNING, results).verdict == verdict


def test_seconds_exclude_the_check_of_the_total_time():
    results = (make_result(DEFECT), make_result(DEFECT, name="gate_finishes_in_time"))

    assert compare_with_expected(DEFECT, results).seconds == 0.5


def test_option_every_selects_entries_and_the_folder_is_empty_afterwards(tmp_path):
    validator_defects = [defect for defect in DEFECTS if not isinstance(defect, PlantedDefect)]

    results = list(run_defects(validator_defects, every=2, folder=tmp_path))

    assert [result.name for result in results] == [defect.name for defect in validator_defects[::2]]
    assert list(tmp_path.iterdir()) == []


def make_report(*, defect="caught", objections=()):
    result = compare_with_expected(DEFECT, (make_result(DEFECT),)).model_copy(
        update={"verdict": defect}
    )
    healthy = HealthyResult(name="h", objections=objections, warnings=("a: b",), seconds=1.0)
    return PocBenchmarkReport(defects=(result,), healthy=(healthy,))


def test_benchmark_passes_only_if_all_defects_are_caught_without_false_alarms():
    assert make_report().passed
    assert not make_report(defect="missed").passed
    assert not make_report(defect="wrong response").passed
    assert not make_report(objections=("data_loads: no",)).passed


def test_report_shows_misses_and_false_alarms_and_survives_json():
    from rich.console import Console

    bad = make_report(defect="missed", objections=("data_loads: [no] rows",))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(benchmark_page(bad))
    console.print(defect_line(bad.defects[0]), healthy_line(bad.healthy[0]))
    shown = console.export_text()

    assert "0 of 1 (0.0%, 95 % interval 0.0% to 97.5%)" in shown
    assert "raw_rows_match_schema should have reported it, but no check did" in shown
    assert "false alarm" in shown
    assert "[no] rows" in shown
    assert PocBenchmarkReport.model_validate(json.loads(bad.model_dump_json())) == bad


def test_line_of_a_defect_with_another_outcome_names_the_outcome():
    result = compare_with_expected(DEFECT, (make_result(DEFECT, outcome="insufficient"),))

    assert "the first report was 'insufficient' of raw_rows_match_schema" in str(
        defect_line(result)
    )
