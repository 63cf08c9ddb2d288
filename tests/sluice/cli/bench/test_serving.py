"""The figures of ``sluice bench serve``."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.bench.serving import measure
from sluice.bench.serving.measure import ServerMeasurement
from sluice.cli.bench import serving


def measured(p50: float, p99: float, rate: float, failed: int = 0) -> ServerMeasurement:
    return ServerMeasurement(p50_ms=p50, p99_ms=p99, rate_per_s=rate, answers=10, failed=failed)


FOUND = {
    "model alone": measured(2.0, 3.0, 0.0),
    "minimal app": measured(2.5, 4.0, 400.0),
    "production": measured(3.0, 6.0, 500.0),
    "canary at 50 %": measured(3.0, 6.0, 300.0, failed=1),
    "shadow": measured(3.0, 6.3, 200.0),
}


def test_each_figure_is_held_to_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_kinds", lambda **_: FOUND)
    app = typer.Typer()
    serving.register(app)
    table, told = CliRunner().invoke(app), CliRunner().invoke(app, ["--json"])
    speeds = {s["name"]: s for s in json.loads(told.stdout)["speeds"]}

    assert table.exit_code == told.exit_code == 0
    assert "missed" in table.stdout
    assert [(s["value"], s["reached"]) for s in speeds.values()] == [
        (pytest.approx(1.0), True),
        (pytest.approx(3.0), True),
        (pytest.approx(1.05), True),
        (pytest.approx(1.25), True),
        (pytest.approx(0.75), False),
        (1, False),
    ]
