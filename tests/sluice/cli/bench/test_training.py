"""Output of ``sluice bench train`` and ``tune``, without the measurements."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluice.base.settings import Record
from sluice.bench.training.fold_run_overhead import FoldRunSpeed
from sluice.bench.training.loader_overhead import LoaderOverhead
from sluice.bench.training.trainer_overhead import TrainerSpeed
from sluice.cli.bench import app as bench
from sluice.cli.bench import training
from sluice.cli.bench.benchmark_table import Speed


class SampleMeasurement(Record):
    rows: int = 7


def fake_measurements(*, quick):
    yield SampleMeasurement()
    yield Speed(name="fast", value=0.5, unit="s", target=2.0)
    yield Speed(name="slow", value=1.0 if quick else 1.9, unit="x", target=1.8, higher_is_better=1)
    yield Speed(name="undefined", value=float("nan"), unit="x", target=1.0)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(training, "measure_training", fake_measurements)
    monkeypatch.setattr(training, "measure_search", fake_measurements)
    app = typer.Typer()
    bench.register(app)
    app.command("other")(lambda: None)  # with one group alone, typer leaves its name out
    return lambda *arguments: CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.parametrize("command", ["train", "tune"])
def test_every_result_is_printed_with_its_target(run, command):
    """A missed target or an undefined result is printed, and the exit code is 0."""
    result = run(command, "--quick")
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}

    assert result.exit_code == 0
    assert "0.5 s" in lines["fast"]
    assert "at most 2" in lines["fast"]
    assert "reached" in lines["fast"]
    assert "at least 1.8" in lines["slow"]
    assert "missed" in lines["slow"]
    assert "missed" in lines["undefined"]


@pytest.mark.parametrize("command", ["train", "tune"])
def test_json_contains_speeds_and_measurements(run, command):
    report = json.loads(run(command, "--json").stdout)

    assert [row["reaches_target"] for row in report["speeds"]] == [True, True, False]
    assert report["measured"] == {"rows": 7}


def test_records_of_one_command_have_distinct_fields():
    """JSON merges the fields of all records of ``sluice bench train`` into one object."""
    records = (TrainerSpeed, LoaderOverhead, FoldRunSpeed)
    names = [name for record in records for name in record.model_fields]

    assert len(names) == len(set(names))
