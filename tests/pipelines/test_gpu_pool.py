"""Stages that use a GPU share a concurrency pool, and a killed run releases its slot."""

import dataclasses
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import psutil
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._daemon.monitoring import concurrency
from dagster._time import get_current_datetime
from rich.console import Console

from sluice.base.home import Home
from sluice.cluster.settings import ComputeSettings
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.console import RunConsole
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.run_process import RunProcess
from tests.pipelines.test_ghost_runs import NO_PROCESS
from tests.support.stuck_job import STARTED_FILE_VARIABLE

ROOT = Path(__file__).parents[2]


def find_pools(pipeline: PipelineSettings) -> dict[str, set[str]]:
    pools_by_asset = {
        asset.key.path[-1]: {op.pool for op in asset.op.iterate_op_defs() if op.pool}
        for asset in build_definitions(resolve(pipeline)).assets or ()
        if isinstance(asset, dg.AssetsDefinition)
    }
    return {name: pools for name, pools in pools_by_asset.items() if pools}


def test_gpu_stages_share_a_pool_and_other_stages_have_none(echo: PipelineSettings) -> None:
    on_gpu = echo.model_copy(update={"compute": ComputeSettings(gpus_per_worker=0.5)})

    assert find_pools(on_gpu) == {"best_config": {"gpu"}, "trained_models": {"gpu"}}
    assert find_pools(echo) == {}


def test_failed_run_releases_its_slot(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next run would wait forever, because the limit is 1."""
    with open_instance(home) as instance:
        storage = instance.event_log_storage
        run = instance.create_run_for_job(_nothing)
        assert instance.global_op_concurrency_default_limit == 1
        storage.initialize_concurrency_limit_to_default("gpu")
        assert storage.claim_concurrency_slot("gpu", run.run_id, "train").is_claimed
        assert not storage.claim_concurrency_slot("gpu", "another", "train").is_claimed
        instance.report_run_failed(run, "It was killed.")

        later = get_current_datetime() + timedelta(seconds=61)
        monkeypatch.setattr(concurrency, "get_current_datetime", lambda: later)
        daemon = concurrency.execute_concurrency_slots_iteration(
            SimpleNamespace(instance=instance), logging.getLogger("daemon")
        )
        list(daemon)

        assert storage.claim_concurrency_slot("gpu", "another", "train").is_claimed


@pytest.mark.slow
@pytest.mark.exhaustive
def test_run_that_waits_for_the_gpu_reports_it_and_can_be_interrupted(
    home: Home, tmp_path: Path
) -> None:
    marker = tmp_path / "works"
    with open_instance(home) as instance:
        holder = hold_gpu(instance)
        process = start_stuck_job(marker)
        await_block(instance, process, num_runs=1)
        used_s = psutil.Process(process.pid).cpu_times().user
        time.sleep(2)
        used_s = psutil.Process(process.pid).cpu_times().user - used_s
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        has_worked = marker.exists()
        (run,) = instance.get_runs(dg.RunsFilter(job_name="stuck"))
        screen = Console(file=io.StringIO(), width=100)
        for entry in instance.all_logs(run.run_id):
            RunConsole(screen).on_event(entry)

        # The run that uses the GPU is killed while another one waits for it.
        process = start_stuck_job(marker)
        await_block(instance, process, num_runs=2)
        killed = dataclasses.replace(RunProcess.current(holder.run_id), pid=NO_PROCESS)
        instance.add_run_tags(holder.run_id, killed.tags)
        instance.report_run_failed(holder, "It was killed.")
        await_until(marker.exists, process)
        process.kill()
        process.wait()

    assert used_s < 1  # CPU time during two seconds of waiting
    assert not has_worked
    assert run.status == dg.DagsterRunStatus.FAILURE  # Dagster was not asked to terminate it
    assert (
        screen.file.getvalue() == "      work waits: another run uses the concurrency pool 'gpu'\n"
    )


def hold_gpu(instance: dg.DagsterInstance) -> dg.DagsterRun:
    """Return a run of this process that holds the only slot."""
    storage = instance.event_log_storage
    storage.initialize_concurrency_limit_to_default("gpu")
    run = instance.create_run_for_job(_nothing)
    instance.add_run_tags(run.run_id, RunProcess.current(run.run_id).tags)
    assert storage.claim_concurrency_slot("gpu", run.run_id, "train").is_claimed
    return run


def start_stuck_job(marker: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "dagster", "job", "execute", "-m", "tests.support.stuck_job"],
        cwd=ROOT,
        env=os.environ | {STARTED_FILE_VARIABLE: str(marker)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_block(
    instance: dg.DagsterInstance, process: "subprocess.Popen[bytes]", *, num_runs: int
) -> None:
    """Wait until this number of runs has logged that it waits for the pool."""

    def are_blocked() -> bool:
        texts = [entry.user_message for entry in logs_of(instance)]
        return len([text for text in texts if "Step blocked by limit" in text]) == num_runs

    await_until(are_blocked, process)


def await_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the job ended by itself"
        assert time.monotonic() < deadline, "the condition did not become true within 60 s"
        time.sleep(0.05)


def logs_of(instance: dg.DagsterInstance) -> list[dg.EventLogEntry]:
    return [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]


def test_deployed_instance_config_is_valid_for_dagster(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(text)

    config, _ = dagster_instance_config(str(tmp_path))

    assert config == yaml.safe_load(text)
    assert config["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
    assert config["run_retries"]["retry_on_asset_or_op_failure"] is False


@dg.job
def _nothing() -> None:
    pass
