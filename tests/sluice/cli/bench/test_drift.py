"""``sluice bench drift`` with minimal sizes (ROLL-3)."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.cli.bench import drift


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setattr(drift, "_NUM_QUICK_REFERENCES", 1)
    monkeypatch.setattr(drift, "_NUM_QUICK_COLUMNS", 2)
    monkeypatch.setattr(drift, "_NUM_QUICK_SPEED_ROWS", 2000)
    monkeypatch.setattr(drift, "_NUM_SPEED_COLUMNS", 2)
    monkeypatch.setattr(drift, "_RHOS", (0.5,))
    monkeypatch.setattr(drift, "count_cores", lambda: 1)
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.callback()(lambda: None)
    drift.register(app)
    return lambda *options: CliRunner().invoke(app, ["drift", "--quick", *options])


@pytest.mark.slow
def test_json_on_stdout_contains_scenarios_and_speeds(invoke):
    result = invoke("--json")

    found = json.loads(result.stdout)
    assert [rates["scenario"]["num_columns"] for rates in found["scenarios"]] == [1, 2]
    assert all(rates["false_alarms"]["total"] == 10 for rates in found["scenarios"])
    assert found["speeds"][0]["target"] == 5.0
    assert result.exit_code == (
        0 if all(rates["reaches_targets"] for rates in found["scenarios"]) else 1
    )


@pytest.mark.slow
def test_table_shows_textbook_tests_and_a_missed_target_exits_with_1(invoke, monkeypatch):
    monkeypatch.setattr("sluice.bench.drift.table.reaches_targets", lambda _rates: False)
    monkeypatch.setattr(drift, "measure_drift_speeds", lambda num_rows: [])  # noqa: ARG005

    result = invoke()

    assert result.exit_code == 1
    assert "PSI > 0.25" in result.stdout
    assert "rho 0.5" not in result.stdout
