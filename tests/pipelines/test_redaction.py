"""Credentials of a source are written to no file or output, even when the run fails."""

import logging
from pathlib import Path

import pytest
import yaml

from sluice.cli.app import run_command

pytestmark = pytest.mark.slow

SECRET = "s3cr3tValue9"
CSV = {"kind": "csv", "uri": "${BARS_URL}"}
SQL = {"kind": "sql", "url": "${BARS_URL}", "query": "SELECT 1 AS date"}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def write_pipeline(folder: Path, source: dict[str, str]) -> Path:
    path = folder / "mine.yaml"
    attributes = {
        "name": "mine",
        "workload": "sluice.workloads.bars:BarsWorkload",
        "workload_settings": {"source": source},
    }
    kind = "sluice.pipelines.component.ModelPipeline"
    path.write_text(yaml.safe_dump({"type": kind, "attributes": attributes}))
    return path


def find_files_with(text: str, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        (CSV, f"http://ada:{SECRET}@127.0.0.1:1/x.csv?token={SECRET}"),
        (SQL, f"postgresql://ada:{SECRET}@127.0.0.1:1/x?connect_timeout=2&sslpassword={SECRET}"),
    ],
    ids=["csv", "sql"],
)
def test_value_of_environment_variable_is_in_no_file_and_no_output(
    tmp_path, monkeypatch, capfd, caplog, source, url
):
    path = write_pipeline(tmp_path, source)
    monkeypatch.setenv("BARS_URL", url)

    assert run_command(["run", str(path)]) == 2

    out = capfd.readouterr()
    assert "${BARS_URL}" in out.err
    assert SECRET not in out.out + out.err + caplog.text
    assert find_files_with("${BARS_URL}", tmp_path / "home")  # Dagster's event log has the error
    assert find_files_with(SECRET, tmp_path) == []


def test_credential_in_settings_is_refused_before_anything_is_written(tmp_path, capfd):
    url = f"https://ada:{SECRET}@127.0.0.1:1/x.csv"
    path = write_pipeline(tmp_path, {"kind": "csv", "uri": url})

    assert run_command(["run", str(path)]) == 2

    out = capfd.readouterr()
    assert "write ${NAME} in its place" in out.err
    assert SECRET not in out.out + out.err
    assert find_files_with(SECRET, tmp_path) == [path]
