"""Searches on Ray whose driver process is killed by a kill server."""

import dataclasses
from pathlib import Path

# The server imports these modules once, so that the drivers that it forks start fast.
import ray.tune.search.optuna  # noqa: F401

import sluice.tuning.resumable  # noqa: F401
from sluice.cluster.settings import ComputeSettings
from sluice.tuning.objective import Objective
from sluice.tuning.records import SearchResult
from sluice.tuning.search import RunTrials, run_search
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tuner import run_tuner
from tests.support.killed_work import ignore


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriverWork:
    """Runs a search on Ray, as the driver of a cluster or with a local Ray."""

    objective: Objective
    space: Space
    base: TrialSettings
    settings: SearchSettings
    address: str | None
    """Cluster with two processors; None to start Ray in the driver."""
    run: RunTrials = run_tuner
    slow_folder: str = ""
    """Name of the folder whose search has one worker; other searches have two workers."""

    def __call__(self, folder: Path) -> SearchResult:
        return run_search(
            self.objective,
            self.space,
            self.base,
            self.settings,
            folder=folder,
            on_report=ignore,
            compute=ComputeSettings(
                address=self.address,
                cpus_per_worker=2.0 if folder.name == self.slow_folder else 1.0,
            ),
            run=self.run,
        )
