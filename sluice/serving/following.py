"""Keeps the router at what the source of the weights says, and says when it cannot.

Reading and loading happen in threads; the router is handed a finished table between two requests.
Whatever goes wrong, the last good table stays.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.base.digests import short
from sluice.base.errors import RegistryUnsound
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm
from sluice.serving.background import in_background
from sluice.serving.deployed import Deployed, Served, require_finite
from sluice.serving.isolation import Isolate
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router
from sluice.serving.settings import ServingSettings
from sluice.serving.table import Table
from sluice.serving.weights import WeightsSource, is_news

Load = Callable[[str], Deployed]
"""Returns the model of a candidate digest, or raises ``SluiceError``; called from a thread."""

LOADING = "The challenger is still loading, production serves alone."
"""What a server says meanwhile; a problem only when it does not end."""

_MAKE_WAY_S = 0.02
"""Longest wait of a shadow's network for production to be idle; it must end some day."""

_LONGEST_RETRY = 64
"""A challenger that fails again and again is tried after up to so many times the first pause."""


@dataclass(slots=True, eq=False)
class _Building:
    """A table that is being made, in a thread."""

    weights: Weights
    abandoned: threading.Event = field(default_factory=threading.Event)
    made: "Future[tuple[Table, str]] | None" = None

    def is_of(self, weights: Weights) -> bool:
        """Say whether other weights need the very same arms, such as those with a later lease."""
        return _arms_of(weights) == _arms_of(self.weights)


def build_table(
    weights: Weights,
    load: Load,
    *,
    isolate: Isolate | None,
    settings: ServingSettings,
    before: Table | None,
    abandoned: threading.Event,
) -> tuple[Table, str]:
    """Return a table for the weights, and why its challenger is not served ("" when it is).

    Args:
        weights: What to serve.
        load: Loads production into this process, unless ``before`` holds it.
        isolate: Loads a challenger into a process of its own; None takes ``load`` for both.
        settings: Size of batches.
        before: The table in force.
        abandoned: Set when nobody wants the table any more.

    Raises:
        SluiceError: Production does not load.
    """
    production = None if before is None else _holds(before.production, weights.production)
    if production is None:
        deployed = load(weights.production)
        require_finite(deployed)
        production = _arm(deployed, settings)
    challenger, problem = None, ""
    if weights.challenger is not None:
        challenger = None if before is None else _holds(before.challenger, weights.challenger)
        try:
            if challenger is None:
                # Never production's own arm, though it may have been this challenger: what is new
                # stays apart from what is known to be good.
                model: Served = (
                    load(weights.challenger)
                    if isolate is None
                    else isolate(weights.challenger, abandoned)
                )
                challenger = _arm(model, settings)
        except Exception as error:  # a model may be anybody's code, and production must serve
            problem = f"The challenger does not load, production serves alone: {error}"
    if challenger is not None and not challenger.deployed.contract.takes_same(
        production.deployed.contract
    ):
        challenger = None
        problem = "The challenger takes other columns or windows, so that it cannot answer the "
        problem += "same requests; production serves alone."
    shadow = None
    if challenger is not None and weights.shadow:
        arms = (challenger, production) if weights.share < 1 else (production, challenger)
        shadow = _shadow(*arms, settings=settings, before=before)
    table = Table(weights=weights, production=production, challenger=challenger, shadow=shadow)
    return table, problem


class Follower:
    """Reads the weights again and again and hands the router new tables."""

    def __init__(
        self,
        router: Router,
        source: WeightsSource,
        load: Load,
        *,
        isolate: Isolate | None,
        settings: ServingSettings,
        metrics: Metrics,
        told: Callable[[str, str], None],
    ) -> None:
        """Prepare; ``run`` starts it.

        Args:
            router: What is kept.
            source: Where the weights are.
            load: Loads models.
            isolate: Loads challengers; see ``build_table``.
            settings: Pace and patience.
            metrics: Hears of everything.
            told: Called with an event's name and a sentence, for the log.
        """
        self._router = router
        self._source = source
        self._load = load
        self._isolate = isolate
        self._settings = settings
        self._metrics = metrics
        self._told = told
        self._known = router.table.weights
        self._problems: dict[str, str] = {}
        self._retry_at = 0.0
        self._failures = 0
        self._building: _Building | None = None
        # One at a time: a source that hangs must not get a second thread.
        self._reading: Future[Weights] | None = None
        metrics.source_up.set(1)
        self._show()

    @property
    def problems(self) -> list[str]:
        """What is not as the weights want it, in sentences; [] when all is."""
        return list(self._problems.values())

    def problem(self, about: str) -> str:
        """Return what is wrong with one thing; "" when nothing is."""
        return self._problems.get(about, "")

    def has_problem(self, about: str) -> bool:
        """Say whether something is not as the weights want it."""
        return about in self._problems

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.poll_s)
                await self.poll()
        finally:
            self._abandon()

    async def poll(self) -> None:
        """Read once, and serve what was read."""
        try:
            arrived = await self._read()
        except RegistryUnsound as error:
            self._metrics.source_up.set(1)
            self._metrics.registry_findings.set(error.num_findings)
            self.note("source", "")
            self.note(
                "registry",
                "The registry contradicts itself about what is served, the last version that it "
                f"agreed about serves: {error}",
            )
        except Exception as error:  # the server outlives whatever its source raises
            self._metrics.source_failures.inc()
            self._metrics.source_up.set(0)
            self.note("source", f"The weights cannot be read, the last known good serve: {error}")
        else:
            self._metrics.source_up.set(1)
            self._metrics.registry_findings.set(0)
            self.note("source", "")
            self.note("registry", "")
            self._hear(arrived)
        await self._serve()
        self._show()

    async def _read(self) -> Weights:
        if self._reading is None:
            self._reading = in_background(self._source.read, name="weights")
        waiting = asyncio.wrap_future(self._reading)
        try:
            async with asyncio.timeout(self._settings.source_timeout_s):
                weights = await asyncio.shield(waiting)
        except TimeoutError:
            if not self._reading.done():
                waiting.add_done_callback(_forget)
                raise TimeoutError(
                    f"no answer within {self._settings.source_timeout_s:g} s"
                ) from None
            raise
        finally:
            if self._reading is not None and self._reading.done():
                self._reading = None
        return weights

    def _hear(self, arrived: Weights) -> None:
        if self.has_problem("reports") and arrived.renews(self._known):
            return  # whoever renewed it hears nothing from here: a challenger unseen runs out
        if is_news(arrived, self._known):
            if arrived.challenger != self._known.challenger:
                self.note("challenger", "")  # it was about another one
            if _arms_of(arrived) != _arms_of(self._known):  # a later lease mends no model
                self._retry_at, self._failures = 0.0, 0
            self._known = arrived
        elif arrived != self._known:
            self._metrics.stale_weights.inc()
            self.note(
                "stale",
                f"Weights of epoch {arrived.epoch} arrived and are ignored: others of epoch "
                f"{self._known.epoch} are known.",
            )
            return
        self.note("stale", "")

    async def _serve(self) -> None:
        """Hand the router a table of the known weights, unless it has one.

        Loading may take seconds, and a rollback must not wait for it: whoever is not ready by the
        next poll goes on in its thread.
        """
        table, known = self._router.table, self._known
        if self._building is not None and not self._building.is_of(known):
            self._abandon()
        if self._building is None:
            if table.weights == known and not self._lacks_challenger():
                return
            if time.monotonic() < self._retry_at:
                if _arms_of(known) == _arms_of(table.weights):  # a step or a lease waits for none
                    self._follow(replace(table, weights=known))
                return
            self._building = self._build(table)
        future = self._building.made
        assert future is not None, "it was begun"
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_forget)
        await asyncio.wait([waiting], timeout=self._settings.poll_s)
        if not future.done():
            return
        self._building = None
        try:
            made, problem = future.result()
        except Exception as error:  # a model may be anybody's code; the last good table stays
            self._retry_at = time.monotonic() + self._settings.retry_s
            self.note(
                "production",
                f"Production {short(known.production)} does not load, the last known good "
                f"serves: {type(error).__name__}: {error}",
            )
            return
        self.note("production", "")
        self.note("challenger", problem)
        if problem:
            self._retry_at = time.monotonic() + self._settings.retry_s * min(
                2**self._failures, _LONGEST_RETRY
            )
            self._failures += 1
        self._follow(replace(made, weights=known))

    def _follow(self, made: Table) -> None:
        before = self._router.table
        if made.weights == before.weights and made.challenger is before.challenger:
            return
        self._router.follow(made)
        self._told("weights", f"epoch {made.weights.epoch} is in force")

    def _build(self, before: Table) -> _Building:
        building = _Building(self._known)
        load, isolate, settings = self._load, self._isolate, self._settings

        def build() -> tuple[Table, str]:
            return build_table(
                building.weights,
                load,
                isolate=isolate,
                settings=settings,
                before=before,
                abandoned=building.abandoned,
            )

        building.made = in_background(build, name="loading")
        return building

    def _abandon(self) -> None:
        """Want what is being made no more; what has come of it ends by itself."""
        if self._building is not None:
            self._building.abandoned.set()
            self._building = None

    def note(self, about: str, problem: str) -> None:
        """Note a problem, or that there is none; the log hears of changes only."""
        if problem == self._problems.get(about, ""):
            return
        if problem:
            self._problems[about] = problem
        else:
            del self._problems[about]
        self._told("problem" if problem else "solved", problem or about)

    def _lacks_challenger(self) -> bool:
        wanted, has = self._known.challenger, self._router.table.challenger
        return wanted is not None and _holds(has, wanted) is None

    def _show(self) -> None:
        table = self._router.table
        weights = self._router.in_force(table.weights)
        if weights != table.weights:
            self.note("lease", "The lease of the rollout is over: production serves alone.")
        else:
            self.note("lease", "")
        self._metrics.epoch.set(weights.epoch)
        self._metrics.share.set(weights.share if table.challenger is not None else 0)
        self._metrics.version.labels("production").set(table.production.deployed.version)
        loading = self._lacks_challenger() and "challenger" not in self._problems
        self.note("loading", LOADING if loading else "")
        challenger = table.challenger
        problem = "" if challenger is None else challenger.deployed.problem
        self.note("challenger process", problem)
        self._metrics.version.labels("challenger").set(
            0 if challenger is None else challenger.deployed.version
        )


def _forget(waiting: "asyncio.Future[Any]") -> None:
    if not waiting.cancelled():
        waiting.exception()  # asked, so that nobody complains that it was not


def _arms_of(weights: Weights) -> tuple[str, str | None, bool, bool]:
    return (weights.production, weights.challenger, weights.shadow, weights.share >= 1)


def _holds(arm: Arm | None, candidate: str) -> Arm | None:
    return arm if arm is not None and arm.deployed.candidate == candidate else None


def _arm(deployed: Served, settings: ServingSettings) -> Arm:
    return Arm(deployed, max_windows=settings.max_batch_windows, pause=None)


def _shadow(copied: Arm, busy: Arm, *, settings: ServingSettings, before: Table | None) -> Arm:
    """Return an arm with the networks of ``copied`` that makes way for ``busy``."""
    if (
        before is not None
        and before.shadow is not None
        and before.shadow.deployed is copied.deployed
        and busy in (before.production, before.challenger)
    ):
        return before.shadow
    idle = busy.idle  # the event alone: the thread must not hold the arm
    return Arm(
        copied.deployed,
        max_windows=settings.max_batch_windows,
        pause=lambda: idle.wait(_MAKE_WAY_S),
    )
