"""A toy objective that records where and how its trials run, and can wait for machines.

The start of a machine takes a varying time, so tests do not rely on times. A test states which
machines it expects, and no trial reports until each of them has started a trial.
"""

import importlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.support.toy_search import LR, Toy

_MAX_WAIT_S = 150
"""Maximum wait for a machine [s]. Then the trials continue, and the test's assertions fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """A folder with a record of each started trial, and a list of the expected machines."""

    folder: Path

    def expect(self, *machines):
        """Make all trials wait until a trial has started on each of the machines."""
        temporary_path = self.folder / uuid4().hex
        temporary_path.write_text(json.dumps(machines))
        temporary_path.rename(self.folder / "expected")

    def expected(self):
        """Return the machines for which trials wait."""
        path = self.folder / "expected"
        return set(json.loads(path.read_text())) if path.exists() else set()

    def write(self, **note):
        temporary_path = self.folder / uuid4().hex
        temporary_path.write_text(json.dumps(note))
        temporary_path.rename(self.folder / f"{time.time_ns()}-{os.getpid()}.json")

    def read(self):
        """Return the records of started trials, oldest first."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def machines(self):
        """Return the machines on which a trial has started."""
        return {note["machine"] for note in self.read()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Toy):
    """A toy objective that records the start of every training."""

    notes: Path
    module: str = ""
    """User-defined module that the worker imports; empty for none."""

    def train(self, schedule, *, start, report_epochs):
        import ray

        notes = Notes(folder=self.notes)
        value = importlib.import_module(self.module).VALUE if self.module else None
        notes.write(
            machine=ray.get_runtime_context().get_node_id(),
            process=os.getpid(),
            rate=schedule[0].params[LR],
            done=0 if start is None else int((start / "mark").read_text()),
            value=value,
            threads=os.environ.get("OMP_NUM_THREADS"),
            hash_seed=os.environ.get("PYTHONHASHSEED"),
            folder=os.getcwd(),
            secret=os.environ.get("AWS_SECRET_ACCESS_KEY"),
        )
        for report in Toy.train(self, schedule, start=start, report_epochs=report_epochs):
            deadline = time.monotonic() + _MAX_WAIT_S
            while notes.expected() - notes.machines() and time.monotonic() < deadline:
                time.sleep(0.1)
            yield report


def count_running():
    """Return a callback of Tune that records the maximum number of running trials."""
    from ray import tune

    class CountRunning(tune.Callback):
        max_running = 0

        def on_step_end(self, iteration, trials, **info):
            del iteration, info
            self.max_running = max(
                self.max_running, sum(trial.status == "RUNNING" for trial in trials)
            )

    return CountRunning()
