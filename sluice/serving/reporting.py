"""Reports the state, counts and samples of this server to the registry, every second.

Writing runs in a thread, one at a time; a registry that hangs or is gone costs no request.
"""

import asyncio
from concurrent.futures import Future
from datetime import datetime
from typing import Protocol

from sluice.base.errors import SamplesRefused
from sluice.registry.readonly import Clock
from sluice.rollout.samples import ServerReport, ServerState
from sluice.serving.background import in_background
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.settings import ServingSettings
from sluice.serving.split_sync import SplitSync


class ReportSink(Protocol):
    """Destination of reports; called from a thread, may block or raise ``SluiceError``."""

    def write(self, report: ServerReport) -> None:
        """Store a report; after ``SamplesRefused`` everything but its samples is stored."""


class Reporter:
    """Sends the reports of one server."""

    def __init__(
        self,
        sink: ReportSink,
        *,
        server: str,
        model: str,
        router: Router,
        split_sync: SplitSync,
        buffer: SampleBuffer,
        metrics: Metrics,
        settings: ServingSettings,
        clock: Clock,
    ) -> None:
        """Prepare; ``run`` starts it.

        Args:
            sink: Destination of the reports.
            server: Id of this start of the server.
            model: Name of the model.
            router: Its counts are reported.
            split_sync: Its problems are reported.
            buffer: Its samples are reported.
            metrics: Counts failed reports.
            settings: Interval and timeout.
            clock: Dates the reports.
        """
        self._sink = sink
        self._server = server
        self._model = model
        self._router = router
        self._split_sync = split_sync
        self._buffer = buffer
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._started_at: datetime = clock()
        self._writing: Future[None] | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report(draining=False)
            await asyncio.sleep(self._settings.report_interval_s)

    async def report(self, *, draining: bool) -> None:
        """Report once, unless the last report is still being written.

        The final report (``draining``) waits for it.
        """
        if not await self._is_written(timeout_s=self._settings.registry_timeout_s * draining):
            self._failed("the registry has not answered the last report")
            return
        samples = self._buffer.take()
        report = ServerReport(
            state=self._state(draining), window=self._router.window(), samples=samples
        )
        self._writing = in_background(lambda: self._sink.write(report), name="reporting")
        try:
            async with asyncio.timeout(self._settings.registry_timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._writing))
        except TimeoutError:
            self._failed(f"no answer within {self._settings.registry_timeout_s:g} s")
        except SamplesRefused as error:  # not given back: they would be refused again
            self._split_sync.note("reports", "")
            self._split_sync.note("samples", str(error))
        except Exception as error:  # the server survives any error of the registry
            self._buffer.give_back(samples)
            self._failed(f"{type(error).__name__}: {error}")
        else:
            self._split_sync.note("reports", "")
            if samples:
                self._split_sync.note("samples", "")

    async def _is_written(self, *, timeout_s: float) -> bool:
        if self._writing is None or self._writing.done():
            return True
        written = asyncio.wrap_future(self._writing)
        written.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait([written], timeout=timeout_s)
        return bool(done)

    def _failed(self, why: str) -> None:
        self._metrics.report_failures.inc()
        self._split_sync.note(
            "reports",
            f"Reports fail, so the rollout cannot advance and its lease expires on this server: "
            f"{why}",
        )

    def _state(self, draining: bool) -> ServerState:
        table = self._router.table
        challenger = table.challenger
        return ServerState(
            server=self._server,
            model=self._model,
            at=self._clock(),
            started_at=self._started_at,
            epoch=table.split.epoch,
            production=table.production.deployed.version,
            challenger=None if challenger is None else challenger.deployed.version,
            challenger_problem=self._split_sync.problem("challenger"),
            problems=tuple(self._split_sync.problems),
            draining=draining,
        )
