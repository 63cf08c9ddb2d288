"""Keeps the router's table in sync with the traffic split, and reports when it cannot.

Reading and loading run in threads; the router gets a finished table between two requests. On any
failure the last good table stays.
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
from sluice.serving.arm import ArmWorker
from sluice.serving.background import in_background
from sluice.serving.deployed import DeployedModel, ServedModel, require_finite
from sluice.serving.isolation import Isolate
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router
from sluice.serving.routing_table import RoutingTable
from sluice.serving.settings import ServingSettings
from sluice.serving.traffic_split import TrafficSplitSource, is_newer

LoadModel = Callable[[str], DeployedModel]
"""Loads the model of a candidate digest, or raises ``SluiceError``; called from a thread."""

LOADING = "The challenger is still loading; production serves alone."
"""Problem reported while a challenger loads; a real problem only when it does not end."""

_MAX_YIELD_S = 0.02
"""Longest time that a shadow network waits for production to be idle, so that it ends
eventually."""

_MAX_BACKOFF = 64
"""Largest factor of the retry delay for a challenger that fails repeatedly."""


@dataclass(slots=True, eq=False)
class _PendingTable:
    """A routing table that is being built in a thread."""

    split: TrafficSplit
    abandoned: threading.Event = field(default_factory=threading.Event)
    future: "Future[tuple[RoutingTable, str]] | None" = None

    def is_of(self, split: TrafficSplit) -> bool:
        """Return whether another split needs the same arms, for example with a renewed lease."""
        return _arm_key(split) == _arm_key(self.split)


def build_routing_table(
    split: TrafficSplit,
    load: LoadModel,
    *,
    isolate: Isolate | None,
    settings: ServingSettings,
    before: RoutingTable | None,
    abandoned: threading.Event,
) -> tuple[RoutingTable, str]:
    """Build the routing table of a split.

    Args:
        split: Traffic split to serve.
        load: Loads production into this process, unless ``before`` has it.
        isolate: Loads a challenger into its own process; None uses ``load`` for both.
        settings: Batch size.
        before: Table in force.
        abandoned: Set when the table is not needed any more.

    Returns:
        The table, and why its challenger is not served ("" if it is).

    Raises:
        SluiceError: Production does not load.
    """
    production = None if before is None else _if_candidate(before.production, split.production)
    if production is None:
        deployed = load(split.production)
        require_finite(deployed)
        production = _arm(deployed, settings)
    challenger, problem = None, ""
    if split.challenger is not None:
        challenger = None if before is None else _if_candidate(before.challenger, split.challenger)
        try:
            if challenger is None:
                # Never reuse production's arm, even if it has the same candidate: a challenger
                # stays isolated from the version known to be good.
                model: ServedModel = (
                    load(split.challenger)
                    if isolate is None
                    else isolate(split.challenger, abandoned)
                )
                challenger = _arm(model, settings)
        except Exception as error:  # user code may raise anything, and production must keep serving
            problem = f"The challenger does not load; production serves alone: {error}"
    if challenger is not None and not challenger.deployed.contract.takes_same(
        production.deployed.contract
    ):
        challenger = None
        problem = "The challenger takes other columns or windows, so it cannot answer the same "
        problem += "requests; production serves alone."
    shadow = None
    if challenger is not None and split.shadow:
        arms = (challenger, production) if split.share < 1 else (production, challenger)
        shadow = _shadow(*arms, settings=settings, before=before)
    table = RoutingTable(split=split, production=production, challenger=challenger, shadow=shadow)
    return table, problem


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
        """Prepare; ``run`` starts it.

        Args:
            router: Router to update.
            source: Source of the traffic split.
            load: Loads models.
            isolate: Loads challengers; see ``build_routing_table``.
            settings: Intervals and timeouts.
            metrics: Counts failures and reports the state.
            log_event: Called with an event's name and a sentence, for the log.
        """
        self._router = router
        self._source = source
        self._load = load
        self._isolate = isolate
        self._settings = settings
        self._metrics = metrics
        self._log_event = log_event
        self._known = router.table.split
        self._problems: dict[str, str] = {}
        self._retry_at = 0.0
        self._failures = 0
        self._building: _PendingTable | None = None
        # One read at a time: a hanging source must not get a second thread.
        self._reading: Future[TrafficSplit] | None = None
        metrics.source_up.set(1)
        self._update_status()

    @property
    def problems(self) -> list[str]:
        """Present problems, one sentence each; empty without any."""
        return list(self._problems.values())

    def problem(self, about: str) -> str:
        """Return the present problem of one kind; empty without one."""
        return self._problems.get(about, "")

    def has_problem(self, about: str) -> bool:
        """Return whether a problem of this kind is present."""
        return about in self._problems

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.poll_interval_s)
                await self.poll()
        finally:
            self._abandon()

    async def poll(self) -> None:
        """Read the split once, and serve it."""
        try:
            arrived = await self._read()
        except RegistryInconsistent as error:
            self._metrics.source_up.set(1)
            self._metrics.registry_findings.set(error.num_findings)
            self.note("source", "")
            self.note(
                "registry",
                "The registry is inconsistent about what to serve; the last consistent version "
                f"serves: {error}",
            )
        except Exception as error:  # the server survives any error of its source
            self._metrics.source_failures.inc()
            self._metrics.source_up.set(0)
            self.note(
                "source", f"The traffic split cannot be read; the last known one stays: {error}"
            )
        else:
            self._metrics.source_up.set(1)
            self._metrics.registry_findings.set(0)
            self.note("source", "")
            self.note("registry", "")
            self._on_split(arrived)
        await self._serve()
        self._update_status()

    async def _read(self) -> TrafficSplit:
        if self._reading is None:
            self._reading = in_background(self._source.read, name="traffic-split")
        waiting = asyncio.wrap_future(self._reading)
        try:
            async with asyncio.timeout(self._settings.registry_timeout_s):
                split = await asyncio.shield(waiting)
        except TimeoutError:
            if not self._reading.done():
                waiting.add_done_callback(_consume_exception)
                raise TimeoutError(
                    f"no answer within {self._settings.registry_timeout_s:g} s"
                ) from None
            raise
        finally:
            if self._reading is not None and self._reading.done():
                self._reading = None
        return split

    def _on_split(self, arrived: TrafficSplit) -> None:
        if self.has_problem("reports") and arrived.renews(self._known):
            return  # the renewal ignores this server, whose reports fail; its lease must expire
        if is_newer(arrived, self._known):
            if arrived.challenger != self._known.challenger:
                self.note("challenger", "")  # it was about another challenger
            if _arm_key(arrived) != _arm_key(self._known):  # a renewed lease is no reason to retry
                self._retry_at, self._failures = 0.0, 0
            self._known = arrived
        elif arrived != self._known:
            self._metrics.stale_splits.inc()
            self.note(
                "stale",
                f"A traffic split of epoch {arrived.epoch} was ignored: another one of epoch "
                f"{self._known.epoch} is known.",
            )
            return
        self.note("stale", "")

    async def _serve(self) -> None:
        """Give the router a table for the known split, unless it has one.

        Loading may take seconds, and a rollback must not wait for it: an unfinished build
        continues in its thread.
        """
        table, known = self._router.table, self._known
        if self._building is not None and not self._building.is_of(known):
            self._abandon()
        if self._building is None:
            if table.split == known and not self._lacks_challenger():
                return
            if time.monotonic() < self._retry_at:
                if _arm_key(known) == _arm_key(table.split):  # a new step or lease needs no model
                    self._set_table(replace(table, split=known))
                return
            self._building = self._build(table)
        future = self._building.future
        assert future is not None, "the build was started"
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_consume_exception)
        await asyncio.wait([waiting], timeout=self._settings.poll_interval_s)
        if not future.done():
            return
        self._building = None
        try:
            made, problem = future.result()
        except Exception as error:  # user code may raise anything; the last good table stays
            self._retry_at = time.monotonic() + self._settings.load_retry_s
            self.note(
                "production",
                f"Production {short(known.production)} does not load; the last known good "
                f"version serves: {type(error).__name__}: {error}",
            )
            return
        self.note("production", "")
        self.note("challenger", problem)
        if problem:
            self._retry_at = time.monotonic() + self._settings.load_retry_s * min(
                2**self._failures, _MAX_BACKOFF
            )
            self._failures += 1
        self._set_table(replace(made, split=known))

    def _set_table(self, made: RoutingTable) -> None:
        before = self._router.table
        if made.split == before.split and made.challenger is before.challenger:
            return
        self._router.set_table(made)
        self._log_event("traffic split", f"epoch {made.split.epoch} is in force")

    def _build(self, before: RoutingTable) -> _PendingTable:
        building = _PendingTable(self._known)
        load, isolate, settings = self._load, self._isolate, self._settings

        def build() -> tuple[RoutingTable, str]:
            return build_routing_table(
                building.split,
                load,
                isolate=isolate,
                settings=settings,
                before=before,
                abandoned=building.abandoned,
            )

        building.future = in_background(build, name="loading")
        return building

    def _abandon(self) -> None:
        """Abandon the table that is being built; its models are freed once it is finished."""
        if self._building is not None:
            self._building.abandoned.set()
            self._building = None

    def note(self, about: str, problem: str) -> None:
        """Record a problem, or with an empty text that it is solved; only changes are logged."""
        if problem == self._problems.get(about, ""):
            return
        if problem:
            self._problems[about] = problem
        else:
            del self._problems[about]
        self._log_event("problem" if problem else "solved", problem or about)

    def _lacks_challenger(self) -> bool:
        wanted, has = self._known.challenger, self._router.table.challenger
        return wanted is not None and _if_candidate(has, wanted) is None

    def _update_status(self) -> None:
        table = self._router.table
        split = self._router.in_force(table.split)
        if split != table.split:
            self.note("lease", "The lease of the rollout has expired: production serves alone.")
        else:
            self.note("lease", "")
        self._metrics.epoch.set(split.epoch)
        self._metrics.share.set(split.share if table.challenger is not None else 0)
        self._metrics.version.labels("production").set(table.production.deployed.version)
        loading = self._lacks_challenger() and "challenger" not in self._problems
        self.note("loading", LOADING if loading else "")
        challenger = table.challenger
        problem = "" if challenger is None else challenger.deployed.problem
        self.note("challenger process", problem)
        self._metrics.version.labels("challenger").set(
            0 if challenger is None else challenger.deployed.version
        )


def _consume_exception(waiting: "asyncio.Future[Any]") -> None:
    if not waiting.cancelled():
        waiting.exception()  # retrieved, so that asyncio does not log it as never retrieved


def _arm_key(split: TrafficSplit) -> tuple[str, str | None, bool, bool]:
    return (split.production, split.challenger, split.shadow, split.share >= 1)


def _if_candidate(arm: ArmWorker | None, candidate: str) -> ArmWorker | None:
    return arm if arm is not None and arm.deployed.candidate == candidate else None


def _arm(deployed: ServedModel, settings: ServingSettings) -> ArmWorker:
    return ArmWorker(deployed, max_windows=settings.max_batch_windows, pause=None)


def _shadow(
    copied: ArmWorker, busy: ArmWorker, *, settings: ServingSettings, before: RoutingTable | None
) -> ArmWorker:
    """Return an arm with the networks of ``copied`` that yields to ``busy``."""
    if (
        before is not None
        and before.shadow is not None
        and before.shadow.deployed is copied.deployed
        and busy in (before.production, before.challenger)
    ):
        return before.shadow
    idle = busy.idle  # the event only: the thread must not keep the arm alive
    return ArmWorker(
        copied.deployed,
        max_windows=settings.max_batch_windows,
        pause=lambda: idle.wait(_MAX_YIELD_S),
    )
