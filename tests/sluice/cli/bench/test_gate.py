"""``sluice bench gate`` with minimal sizes (STAT-3)."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.bench.gate import grid
from sluice.bench.gate.scenarios import GateScenario
from sluice.cli.bench import gate


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setattr(
        grid, "quick_grid", lambda: (GateScenario(rho=0.5, num_rows=300, num_seeds=5),)
    )
    monkeypatch.setattr(gate, "_NUM_ATTEMPTS", 2)
    monkeypatch.setattr(gate, "count_cores", lambda: 1)
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.callback()(lambda: None)
    gate.register(app)
    return lambda *options: CliRunner().invoke(app, ["gate", "--quick", *options])


@pytest.mark.slow
def test_json_on_stdout_contains_scenarios_retraining_and_speeds(invoke):
    result = invoke("--simulations", "20", "--json")

    found = json.loads(result.stdout)
    (rates,) = found["scenarios"]
    assert rates["false_promotions"]["total"] == rates["power"]["total"] == 20
    assert set(rates["naive"]) == {"pooled", "seeds only", "blocks only", "rows only"}
    assert [rates["is_same_recipe"] for rates in found["retraining"]] == [True, False]
    resampling, through_arch = found["speeds"]
    assert resampling["reaches_target"] == (0 < resampling["value"] <= resampling["target"] == 1)
    assert through_arch["reaches_target"] == (through_arch["value"] >= through_arch["target"] == 5)
    reached = [rates["reaches_targets"] for rates in found["scenarios"]]
    reached += [rates["reaches_target"] for rates in found["retraining"]]
    assert result.exit_code == (0 if all(reached) else 1)


@pytest.mark.slow
def test_table_names_the_naive_tests_and_a_missed_target_exits_with_1(invoke, monkeypatch):
    monkeypatch.setattr("sluice.bench.gate.report.reaches_targets", lambda _rates: False)
    monkeypatch.setattr(gate, "measure_resampling_speeds", lambda num_resamples: [])  # noqa: ARG005

    result = invoke("--simulations", "20")

    assert result.exit_code == 1
    assert "false: pooled" in result.stdout
    assert "Retraining on one window" in result.stdout
    assert "rho 0.5" not in result.stdout
