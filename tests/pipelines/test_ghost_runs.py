"""Runs of killed processes are closed; runs of live processes or other hosts are kept."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import psutil
import pytest

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.active_run import describe_active_run
from sluice.pipelines.code_location import attribute_runs
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.executor import one_process
from sluice.pipelines.instance import close_killed_runs, open_instance
from sluice.pipelines.resources import resources
from sluice.pipelines.run_process import RunProcess
from tests.support.stuck_job import STARTED_FILE_VARIABLE

ROOT = Path(__file__).parents[2]
RUN = "0c1c5b9e-8a0b-4a35-a3c7-6b1f1f0d9d11"
NO_PROCESS = 2**22 + 1
"""A process id above the largest one that Linux assigns."""


@pytest.mark.slow
def test_run_is_active_until_its_process_is_killed(home: Home, tmp_path: Path) -> None:
    with open_instance(home) as instance:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "job", "execute", "-m", "tests.support.stuck_job"],
            cwd=ROOT,
            env=os.environ | {STARTED_FILE_VARIABLE: str(tmp_path / "works")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while not (tmp_path / "works").exists():
            assert process.poll() is None, "the job ended by itself"
            assert time.monotonic() < deadline, "the job did not start"
            time.sleep(0.05)
        (run,) = instance.get_runs()

        storage = instance.event_log_storage
        while_alive = describe_active_run(instance, "stuck")
        claimed_before = storage.claim_concurrency_slot("gpu", RUN, "train").is_claimed
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        after_kill = describe_active_run(instance, "stuck")
        status = instance.get_run_by_id(run.run_id).status
        claimed_after = storage.claim_concurrency_slot("gpu", RUN, "train").is_claimed

    assert while_alive == f"Run {run.run_id[:8]} of stuck is in progress."
    assert after_kill == ""
    assert status == dg.DagsterRunStatus.FAILURE
    assert (claimed_before, claimed_after) == (False, True)


def test_process_has_ended_when_its_pid_is_free_or_reused() -> None:
    this_process = RunProcess.current(RUN)

    assert not this_process.has_ended
    assert dataclasses.replace(this_process, pid=NO_PROCESS).has_ended
    assert dataclasses.replace(this_process, started_s=this_process.started_s - 60).has_ended
    for pid in (this_process.pid, NO_PROCESS):
        assert not dataclasses.replace(this_process, host="elsewhere", pid=pid).has_ended


def test_zombie_process_has_ended() -> None:
    child = subprocess.Popen(["sleep", "600"])
    started_s = psutil.Process(child.pid).create_time() - psutil.boot_time()
    other = dataclasses.replace(RunProcess.current(RUN), pid=child.pid, started_s=started_s)
    assert not other.has_ended
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert other.has_ended
    child.wait()


@pytest.mark.slow
def test_reexecuted_run_ignores_the_process_tags_of_the_first_run(home: Home) -> None:
    first = dataclasses.replace(RunProcess.current(RUN), pid=NO_PROCESS)
    assert RunProcess.of(RUN, first.tags) == dataclasses.replace(
        first, started_s=round(first.started_s, 2)
    )

    with open_instance(home) as instance:
        second = instance.create_run_for_job(
            dg.GraphDefinition("training").to_job(),
            status=dg.DagsterRunStatus.STARTED,
            tags=first.tags,
        )

        assert close_killed_runs(instance) == 0
        assert "no longer exists, close the run: in the UI" in describe_active_run(
            instance, "training"
        )
        assert RunProcess.of(second.run_id, second.tags) is None


def test_queued_run_is_reported_as_queued(home: Home) -> None:
    with open_instance(home) as instance:
        attribute_runs(instance, "training")
        instance.create_run_for_job(
            dg.GraphDefinition("training").to_job(),
            run_id=RUN,
            status=dg.DagsterRunStatus.QUEUED,
        )
        assert describe_active_run(instance, "training") == "Run 0c1c5b9e of training is queued."


@pytest.mark.slow
def test_run_of_another_host_is_active_and_the_message_explains_how_to_close_it(home: Home) -> None:
    """A recreated container has another host name, and the old process is not visible in it."""
    on_other_host = dataclasses.replace(
        RunProcess.current(RUN), host="old-container", pid=NO_PROCESS
    )
    with open_instance(home) as instance:
        run = instance.create_run_for_job(
            dg.GraphDefinition("training").to_job(),
            run_id=RUN,
            status=dg.DagsterRunStatus.STARTED,
            tags=on_other_host.tags,
        )
        message = describe_active_run(instance, "training")

        assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.STARTED
    assert "Run 0c1c5b9e of training is in progress. It runs on host old-container" in message
    assert (
        "If that host or container no longer exists, close the run: in the UI open Runs" in message
    )
    assert "'Force termination immediately'" in message


def test_every_job_uses_the_executor_that_records_its_process(
    echo: PipelineSettings, home: Home
) -> None:
    definitions = dg.Definitions.merge(
        build_definitions(resolve(echo)), dg.Definitions(resources=resources(home))
    )
    names = [job.name for job in definitions.jobs or ()]

    assert f"{echo.name}_training" in names
    for name in names:
        assert definitions.resolve_job_def(name).executor_def is one_process, name
