"""Polls the source on behalf of sensors and schedules, whose ticks Dagster stops after a minute."""

import contextlib
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial

import pandas as pd

from sluice.assets.source_asset import SOURCE, LoadAsset, provide_source, source_key
from sluice.base.digests import digest_frame
from sluice.base.errors import SluiceError
from sluice.findings.user_code import wrap_user_errors
from sluice.serving.background import run_in_background
from sluice.workloads.workload import Workload

MAX_WAIT_S = 40.0
"""Maximum wait for a load [s], so that a tick ends before Dagster stops it."""

MAX_UNSUCCESSFUL_WAITS = 3
"""After this number of unsuccessful waits for one load, another load is started."""
MAX_LOADS = 4
"""Maximum number of threads that load one source, hanging ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Digest and index of the source's rows."""

    digest: str
    """Digest of the rows, which is also the data version of the asset ``raw_data``."""

    index: pd.Index


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUnavailable:
    """Reason why the rows of the source are not available."""

    reason: str
    is_slow: bool
    """Whether the source did not answer within the time limit."""


class SourcePoll:
    """Loads the rows in a background thread, with a time limit and a limited number of threads."""

    def __init__(self, workload: Workload, *, max_wait_s: float = MAX_WAIT_S) -> None:
        """Create a poll of a workload's source.

        Args:
            workload: Workload with the source.
            max_wait_s: Maximum time that ``read_state`` waits [s].
        """
        self._workload = workload
        self._max_wait_s = max_wait_s
        self._recent_loads: list[Future[SourceState]] = []
        """Loads that were started since the last result."""

        self._hanging_loads: list[Future[SourceState]] = []
        """Unfinished loads from before the last result."""

        self._num_unsuccessful_waits = 0
        """Number of unsuccessful waits for the newest load."""

    def read_state(self, load_asset: LoadAsset | None = None) -> SourceState | SourceUnavailable:
        """Return the state of the source, or why it is unavailable.

        Args:
            load_asset: Loads the asset of the user, if an asset is the source.
        """
        self._hanging_loads = [load for load in self._hanging_loads if not load.done()]
        has_max_loads = len(self._recent_loads) + len(self._hanging_loads) >= MAX_LOADS
        if not has_max_loads and (
            not self._recent_loads or self._num_unsuccessful_waits >= MAX_UNSUCCESSFUL_WAITS
        ):
            self._recent_loads.append(
                run_in_background(partial(self._load, load_asset), name="source")
            )
            self._num_unsuccessful_waits = 0
        finished_loads = wait(
            self._recent_loads, self._max_wait_s, return_when=FIRST_COMPLETED
        ).done
        if not finished_loads:
            self._num_unsuccessful_waits += 1
            return SourceUnavailable(reason=self._describe_timeout(), is_slow=True)
        newest_load = next(load for load in reversed(self._recent_loads) if load in finished_loads)
        self._hanging_loads += [load for load in self._recent_loads if not load.done()]
        self._recent_loads = []  # the next call starts a new load, unless too many hang
        try:
            return newest_load.result()
        except SluiceError as error:
            return SourceUnavailable(reason=f"The source cannot be read: {error}", is_slow=False)

    def _describe_timeout(self) -> str:
        text = f"The source has not answered within {self._max_wait_s:g} s."
        if len(self._recent_loads) + len(self._hanging_loads) < MAX_LOADS:
            return text
        return (
            f"{text} {MAX_LOADS} loads hang, and no further one is started: add a time limit to "
            "load_rows, and restart sluice dev."
        )

    def _load(self, load_asset: LoadAsset | None) -> SourceState:
        asset_key = source_key(self._workload)
        inputs = {} if asset_key is None or load_asset is None else {SOURCE: load_asset(asset_key)}
        with (
            provide_source(self._workload, inputs) if inputs else contextlib.nullcontext(),
            wrap_user_errors("load_rows of the workload"),
        ):
            frame = self._workload.load_rows()
            return SourceState(digest=digest_frame(frame), index=frame.index)
