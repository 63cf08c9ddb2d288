"""Inputs of one run of the drift monitor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.drift.monitor_state import Signal
from sluice.drift.reference_store import ReferenceArtifacts
from sluice.registry.records import Version
from sluice.rollout.samples import Sample
from sluice.workloads.workload import Workload

SavePage = Callable[[Callable[[], str], Signal], str | None]
"""Function that saves a page and returns its URL, or None if the page was not saved. The arguments
are a function that renders the page, and the signal of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorInputs:
    """Inputs of one monitor run for a version in production."""

    version: Version
    in_production_since: datetime
    workload: Workload
    """Workload of the version, which computed ``frame``."""

    frame: pd.DataFrame
    """Features of the current rows of the source."""

    references: ReferenceArtifacts | str
    """Drift references of the version, or the reason why it has none."""

    samples: Sequence[Sample]
    """Newest samples of the servers."""

    is_served: bool
    """Whether any server currently serves the model."""

    settings: DriftSettings
    alarm_settings: AlarmDebounceSettings
    store: ArtifactStore
    save_page: SavePage
    now: datetime
    threads: int
    """Number of columns that are processed in parallel."""
