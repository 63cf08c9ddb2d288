"""A run whose process was killed is closed; one alive, or of another host, is left alone."""

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
"""Above the largest process number that Linux gives."""


@pytest.mark.slow
def test_a_run_that_another_process_executes_counts_until_that_is_killed(
    home: Home, tmp_path: Path
) -> None:
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
        alive = describe_active_run(instance, "stuck")
        claimed_before = storage.claim_concurrency_slot("gpu", RUN, "train").is_claimed
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        killed = describe_active_run(instance, "stuck")
        status = instance.get_run_by_id(run.run_id).status
        claimed_after = storage.claim_concurrency_slot("gpu", RUN, "train").is_claimed

    assert alive == f"Run {run.run_id[:8]} of stuck is in progress."
    assert killed == ""
    assert status == dg.DagsterRunStatus.FAILURE
    assert (claimed_before, claimed_after) == (False, True)


def test_a_process_is_gone_when_its_number_is_free_or_of_a_younger_one() -> None:
    here = RunProcess.this(RUN)

    assert not here.is_gone
    assert dataclasses.replace(here, pid=NO_PROCESS).is_gone
    assert dataclasses.replace(here, started_s=here.started_s - 60).is_gone
    for pid in (here.pid, NO_PROCESS):
        assert not dataclasses.replace(here, host="elsewhere", pid=pid).is_gone


def test_a_killed_process_that_nobody_waited_for_is_gone() -> None:
    child = subprocess.Popen(["sleep", "600"])
    started_s = psutil.Process(child.pid).create_time() - psutil.boot_time()
    other = dataclasses.replace(RunProcess.this(RUN), pid=child.pid, started_s=started_s)
    assert not other.is_gone
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert other.is_gone
    child.wait()


@pytest.mark.slow
def test_a_run_executed_again_is_not_judged_by_the_process_of_the_first(home: Home) -> None:
    first = dataclasses.replace(RunProcess.this(RUN), pid=NO_PROCESS)
    assert RunProcess.of(RUN, first.tags) == dataclasses.replace(
        first, started_s=round(first.started_s, 2)
    )

    with open_instance(home) as instance:
        again = instance.create_run_for_job(
            dg.GraphDefinition("training").to_job(),
            status=dg.DagsterRunStatus.STARTED,
            tags=first.tags,
        )

        assert close_killed_runs(instance) == 0
        assert "no longer exists, close the run: in the UI" in describe_active_run(
            instance, "training"
        )
        assert RunProcess.of(again.run_id, again.tags) is None


def test_a_queued_run_counts_and_is_not_in_progress(home: Home) -> None:
    with open_instance(home) as instance:
        attribute_runs(instance, "training")
        instance.create_run_for_job(
            dg.GraphDefinition("training").to_job(),
            run_id=RUN,
            status=dg.DagsterRunStatus.QUEUED,
        )
        assert describe_active_run(instance, "training") == "Run 0c1c5b9e of training is queued."


@pytest.mark.slow
def test_a_run_of_another_host_counts_and_how_to_close_it_is_said(home: Home) -> None:
    """A container that was started anew has another name; nobody here sees the old one."""
    elsewhere = dataclasses.replace(RunProcess.this(RUN), host="old-container", pid=NO_PROCESS)
    with open_instance(home) as instance:
        run = instance.create_run_for_job(
            dg.GraphDefinition("training").to_job(),
            run_id=RUN,
            status=dg.DagsterRunStatus.STARTED,
            tags=elsewhere.tags,
        )
        said = describe_active_run(instance, "training")

        assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.STARTED
    assert "Run 0c1c5b9e of training is in progress. It runs on host old-container" in said
    assert "If that host or container no longer exists, close the run: in the UI open Runs" in said
    assert "'Force termination immediately'" in said


def test_every_job_signs_its_runs(echo: PipelineSettings, home: Home) -> None:
    definitions = dg.Definitions.merge(
        build_definitions(resolve(echo)), dg.Definitions(resources=resources(home))
    )
    names = [job.name for job in definitions.jobs or ()]

    assert f"{echo.name}_training" in names
    for name in names:
        assert definitions.resolve_job_def(name).executor_def is one_process, name
