"""The table of healthy set-ups, including unusual ones: none may fail."""

import pytest

from sluice.bench.poc.healthy import HEALTHY
from sluice.bench.poc.runner import run_healthy, run_healthy_setup, summarize_healthy
from sluice.failfast.result import CheckResult, GateReport

MIN_SETUPS = 60
NAMES = [healthy.name for healthy in HEALTHY]
CASES = [
    pytest.param(healthy, id=healthy.name, marks=[pytest.mark.exhaustive] if number % 8 else [])
    for number, healthy in enumerate(HEALTHY)
]


@pytest.mark.slow
@pytest.mark.parametrize("healthy", CASES)
def test_a_healthy_set_up_passes(healthy, tmp_path):
    result = run_healthy_setup(healthy, tmp_path)

    assert result.objections == ()
    assert list(tmp_path.iterdir()) == []


def test_the_table_is_long_varied_and_its_names_are_unique():
    setups = [healthy.setup for healthy in HEALTHY]

    assert len(NAMES) == len(set(NAMES)) >= MIN_SETUPS
    assert len({setup.workload for setup in setups}) >= 15
    assert len({setup.model.architecture for setup in setups}) >= 15
    assert len({setup.seed for setup in setups}) >= 5


@pytest.mark.slow
def test_option_every_selects_entries_of_the_table():
    results = list(run_healthy(HEALTHY[:3], every=2))

    assert [result.name for result in results] == [NAMES[0], NAMES[2]]


@pytest.mark.parametrize(
    ("outcome", "objections", "warnings"),
    [("pass", 0, 0), ("warn", 0, 1), ("fail", 1, 0), ("insufficient", 1, 0), ("skipped", 1, 0)],
)
def test_every_outcome_except_pass_and_warn_is_an_objection(outcome, objections, warnings):
    check = CheckResult(
        name="data_loads",
        check_id="data_loading",
        outcome=outcome,
        numbers={},
        seconds=0.1,
        typical_s=1.0,
        max_s=2.0,
        summary="Seen.",
    )
    report = GateReport(level="full", workload="W", results=(check,), seconds=0.1)

    result = summarize_healthy("w", report)

    assert (len(result.objections), len(result.warnings)) == (objections, warnings)
    assert result.has_error is (objections > 0)
    assert result.seconds == 0.1
