"""Results and targets that ``sluice bench serve`` prints."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.bench.serving import measure
from sluice.bench.serving.measure import ServerMeasurement
from sluice.cli.bench import serving


def make_measurement(p50: float, p99: float, rate: float, failed: int = 0) -> ServerMeasurement:
    return ServerMeasurement(
        p50_ms=p50, p99_ms=p99, rate_per_s=rate, num_responses=10, num_failed=failed
    )


MEASUREMENTS = {
    "model alone": make_measurement(2.0, 3.0, 0.0),
    "minimal app": make_measurement(2.5, 4.0, 400.0),
    "production": make_measurement(3.0, 6.0, 500.0),
    "canary at 50 %": make_measurement(3.0, 6.0, 300.0, failed=1),
    "shadow": make_measurement(3.0, 6.3, 200.0),
}


def test_each_result_is_compared_with_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_servers", lambda **_: MEASUREMENTS)
    app = typer.Typer()
    serving.register(app)
    table_result, json_result = CliRunner().invoke(app), CliRunner().invoke(app, ["--json"])
    speeds = {s["name"]: s for s in json.loads(json_result.stdout)["speeds"]}

    assert table_result.exit_code == json_result.exit_code == 0
    assert "missed" in table_result.stdout
    assert [(s["value"], s["reaches_target"]) for s in speeds.values()] == [
        (pytest.approx(1.0), True),
        (pytest.approx(3.0), True),
        (pytest.approx(1.05), True),
        (pytest.approx(1.25), True),
        (pytest.approx(0.75), False),
        (1, False),
    ]
