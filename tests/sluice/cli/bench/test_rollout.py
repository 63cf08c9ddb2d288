"""``sluice bench rollout`` with minimal sizes (ROLL-2)."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.bench.rollout import scenarios
from sluice.bench.rollout.simulation import RolloutScenario
from sluice.bench.rollout.traffic import Traffic
from sluice.cli.bench import rollout
from sluice.rollout.settings import RolloutSettings


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setattr(rollout, "count_cores", lambda: 1)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*options, max_median_s):
        simulated = (
            RolloutScenario(
                name="jump",
                traffic=Traffic(error_factor=20),
                settings=RolloutSettings(),
                seconds=60,
                max_median_s=max_median_s,
            ),
        )
        monkeypatch.setattr(scenarios, "scenarios", lambda: simulated)
        app = typer.Typer()
        app.callback()(lambda: None)
        rollout.register(app)
        return CliRunner().invoke(app, ["rollout", "--rollouts", "10", *options])

    return run


def test_json_contains_the_measurements(invoke):
    result = invoke("--json", max_median_s=60.0)

    (found,) = json.loads(result.stdout)["scenarios"]
    assert (found["num_rollouts"], found["num_rolled_back"]) == (10, 10)
    assert found["reaches_targets"]
    assert result.exit_code == 0


def test_missed_target_exits_with_1(invoke):
    result = invoke(max_median_s=0.5)

    assert result.exit_code == 1
    assert "at most 0" in result.stdout
    assert "z-test" in result.stdout
