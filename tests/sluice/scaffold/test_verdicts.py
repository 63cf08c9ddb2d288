"""Generated pipelines reach a verdict on unprepared data without any edit."""

import json
from pathlib import Path

import pytest

from sluice.base.errors import EXIT_GATE_BLOCKED
from sluice.cli.app import run_command
from sluice.scaffold.project import write_files
from sluice.scaffold.samples import make_sample
from tests.sluice.scaffold.tables import write_csv

VERDICTS = {"PROMOTE", "REJECT", "EQUIVALENT", "INCONCLUSIVE"}


def init_and_run(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the verdict on the first candidate of new data.

    Args:
        arguments: Arguments of ``sluice init``.
        name: Name of the pipeline, unique per test, because Python imports a module name once.
        capsys: Captures the output.
    """
    assert run_command(["init", *arguments, "--name", name]) == 0
    capsys.readouterr()

    code = run_command(["run", f"{name}.yaml", "--no-rehearsal", "--json"])

    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert code in (0, EXIT_GATE_BLOCKED), printed
    assert "verdict" in report, report
    return str(report["verdict"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.exhaustive
@pytest.mark.slow
def test_categories_with_missing_values_reach_a_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write_csv("categories", folder / "data.csv")

    assert init_and_run(["data.csv", "--target", target], "verdict_categories", capsys) in VERDICTS


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["numbers", "dates", "texts", "imbalanced"])
def test_csv_tables_reach_a_verdict(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write_csv(kind, folder / "data.csv")

    assert init_and_run(["data.csv", "--target", target], f"verdict_{kind}", capsys) in VERDICTS


@pytest.mark.exhaustive
@pytest.mark.parametrize("template", ["images", "text", "tabular"])
def test_samples_reach_a_verdict(
    template: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = make_sample(template)  # type: ignore[arg-type]
    write_files(folder, sample.files)
    target = [] if sample.target is None else ["--target", sample.target]

    assert init_and_run([sample.data, *target], f"verdict_sample_{template}", capsys) in VERDICTS
