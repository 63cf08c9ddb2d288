"""A job that creates a file when it runs and then never ends."""

import os
import signal
from pathlib import Path

import dagster as dg

from sluice.pipelines.executor import one_process

STARTED_FILE_VARIABLE = "STUCK_JOB_WORKS"


@dg.op(pool="gpu")
def work():
    Path(os.environ[STARTED_FILE_VARIABLE]).touch()
    while True:
        signal.pause()


@dg.job(executor_def=one_process)
def stuck():
    work()
