"""Keeps the router at what the source of the weights says, and says when it cannot.

Reading and loading happen in threads; the router is handed a finished table between two requests.
Whatever goes wrong, the last good table stays.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sluice.digests import short
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm
from sluice.serving.background import in_background
from sluice.serving.deployed import Deployed, require_finite
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router, Table
from sluice.serving.settings import ServingSettings
from sluice.serving.weights import WeightsSource, is_news

Load = Callable[[str], Deployed]
"""Returns the model of a candidate digest, or raises ``SluiceError``; called from a thread."""

_MAKE_WAY_S = 0.02
"""Longest wait of a shadow's network for production to be idle; it must end some day."""


def build_table(
    weights: Weights, load: Load, *, settings: ServingSettings, before: Table | None
) -> tuple[Table, str]:
    """Return a table for the weights, and why its challenger is not served ("" when it is).

    Args:
        weights: What to serve.
        load: Loads what ``before`` does not hold already.
        settings: Size of batches.
        before: The table in force.

    Raises:
        SluiceError: Production does not load.
    """
    held = {} if before is None else _arms(before)
    production = held.get(weights.production)
    if production is None:
        deployed = load(weights.production)
        require_finite(deployed)
        production = _arm(deployed, settings)
    challenger, problem = None, ""
    if weights.challenger is not None:
        challenger = held.get(weights.challenger)
        try:
            if challenger is None:
                challenger = _arm(load(weights.challenger), settings)
        except Exception as error:  # a model may be anybody's code, and production must serve
            problem = f"The challenger does not load, production serves alone: {error}"
    if challenger is not None and challenger.deployed.contract != production.deployed.contract:
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
        settings: ServingSettings,
        metrics: Metrics,
        told: Callable[[str, str], None],
    ) -> None:
        """Prepare; ``run`` starts it.

        Args:
            router: What is kept.
            source: Where the weights are.
            load: Loads models.
            settings: Pace and patience.
            metrics: Hears of everything.
            told: Called with an event's name and a sentence, for the log.
        """
        self._router = router
        self._source = source
        self._load = load
        self._settings = settings
        self._metrics = metrics
        self._told = told
        self._known = router.table.weights
        self._problems: dict[str, str] = {}
        self._retry_at = 0.0
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
        while True:
            await asyncio.sleep(self._settings.poll_s)
            await self.poll()

    async def poll(self) -> None:
        """Read once, and serve what was read."""
        try:
            arrived = await self._read()
        except Exception as error:  # the server outlives whatever its source raises
            self._metrics.source_failures.inc()
            self._metrics.source_up.set(0)
            self.note("source", f"The weights cannot be read, the last known good serve: {error}")
        else:
            self._metrics.source_up.set(1)
            self.note("source", "")
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
        if is_news(arrived, self._known):
            self._known = arrived
            self._retry_at = 0.0
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
        """Hand the router a table of the known weights, unless it has one."""
        table = self._router.table
        if table.weights == self._known and "challenger" not in self._problems:
            return
        if time.monotonic() < self._retry_at:
            return
        try:
            made, problem = await self._build(table)
        except Exception as error:  # a model may be anybody's code; the last good table stays
            self._retry_at = time.monotonic() + self._settings.retry_s
            self.note(
                "production",
                f"Production {short(self._known.production)} does not load, the last known good "
                f"serves: {type(error).__name__}: {error}",
            )
            return
        self.note("production", "")
        self.note("challenger", problem)
        if problem:
            self._retry_at = time.monotonic() + self._settings.retry_s
        if made.weights != table.weights or made.challenger is not table.challenger:
            self._router.follow(made)
            self._told("weights", f"epoch {made.weights.epoch} is in force")

    async def _build(self, before: Table) -> tuple[Table, str]:
        known, load, settings = self._known, self._load, self._settings

        def build() -> tuple[Table, str]:
            return build_table(known, load, settings=settings, before=before)

        return await asyncio.wrap_future(in_background(build, name="loading"))

    def note(self, about: str, problem: str) -> None:
        """Note a problem, or that there is none; the log hears of changes only."""
        if problem == self._problems.get(about, ""):
            return
        if problem:
            self._problems[about] = problem
        else:
            del self._problems[about]
        self._told("problem" if problem else "solved", problem or about)

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
        challenger = table.challenger
        self._metrics.version.labels("challenger").set(
            0 if challenger is None else challenger.deployed.version
        )


def _forget(waiting: "asyncio.Future[Any]") -> None:
    if not waiting.cancelled():
        waiting.exception()  # asked, so that nobody complains that it was not


def _arms(table: Table) -> dict[str, Arm]:
    arms = [table.production] + ([] if table.challenger is None else [table.challenger])
    return {arm.deployed.candidate: arm for arm in arms}


def _arm(deployed: Deployed, settings: ServingSettings) -> Arm:
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
