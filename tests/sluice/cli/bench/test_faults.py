"""Options, results and exit codes of ``sluice bench faults`` (TRACE-16)."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.base.errors import ContractError
from sluice.cli.bench import faults


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(faults, "count_cores", lambda: 1)
    app = typer.Typer()
    app.callback()(lambda: None)
    faults.register(app)
    return lambda *options: CliRunner().invoke(app, ["faults", *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--faults", "13"), "got 13"),
        (("--faults", "x"), "got 'x'"),
        (("--nets", "mlp,rnn"), "got rnn"),
        (("--nets", ""), "got none"),
        (("--seeds", ""), "got none"),
        (("--seeds", "-1"), "non-negative"),
    ],
)
def test_unknown_option_values_are_refused(invoke, options, message):
    found = invoke(*options).exception

    assert isinstance(found, ContractError)
    assert message in found.what
    assert found.fix


def test_healthy_setups_run_on_more_seeds_and_only_without_a_named_fault():
    all_jobs = faults._plan_runs([], ["mlp"], [5, 7])
    jobs_of_one_fault = faults._plan_runs([31], ["mlp", "gru"], [5])

    assert {job.seed for job in all_jobs if not hasattr(job.case, "correct_causes")} == {
        5,
        7,
        8,
        9,
    }
    assert {job.seed for job in all_jobs if hasattr(job.case, "correct_causes")} == {5, 7}
    assert [(job.case.number, job.net, job.has_fault) for job in jobs_of_one_fault] == [
        (31, "mlp", True),
        (31, "mlp", False),
        (31, "gru", True),
        (31, "gru", False),
    ]


@pytest.mark.exhaustive
def test_fault_is_caught_twin_is_not_and_weights_are_identical(invoke):
    result = invoke("--faults", "31", "--nets", "mlp", "--seeds", "0", "--check-bits", "--json")

    report = json.loads(result.stdout)
    assert [(run["kind"], run["has_same_bits"]) for run in report["runs"]] == [
        ("fault", True),
        ("twin", True),
    ]
    assert report["faults"][0]["first"] == {"count": 1, "total": 1}
    assert result.exit_code == 0


@pytest.mark.exhaustive
def test_printed_table_contains_the_detection_rates(invoke):
    result = invoke("--faults", "31", "--nets", "mlp", "--seeds", "0", "--no-baselines")

    assert "faults detected" in result.stdout
    assert "detect_anomaly" not in result.stdout
    assert result.exit_code == 0
