"""The commands ``run``, ``poc``, ``tune``, ``registry`` and ``doctor`` on a small pipeline."""

import json
import re
from pathlib import Path

import pytest

from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.pipelines.run import RunReport
from tests.pipelines.conftest import ECHO

pytestmark = pytest.mark.slow


def read_json(capfd: pytest.CaptureFixture[str]) -> dict[str, object]:
    printed: dict[str, object] = json.loads(capfd.readouterr().out)
    return printed


@pytest.mark.parametrize("command", ["run", "dev", "poc", "gate", "doctor", "registry"])
def test_every_command_has_help_with_an_example(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command([command, "--help"]) == 0
    assert "Example: sluice" in " ".join(capfd.readouterr().out.split())


def test_unknown_command_is_a_user_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["runn"]) == 2
    assert "No such command 'runn'" in capfd.readouterr().err


@pytest.mark.exhaustive
def test_poc_accepts_the_import_path_of_a_workload(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run_command(["poc", "tests.support.echo:Echo", "--minimum"]) == 0

    captured = capfd.readouterr()
    assert "passed" in captured.out
    assert len(re.findall(r"^  ok ", captured.err, re.MULTILINE)) == 9
    (log,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert log.parent == tmp_path / ".sluice" / "gates"


def test_failed_poc_prints_cause_and_fix_and_exits_with_1(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(ECHO.read_text().replace("learning_rate: 0.1", "learning_rate: 100.0"))

    assert run_command(["poc", str(bad), "--json"]) == 1

    report = read_json(capfd)
    failed = [r for r in report["results"] if r["outcome"] == "fail"]
    assert [r["check_id"] for r in failed] == ["mini_training"]
    assert failed[0]["cause"]
    assert failed[0]["fix"]


def test_override_on_the_command_line_reaches_the_gate(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate runs in another process, and passes without the override (CONF-1)."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))

    assert run_command(["poc", str(ECHO), "--set", "poc.min_rows=1000000", "--json"]) == 1

    failed = [r for r in read_json(capfd)["results"] if r["outcome"] == "fail"]
    assert [r["check_id"] for r in failed] == ["data_loading"]


@pytest.mark.parametrize(
    "command", [["run", str(ECHO)], ["tune", str(ECHO)], ["poc", str(ECHO)]], ids=lambda c: c[0]
)
def test_unknown_override_is_a_user_error(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*command, "--set", "training.epochs=3"]) == 2
    assert "'training.epochs' is not a setting" in " ".join(capfd.readouterr().err.split())


def test_override_of_a_workload_without_a_file_is_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["poc", "tests.support.echo:Echo", "--set", "model.hidden=8"]) == 2
    assert "is a workload class" in " ".join(capfd.readouterr().err.split())


def test_registry_show_and_history_describe_a_run(
    green: tuple[Home, RunReport],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home, _ = green
    monkeypatch.setenv("SLUICE_HOME", str(home.root))

    assert run_command(["registry", "show", "echo"]) == 0
    shown = capfd.readouterr().out
    for part in ("version 1", "production", "PROMOTE", "lower bound", "seeds", "git"):
        assert part in shown
    assert run_command(["registry", "history", "echo", "--json"]) == 0
    history = json.loads(capfd.readouterr().out)
    assert "promotion_job" in json.dumps(history)


@pytest.mark.exhaustive
def test_repeated_run_prints_that_nothing_changed(
    green: tuple[Home, RunReport],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home, _ = green
    monkeypatch.setenv("SLUICE_HOME", str(home.root))

    assert run_command(["run", str(ECHO)]) == 0

    out = " ".join(capfd.readouterr().out.split())
    assert "version 1 is already in production" in out
    assert "Nothing changed since that version was made" in out
    assert "wall time" in out


def test_doctor_reports_a_damaged_artifact_only_when_there_is_one(
    green: tuple[Home, RunReport],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home, _ = green
    monkeypatch.setenv("SLUICE_HOME", str(home.root))
    monkeypatch.setenv(
        "RAY_AUTH_TOKEN_PATH", str(home.root / "no-token")
    )  # do not read the token of this machine
    assert run_command(["doctor", "--json"]) == 0
    capfd.readouterr()

    from sluice.training.members import TrainedModels

    trained = TrainedModels.model_validate_json(
        (home.records / "echo" / "trained_models.json").read_bytes()
    )
    weights = trained.members[0].weights
    (home.artifacts / weights[:2] / weights).write_bytes(b"other")

    assert run_command(["doctor", "--json"]) == 1
    found = {e["name"]: e for e in json.loads(capfd.readouterr().out)}
    assert not found["registry"]["healthy"]
    assert "verify" in found["registry"]["fix"]


def test_doctor_measures_alarm_rates_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    command = ["doctor", "expectations", str(ECHO), "--window-rows", "100"]

    assert run_command([*command, "--json"]) == 0
    captured = capfd.readouterr()
    report = json.loads(captured.out)
    assert "windows of good rows" in captured.err
    assert (report["workload"], report["settings"]["window_rows"]) == ("echo", 100)

    assert run_command(command) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "0 of 0 expectations raised a false alarm" in out
    assert "column constant" in out
    (page,) = (tmp_path / "home" / "reports" / "expectations" / "echo").iterdir()
    assert "Alarm rates of the expectations of echo" in page.read_text()


def test_doctor_refuses_json_before_a_subcommand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))

    assert run_command(["doctor", "--json", "expectations"]) == 2
    assert "Give --json after 'expectations'" in capfd.readouterr().err
    assert run_command(["doctor", "expectations", "--help"]) == 0
