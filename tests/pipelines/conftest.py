"""Fixtures: a state folder, and one short run of the whole line shared by a test session."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings, read_pipeline
from sluice.config.resolved import resolve
from sluice.pipelines.console import RunConsole
from sluice.pipelines.run import RunReport, run_pipeline
from sluice.registry.ledger import Ledger

ECHO = Path(__file__).parents[1] / "support" / "echo.yaml"

# The assets of every pipeline.
STAGES = {
    "raw_data",
    "features",
    "poc_report",
    "best_config",
    "trained_models",
    "drift_reference",
    "evaluation",
    "promotion_verdict",
    "candidate",
    "production_model",
    "drift_report",
}
# Additional assets of a pipeline with a rollout.
ROLLOUT = {"rollout", "rollout_review"}

Runner = Callable[[PipelineSettings, Home], RunReport]


def run_line(pipeline: PipelineSettings, home: Home) -> RunReport:
    with RunConsole(Console(stderr=True)) as console:
        return run_pipeline(resolve(pipeline), home, console, start_s=time.perf_counter())


def ledger_of(home: Home) -> Ledger:
    return Ledger.open(home.registry_url, clock=lambda: datetime.now(UTC))


def forget_promotion(home: Home, *, register_version: bool = True) -> None:
    """Recreate the registry with the receipts and optionally the version, without production."""
    with ledger_of(home) as ledger:
        lineage = ledger.version("echo", 1).lineage
        receipts = [each.receipt for each in ledger.receipts("echo", 1)]
    for file in home.root.glob("registry.db*"):
        file.unlink()
    with ledger_of(home) as ledger:
        for receipt in receipts:
            if receipt.gate != "promotion":
                ledger.record_receipt(receipt)
        if register_version:
            ledger.register("echo", lineage, receipts)


def home_at(folder: Path) -> Home:
    return Home.from_environment({"SLUICE_HOME": str(folder)}, cwd=folder.parent)


@pytest.fixture(scope="session")
def echo() -> PipelineSettings:
    return read_pipeline(ECHO)


@pytest.fixture(scope="session")
def short_echo(echo: PipelineSettings) -> PipelineSettings:
    """Return the pipeline with half of its folds, for tests that train again."""
    return echo.model_copy(update={"workload_settings": {"folds": {"num_folds": 2}}})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return home_at(tmp_path / "home")


@pytest.fixture
def run() -> Runner:
    return run_line


@pytest.fixture(scope="session")
def _green(
    tmp_path_factory: pytest.TempPathFactory, echo: PipelineSettings
) -> tuple[Path, RunReport]:
    """Run the line once for all pytest-xdist workers: the first one runs it, the others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, report_file = shared / "green" / "home", shared / "green.json"
    with (shared / "green.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report_file.exists():
            report_file.write_text(run_line(echo, home_at(folder)).model_dump_json())
    return folder, RunReport.model_validate_json(report_file.read_bytes())


@pytest.fixture
def green(_green: tuple[Path, RunReport], tmp_path: Path) -> tuple[Home, RunReport]:
    """Return a copy of the state folder after a successful run, and the report of the run."""
    folder, report = _green
    shutil.copytree(folder, tmp_path / "green")
    return home_at(tmp_path / "green"), report
