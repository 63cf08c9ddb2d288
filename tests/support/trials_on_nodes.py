"""A toy objective that notes where and how its trials run, and can hold them until a machine works.

What a machine does depends on how fast it starts. So the trials of a test wait for each other, not
for a time: while a machine is expected, no trial reports until that machine has begun one.
"""

import importlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.support.toy_search import LR, Toy

_HELD_S = 150
"""Longest hold; after it the test goes on, and fails by what it asserts [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What trials wrote down when they began, and which machines they wait for."""

    folder: Path

    def expect(self, *machines):
        """Hold all trials until one has begun on each machine."""
        new = self.folder / uuid4().hex
        new.write_text(json.dumps(machines))
        new.rename(self.folder / "expected")

    def expected(self):
        path = self.folder / "expected"
        return set(json.loads(path.read_text())) if path.exists() else set()

    def write(self, **note):
        new = self.folder / uuid4().hex
        new.write_text(json.dumps(note))
        new.rename(self.folder / f"{time.time_ns()}-{os.getpid()}.json")

    def read(self):
        """Return the notes, the oldest first."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def machines(self):
        return {note["machine"] for note in self.read()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Toy):
    """A toy that notes the beginning of every training."""

    notes: Path
    module: str = ""
    """Module of the user's that the worker imports."""

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
            until = time.monotonic() + _HELD_S
            while notes.expected() - notes.machines() and time.monotonic() < until:
                time.sleep(0.1)
            yield report


def count_running():
    """Return a callback of Tune that keeps the largest number of trials that had a worker."""
    from ray import tune

    class CountRunning(tune.Callback):
        most = 0

        def on_step_end(self, iteration, trials, **info):
            del iteration, info
            self.most = max(self.most, sum(trial.status == "RUNNING" for trial in trials))

    return CountRunning()
