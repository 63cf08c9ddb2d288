"""What ``sluice bench train`` and ``tune`` print; what they measure is tested apart."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.base.settings import Record
from sluice.cli.bench import app as bench
from sluice.cli.bench import training
from sluice.cli.bench.benchmark_table import Speed


class Found(Record):
    rows: int = 7


def measured(*, quick):
    yield Found()
    yield Speed(name="fast", value=0.5, unit="s", target=2.0)
    yield Speed(name="slow", value=1.0 if quick else 1.9, unit="x", target=1.8, higher_is_better=1)
    yield Speed(name="undefined", value=float("nan"), unit="x", target=1.0)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(training, "measure_training", measured)
    monkeypatch.setattr(training, "measure_search", measured)
    app = typer.Typer()
    bench.register(app)
    app.command("other")(lambda: None)  # with one group alone, typer leaves its name out
    return lambda *arguments: CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.parametrize("command", ["train", "tune"])
def test_every_figure_stands_beside_its_target(run, command):
    """A figure that is missed, or is no number, is said and ends nothing: exit code 0."""
    done = run(command, "--quick")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}

    assert done.exit_code == 0
    assert "0.5 s" in lines["fast"]
    assert "at most 2" in lines["fast"]
    assert "reached" in lines["fast"]
    assert "at least 1.8" in lines["slow"]
    assert "missed" in lines["slow"]
    assert "missed" in lines["undefined"]


@pytest.mark.parametrize("command", ["train", "tune"])
def test_json_holds_the_figures_and_all_that_was_measured(run, command):
    report = json.loads(run(command, "--json").stdout)

    assert [row["reached"] for row in report["speeds"]] == [True, True, False]
    assert report["measured"] == {"rows": 7}
