"""``sluice drift`` on two files: exit codes, output and user errors."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluice.base.errors import ContractError, SettingsError, SourceError
from sluice.cli import drift
from tests.sluice.drift.frames import make_frame


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drift")
    frames = {
        "reference": make_frame(0, 1000),
        "stable": make_frame(1, 400),
        "moved": make_frame(1, 400).assign(a=lambda f: f["a"] + 0.6),
        "few": make_frame(1, 20),
    }
    paths = {}
    for name, frame in frames.items():
        paths[name] = folder / f"{name}.csv"
        frame.assign(time="2020-01-01").to_csv(paths[name], index=False)
    paths["parquet"] = folder / "reference.parquet"
    frames["reference"].to_parquet(paths["parquet"])
    return paths


def invoke(*arguments: object):
    app = typer.Typer()
    app.callback()(lambda: None)
    drift.register(app)
    return CliRunner().invoke(app, ["drift", *map(str, arguments)])


@pytest.mark.parametrize(
    ("window", "verdict", "code"),
    [("stable", "STABLE", 0), ("moved", "DRIFT", 1), ("few", "INCONCLUSIVE", 1)],
)
def test_exit_code_follows_the_verdict(files, window, verdict, code):
    result = invoke(files["reference"], files[window], "--ignore", "time")

    assert result.exit_code == code
    assert result.stdout.startswith(verdict)
    assert result.stderr == ""


def test_json_contains_the_whole_report_and_is_strict(files):
    result = invoke(files["reference"], files["few"], "--ignore", "time", "--json")

    report = json.loads(result.stdout, parse_constant=pytest.fail)
    assert report["verdict"] == "INCONCLUSIVE"
    assert report["columns"][0]["p_value"] is None
    assert len(report["columns"]) == 5


def test_additional_column_is_reported(files):
    result = invoke(files["parquet"], files["stable"])

    assert result.exit_code == 0
    assert "Not in the reference: time" in result.stdout


def test_html_page_is_written_and_its_path_printed(files, tmp_path):
    page = tmp_path / "drift.html"

    result = invoke(files["parquet"], files["moved"], "--html", page)

    assert f"report: {page}" in result.stderr
    assert "moved.csv against reference.parquet" in page.read_text()


@pytest.mark.parametrize(
    ("options", "verdict"),
    [(["--alpha", "0.01"], "DRIFT"), (["--min-rows", "401"], "INCONCLUSIVE")],
)
def test_options_reach_the_check(files, options, verdict):
    result = invoke(files["parquet"], files["moved"], *options, "--json")

    report = json.loads(result.stdout)
    assert report["verdict"] == verdict
    if options[0] == "--alpha":
        assert report["alpha"] == 0.01


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["absent.csv", "stable"], SourceError, "There is no file absent.csv"),
        (["notes.txt", "stable"], SourceError, "ending in .parquet or .csv"),
        (["reference", "stable", "--ignore", "tme"], ContractError, "Did you mean 'time'"),
        (["reference", "stable", "--alpha", "0.7"], SettingsError, "alpha"),
        (["few", "stable", "--ignore", "time"], ContractError, "at least 100 rows"),
    ],
)
def test_invalid_arguments_are_reported(files, arguments, error, message):
    result = invoke(*(files.get(argument, argument) for argument in arguments))

    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_truncated_file_is_reported(files, tmp_path):
    truncated = tmp_path / "torn.parquet"
    truncated.write_bytes(files["parquet"].read_bytes()[:200])

    result = invoke(truncated, files["stable"])

    assert isinstance(result.exception, SourceError)
    assert "torn" in str(result.exception)
