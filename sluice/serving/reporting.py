"""Reports the state, counts and samples of this server to the registry at a fixed interval.

Reports are written in a thread, one at a time, so a registry that hangs or cannot be reached
delays no request.
"""

import asyncio
from concurrent.futures import Future
from datetime import datetime
from typing import Protocol

from sluice.base.errors import SamplesRefused
from sluice.registry.readonly import Clock
from sluice.rollout.samples import ServerReport, ServerState
from sluice.serving.background import run_in_background
from sluice.serving.metrics import Metrics
from sluice.serving.router import Router
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.settings import ServingSettings
from sluice.serving.split_sync import SplitSync


class ReportSink(Protocol):
    """Destination of reports. It is called from a thread, may block, and may raise SluiceError."""

    def write(self, report: ServerReport) -> None:
        """Store a report. If ``SamplesRefused`` is raised, only the samples are not stored."""


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
        """Store the arguments; ``run`` starts to report.

        Args:
            sink: Destination of the reports.
            server: Id of the server, new at each start.
            model: Name of the model.
            router: Router whose counts are reported.
            split_sync: Object whose problems are reported.
            buffer: Buffer whose samples are reported.
            metrics: Metrics that count failed reports.
            settings: Interval and timeout of the reports.
            clock: Clock that dates the reports.
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
        self._last_write: Future[None] | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report(is_final=False)
            await asyncio.sleep(self._settings.report_interval_s)

    async def report(self, *, is_final: bool) -> None:
        """Report once, unless the previous report is still being written.

        Args:
            is_final: Whether this is the final report, which waits for the previous report.
        """
        wait_s = self._settings.registry_timeout_s if is_final else 0.0
        if not await self._wait_for_last_write(timeout_s=wait_s):
            self._report_failure("the registry has not answered the last report")
            return
        samples = self._buffer.take()
        report = ServerReport(
            state=self._state(is_draining=is_final),
            counts=self._router.traffic_counts(),
            samples=samples,
        )
        self._last_write = run_in_background(lambda: self._sink.write(report), name="reporting")
        try:
            async with asyncio.timeout(self._settings.registry_timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._last_write))
        except TimeoutError:
            self._report_failure(f"no answer within {self._settings.registry_timeout_s:g} s")
        except SamplesRefused as error:  # samples are dropped: they would be refused again
            self._split_sync.clear_problem("reports")
            self._split_sync.set_problem("samples", str(error))
        except Exception as error:  # the server survives any error of the registry
            self._buffer.give_back(samples)
            self._report_failure(f"{type(error).__name__}: {error}")
        else:
            self._split_sync.clear_problem("reports")
            if samples:
                self._split_sync.clear_problem("samples")

    async def _wait_for_last_write(self, *, timeout_s: float) -> bool:
        """Wait until the last report is written; return False if the timeout passed."""
        if self._last_write is None or self._last_write.done():
            return True
        last_write = asyncio.wrap_future(self._last_write)
        # The callback retrieves the exception, which asyncio would otherwise log.
        last_write.add_done_callback(lambda future: future.cancelled() or future.exception())
        finished_futures, _ = await asyncio.wait([last_write], timeout=timeout_s)
        return bool(finished_futures)

    def _report_failure(self, why: str) -> None:
        self._metrics.report_failures.inc()
        self._split_sync.set_problem(
            "reports",
            "Reports to the registry fail. A rollout in progress cannot advance, and its lease "
            f"expires on this server. Error: {why}",
        )

    def _state(self, *, is_draining: bool) -> ServerState:
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
            draining=is_draining,
        )
