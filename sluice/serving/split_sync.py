"""Keeps the router's table in sync with the traffic split, and reports problems.

The split is read and models are loaded in threads. The router gets only finished tables. If
anything fails, the last good table stays in force.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.base.digests import short
from sluice.base.errors import RegistryInconsistent
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.background import run_in_background
from sluice.serving.isolation import Isolate
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router
from sluice.serving.routing_table import RoutingTable
from sluice.serving.settings import ServingSettings
from sluice.serving.table_building import LoadModel, build_routing_table
from sluice.serving.traffic_split import TrafficSplitSource, is_newer

LOADING_PROBLEM = "The challenger is still loading; production serves alone."
"""Problem that is reported while a challenger loads. The problem is harmless unless it persists."""

_MAX_BACKOFF = 64
"""Maximum delay before another attempt to load a challenger that failed repeatedly [multiples of
``load_retry_s``]."""


@dataclass(slots=True, eq=False)
class _PendingTable:
    """A routing table that is being built in a thread."""

    split: TrafficSplit
    cancel_event: threading.Event = field(default_factory=threading.Event)
    """Event that is set if the table is no longer needed."""

    future: "Future[tuple[RoutingTable, str]] | None" = None
    """Future of the result of ``build_routing_table``."""

    def has_arms_of(self, split: TrafficSplit) -> bool:
        """Return whether the table has the arms of a split, in the same roles.

        The split may differ in epoch and lease. Its share may differ if both shares are below 1.
        """
        return _arm_key(split) == _arm_key(self.split)


class SplitSync:
    """Polls the traffic split and updates the router's table."""

    def __init__(
        self,
        router: Router,
        source: TrafficSplitSource,
        load: LoadModel,
        *,
        isolate: Isolate | None,
        settings: ServingSettings,
        metrics: Metrics,
        log_event: Callable[[str, str], None],
    ) -> None:
        """Store the arguments; ``run`` starts to poll.

        Args:
            router: Router to update.
            source: Source of the traffic split.
            load: Loads models.
            isolate: Loads a challenger into its own process; None uses ``load``.
            settings: Intervals and timeouts.
            metrics: Metrics for failures and for the state.
            log_event: Called with the name of an event and a sentence, for the log.
        """
        self._router = router
        self._source = source
        self._load = load
        self._isolate = isolate
        self._settings = settings
        self._metrics = metrics
        self._log_event = log_event
        self._known_split = router.table.split
        """Newest accepted split; its table may not be built yet."""

        self._problems: dict[str, str] = {}
        """Current problems: sentences by kind."""

        self._retry_at = 0.0
        """Time before which no model is loaded again after a failure [s, monotonic]."""

        self._num_failures = 0
        """Number of failed attempts to load the challenger of the known split."""

        self._pending_table: _PendingTable | None = None
        # There is at most one read at a time, so that a source that hangs occupies only one thread.
        self._pending_read: Future[TrafficSplit] | None = None
        metrics.source_up.set(1)
        self._update_status()

    @property
    def problems(self) -> list[str]:
        """Current problems, one sentence each."""
        return list(self._problems.values())

    def problem(self, kind: str) -> str:
        """Return the current problem of one kind; "" without one."""
        return self._problems.get(kind, "")

    def has_problem(self, kind: str) -> bool:
        """Return whether there is currently a problem of this kind."""
        return kind in self._problems

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.poll_interval_s)
                await self.poll()
        finally:
            self._abandon_pending_table()

    async def poll(self) -> None:
        """Read the split once, and update the router's table."""
        try:
            new_split = await self._read()
        except RegistryInconsistent as error:
            self._metrics.source_up.set(1)
            self._metrics.registry_findings.set(error.num_findings)
            self.clear_problem("source")
            self.set_problem(
                "registry",
                "Registry entries about what to serve contradict each other, so the last "
                f"consistent version serves: {error}",
            )
        except Exception as error:  # the server survives any error of its source
            self._metrics.source_failures.inc()
            self._metrics.source_up.set(0)
            self.set_problem(
                "source",
                "The traffic split cannot be read, so the last known split stays in force: "
                f"{error}",
            )
        else:
            self._metrics.source_up.set(1)
            self._metrics.registry_findings.set(0)
            self.clear_problem("source")
            self.clear_problem("registry")
            self._on_split(new_split)
        await self._update_table()
        self._update_status()

    async def _read(self) -> TrafficSplit:
        if self._pending_read is None:
            self._pending_read = run_in_background(self._source.read, name="traffic-split")
        awaitable = asyncio.wrap_future(self._pending_read)
        try:
            async with asyncio.timeout(self._settings.registry_timeout_s):
                split = await asyncio.shield(awaitable)
        except TimeoutError:
            if not self._pending_read.done():
                awaitable.add_done_callback(_consume_exception)
                raise TimeoutError(
                    f"no answer within {self._settings.registry_timeout_s:g} s"
                ) from None
            raise
        finally:
            if self._pending_read is not None and self._pending_read.done():
                self._pending_read = None
        return split

    def _on_split(self, new_split: TrafficSplit) -> None:
        """Accept a new split, unless it is outdated or renews a lease that must expire."""
        if self.has_problem("reports") and new_split.is_renewal_of(self._known_split):
            # The reports of this server fail, so the guards do not see its requests. Its lease must
            # expire, although the controller has renewed the lease.
            return
        if is_newer(new_split, self._known_split):
            if new_split.challenger != self._known_split.challenger:
                self.clear_problem("challenger")  # the problem of the previous challenger
            # If only the lease was renewed, a failed load is not retried earlier.
            if _arm_key(new_split) != _arm_key(self._known_split):
                self._retry_at, self._num_failures = 0.0, 0
            self._known_split = new_split
        elif new_split != self._known_split:
            self._metrics.stale_splits.inc()
            self.set_problem(
                "stale",
                f"A traffic split of epoch {new_split.epoch} was ignored, because a different "
                f"split of epoch {self._known_split.epoch} is known.",
            )
            return
        self.clear_problem("stale")

    async def _update_table(self) -> None:
        """Set the router's table for the known split, unless it is already set.

        Loading may take seconds, and a rollback must not wait for it. So this method waits for one
        poll interval only; an unfinished table continues to be built in its thread.
        """
        table, known_split = self._router.table, self._known_split
        if self._pending_table is not None and not self._pending_table.has_arms_of(known_split):
            self._abandon_pending_table()
        if self._pending_table is None:
            if table.split == known_split and not self._lacks_challenger():
                return
            if time.monotonic() < self._retry_at:
                # If only the share or the lease has changed, no model needs to be loaded.
                if _arm_key(known_split) == _arm_key(table.split):
                    self._set_table(replace(table, split=known_split))
                return
            self._pending_table = self._start_building(table)
        future = self._pending_table.future
        assert future is not None, "the build was started"
        awaitable = asyncio.wrap_future(future)
        awaitable.add_done_callback(_consume_exception)
        await asyncio.wait([awaitable], timeout=self._settings.poll_interval_s)
        if not future.done():
            return
        self._pending_table = None
        try:
            new_table, problem = future.result()
        except Exception as error:  # user code may raise anything; the last good table stays
            self._retry_at = time.monotonic() + self._settings.load_retry_s
            self.set_problem(
                "production",
                f"Production {short(known_split.production)} does not load, so the last good "
                f"version serves: {type(error).__name__}: {error}",
            )
            return
        self.clear_problem("production")
        self.set_problem("challenger", problem)
        if problem:
            backoff = min(2**self._num_failures, _MAX_BACKOFF)
            self._retry_at = time.monotonic() + self._settings.load_retry_s * backoff
            self._num_failures += 1
        self._set_table(replace(new_table, split=known_split))

    def _set_table(self, new_table: RoutingTable) -> None:
        table = self._router.table
        if new_table.split == table.split and new_table.challenger is table.challenger:
            return
        self._router.set_table(new_table)
        self._log_event("traffic split", f"epoch {new_table.split.epoch} is in force")

    def _start_building(self, current_table: RoutingTable) -> _PendingTable:
        pending_table = _PendingTable(self._known_split)
        load, isolate, settings = self._load, self._isolate, self._settings

        def build() -> tuple[RoutingTable, str]:
            return build_routing_table(
                pending_table.split,
                load,
                isolate=isolate,
                settings=settings,
                previous_table=current_table,
                cancel_event=pending_table.cancel_event,
            )

        pending_table.future = run_in_background(build, name="loading")
        return pending_table

    def _abandon_pending_table(self) -> None:
        """Abandon the table that is being built. Its models are freed once loading has finished."""
        if self._pending_table is not None:
            self._pending_table.cancel_event.set()
            self._pending_table = None

    def set_problem(self, kind: str, problem: str) -> None:
        """Record the current problem of one kind. Only changes are logged.

        Args:
            kind: Kind of the problem.
            problem: The problem in a sentence; "" clears it, as ``clear_problem`` does.
        """
        if problem == self._problems.get(kind, ""):
            return
        if problem:
            self._problems[kind] = problem
        else:
            del self._problems[kind]
        self._log_event("problem" if problem else "solved", problem or kind)

    def clear_problem(self, kind: str) -> None:
        """Record that there is no problem of one kind."""
        self.set_problem(kind, "")

    def _lacks_challenger(self) -> bool:
        """Return whether the split has a challenger that the router's table does not have."""
        expected_candidate = self._known_split.challenger
        challenger = self._router.table.challenger
        return expected_candidate is not None and (
            challenger is None or challenger.deployed.candidate != expected_candidate
        )

    def _update_status(self) -> None:
        table = self._router.table
        split = self._router.effective_split(table.split)
        if split != table.split:
            self.set_problem(
                "lease", "The lease of the rollout has expired: production serves alone."
            )
        else:
            self.clear_problem("lease")
        self._metrics.epoch.set(split.epoch)
        self._metrics.share.set(split.share if table.challenger is not None else 0)
        self._metrics.version.labels("production").set(table.production.deployed.version)
        is_loading = self._lacks_challenger() and "challenger" not in self._problems
        self.set_problem("loading", LOADING_PROBLEM if is_loading else "")
        challenger = table.challenger
        problem = "" if challenger is None else challenger.deployed.problem
        self.set_problem("challenger process", problem)
        self._metrics.version.labels("challenger").set(
            0 if challenger is None else challenger.deployed.version
        )


def _consume_exception(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()  # prevents a log line about an exception that nobody retrieved


def _arm_key(split: TrafficSplit) -> tuple[str, str | None, bool, bool]:
    """Return what determines the models of a table, and the roles of its arms.

    At share 1, the challenger answers all users, and a shadow gets copies for production.
    """
    return (split.production, split.challenger, split.shadow, split.share >= 1)
