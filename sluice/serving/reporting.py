"""Tells the rollout what this server sees: its state, its counts, its samples, every second.

Writing happens in a thread, one at a time; a registry that hangs or is gone costs no request.
"""

import asyncio
from concurrent.futures import Future
from datetime import datetime
from typing import Protocol

from sluice.base.errors import SamplesRefused
from sluice.registry.reading import Clock
from sluice.rollout.samples import Report, ServerState
from sluice.serving.background import in_background
from sluice.serving.following import Follower
from sluice.serving.metrics import Metrics
from sluice.serving.recorder import Recorder
from sluice.serving.router import Router
from sluice.serving.settings import ServingSettings


class ReportSink(Protocol):
    """Where reports go; called from a thread, may block or raise ``SluiceError``."""

    def write(self, report: Report) -> None:
        """Keep a report; after ``SamplesRefused`` all of it but its samples is kept."""


class Reporter:
    """Reports of one server."""

    def __init__(
        self,
        sink: ReportSink,
        *,
        server: str,
        model: str,
        router: Router,
        follower: Follower,
        recorder: Recorder,
        metrics: Metrics,
        settings: ServingSettings,
        clock: Clock,
    ) -> None:
        """Prepare; ``run`` starts it.

        Args:
            sink: Where reports go.
            server: Id of this start of the server.
            model: Its name.
            router: Whose counts are told.
            follower: Knows what is not as it should be.
            recorder: Keeps the samples.
            metrics: Hears of reports that failed.
            settings: Pace and patience.
            clock: Dates the reports.
        """
        self._sink = sink
        self._server = server
        self._model = model
        self._router = router
        self._follower = follower
        self._recorder = recorder
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._started_at: datetime = clock()
        self._writing: Future[None] | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report(draining=False)
            await asyncio.sleep(self._settings.report_s)

    async def report(self, *, draining: bool) -> None:
        """Report once, unless the last one is still being written; the final one waits for it."""
        if not await self._is_written(patience_s=self._settings.source_timeout_s * draining):
            self._failed("the registry has not answered the last one")
            return
        samples = self._recorder.take()
        report = Report(state=self._state(draining), window=self._router.window(), samples=samples)
        self._writing = in_background(lambda: self._sink.write(report), name="reporting")
        try:
            async with asyncio.timeout(self._settings.source_timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._writing))
        except TimeoutError:
            self._failed(f"no answer within {self._settings.source_timeout_s:g} s")
        except SamplesRefused as error:  # given back, they would be refused for ever
            self._follower.note("reports", "")
            self._follower.note("samples", str(error))
        except Exception as error:  # the server outlives whatever the registry raises
            self._recorder.give_back(samples)
            self._failed(f"{type(error).__name__}: {error}")
        else:
            self._follower.note("reports", "")
            if samples:
                self._follower.note("samples", "")

    async def _is_written(self, *, patience_s: float) -> bool:
        if self._writing is None or self._writing.done():
            return True
        written = asyncio.wrap_future(self._writing)
        written.add_done_callback(lambda told: told.cancelled() or told.exception())
        done, _ = await asyncio.wait([written], timeout=patience_s)
        return bool(done)

    def _failed(self, why: str) -> None:
        self._metrics.report_failures.inc()
        self._follower.note(
            "reports",
            f"What this server sees is not told, so no rollout goes on, and here its lease runs "
            f"out: {why}",
        )

    def _state(self, draining: bool) -> ServerState:
        table = self._router.table
        challenger = table.challenger
        return ServerState(
            server=self._server,
            model=self._model,
            at=self._clock(),
            started_at=self._started_at,
            epoch=table.weights.epoch,
            production=table.production.deployed.version,
            challenger=None if challenger is None else challenger.deployed.version,
            challenger_problem=self._follower.problem("challenger"),
            problems=tuple(self._follower.problems),
            draining=draining,
        )
