"""The published schema equals the code's, and the printed report matches it."""

import copy
import json
import math
from pathlib import Path

import jsonschema
import pytest

from sluice.config.poc_settings import TimeLimit
from sluice.failfast.gate.report_schema import poc_report_schema, report_json
from sluice.failfast.result import CheckResult, GateReport
from sluice.findings.check_outcome import CheckOutcome, HardExample, UnusualFeature

PUBLISHED = Path(__file__).parents[4] / "docs" / "schemas" / "poc-report.schema.json"


def make_result(finding, *, name="a_holds", seconds=0.5):
    return CheckResult.of(
        finding,
        name=name,
        check_id="gradient_flow",
        seconds=seconds,
        limit=TimeLimit(typical_s=1.0, max_s=2.0),
    )


def make_report(*findings):
    return GateReport(
        level="full",
        workload="Signals",
        results=tuple(make_result(finding) for finding in findings),
        seconds=1.5,
    )


EXAMPLE = HardExample(
    row="2008-10-13 00:00:00",
    loss=math.inf,
    times_median=12.5,
    unusual_features=(UnusualFeature(feature="atr_pct", value=math.nan, deviations=-math.inf),),
)
REPORTS = {
    "passed": make_report(
        CheckOutcome(outcome="pass", summary="Fine.", numbers={"n": 3, "shape": "(1,)"})
    ),
    "failed": make_report(
        CheckOutcome(outcome="pass", summary="Fine."),
        CheckOutcome(
            outcome="fail",
            summary="The \u03c3 is NaN.",
            numbers={"norm": math.nan, "high": math.inf, "low": -math.inf, "zero": 0},
            fault="non-finite gradient",
        ),
        CheckOutcome(outcome="skipped", summary="Because of that."),
    ),
    "hard examples": make_report(
        CheckOutcome(outcome="warn", summary="Look.", examples=(EXAMPLE,))
    ),
    "insufficient": make_report(
        CheckOutcome(outcome="insufficient", summary="Few.", fault="too few rows")
    ),
}


def parse_strict_json(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture(scope="module")
def validator():
    schema = poc_report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_equals_that_of_the_code():
    """Regenerate it with 'sluice poc --schema > docs/schemas/poc-report.schema.json'."""
    assert PUBLISHED.read_text() == json.dumps(poc_report_schema(), indent=2) + "\n"


@pytest.mark.parametrize("name", REPORTS)
def test_printed_report_is_strict_json_and_matches_the_schema(validator, name):
    printed = parse_strict_json(report_json(REPORTS[name]))

    validator.validate(printed)
    assert printed["passed"] == REPORTS[name].passed
    assert printed["outcome"] == REPORTS[name].outcome
    assert len(printed["results"]) == len(REPORTS[name].results)


def test_non_finite_numbers_are_printed_as_strings():
    printed = parse_strict_json(report_json(REPORTS["failed"]))

    assert printed["results"][1]["numbers"] == {
        "norm": "NaN",
        "high": "Infinity",
        "low": "-Infinity",
        "zero": 0,
    }
    example = parse_strict_json(report_json(REPORTS["hard examples"]))["results"][0]["examples"][0]
    assert (example["loss"], example["unusual_features"][0]["value"]) == ("Infinity", "NaN")


def remove_key(name):
    return lambda report: report.pop(name)


def change_first_result(**changes):
    return lambda report: report["results"][0].update(changes)


@pytest.mark.parametrize(
    "break_report",
    [
        *[remove_key(n) for n in ("version", "outcome", "passed", "reason", "level", "results")],
        lambda report: report.update(results=[]),
        lambda report: report.update(results=None),
        lambda report: report.update(level="maximum"),
        lambda report: report.update(passed="yes"),
        lambda report: report.update(version="0.9"),
        lambda report: report.update(surprise=1),
        lambda report: report.update(seconds="long"),
        lambda report: report["results"][0].pop("fix"),
        change_first_result(outcome="passed"),
        change_first_result(seconds=None),
        change_first_result(seconds="nan"),
        change_first_result(numbers={"a": None}),
        change_first_result(numbers=[1]),
        change_first_result(summary=3),
        change_first_result(surprise=1),
        change_first_result(examples=[{"row": "a", "loss": 1.0}]),
        change_first_result(
            examples=[{"row": "a", "loss": 1.0, "times_median": 2.0, "unusual_features": [1]}]
        ),
    ],
)
def test_a_malformed_report_violates_the_schema(validator, break_report):
    report = copy.deepcopy(parse_strict_json(report_json(REPORTS["passed"])))
    break_report(report)

    assert not validator.is_valid(report)


def test_every_field_of_a_report_is_in_the_schema():
    schema = poc_report_schema()

    assert set(schema["properties"]) >= set(GateReport.model_fields)
    definition = schema["$defs"]["CheckResult"]
    assert set(definition["properties"]) == set(CheckResult.model_fields)
    assert set(definition["required"]) == set(CheckResult.model_fields)
