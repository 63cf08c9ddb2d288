"""``sluice doctor`` commands about trainings (TRACE-6, TRAIN-2, TRACE-17)."""

import json
from pathlib import Path

import pytest

from sluice.cli.app import run_command

ECHO = str(Path(__file__).parents[2] / "support" / "echo.yaml")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("command", ["randomness", "learning-rate", "batch-size"])
def test_each_command_has_an_example_and_suggests_known_pipelines(command, capfd):
    assert run_command(["doctor", command, "--help"]) == 0
    assert f"Example: sluice doctor {command} sp500_volatility" in capfd.readouterr().out
    assert run_command(["doctor", command, "sp500_volatilty"]) == 2
    assert "Did you mean 'sp500_volatility'" in capfd.readouterr().err


def test_randomness_is_reported_as_text_and_json(capfd):
    assert run_command(["doctor", "randomness", ECHO, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert {"audit", "draws", "shared", "nondeterministic", "findings"} == report.keys()
    assert len(report["draws"]) == 6

    assert run_command(["doctor", "randomness", ECHO]) == 0
    out = " ".join(capfd.readouterr().out.split())
    for part in ("generator of dropout seeded", "PYTHONHASHSEED", "load_rows nothing"):
        assert part in out


def test_learning_rate_test_writes_a_page(home, capfd):
    assert run_command(["doctor", "learning-rate", ECHO, "--steps", "100"]) == 0
    captured = capfd.readouterr()
    assert "Steepest descent at rate" in captured.out
    (page,) = (home / "reports" / "learning_rate" / "echo").iterdir()
    assert str(page) in captured.err
    assert "data:image/png;base64," in page.read_text()
    assert "Learning rate in the settings: 0.1." in page.read_text()

    assert run_command(["doctor", "learning-rate", ECHO, "--steps", "100", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert 1e-7 < result["rate"] < 10


def test_loss_without_descent_exits_with_1_and_a_fix(tmp_path, capfd):
    flat = tmp_path / "flat.yaml"
    flat.write_text(
        Path(ECHO).read_text().replace("tests.support.echo:Echo", "tests.support.echo:ConstantLoss")
    )
    code = run_command(["doctor", "learning-rate", str(flat), "--json"])
    result = json.loads(capfd.readouterr().out)

    assert (code, result["rate"]) == (1, None)
    assert result["fix"]


def test_largest_batch_is_found_by_running_it(capfd):
    command = ["doctor", "batch-size", ECHO, "--limit-rows", "8"]
    assert run_command([*command, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["rows"], result["bound"]) == (8, "limit_rows")
    assert [attempt["rows"] for attempt in result["attempts"]] == [2, 4, 8]

    assert run_command([*command, "--memory-gib", "0"]) == 2
    assert "must be positive" in capfd.readouterr().err


@pytest.mark.exhaustive
def test_largest_batch_is_printed_as_text(capfd):
    assert run_command(["doctor", "batch-size", ECHO, "--limit-rows", "8"]) == 0
    assert "The largest batch that ran has 8 rows" in capfd.readouterr().out
