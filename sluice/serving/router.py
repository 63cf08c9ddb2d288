"""Routes each request: sticky assignment to an arm, fallback to production, shadow requests.

A request keeps the table it began with, so an exchange of the table during a request fails
neither. A fault of the challenger is counted for the challenger, even when the fallback hides it
from the client.
"""

import time
from datetime import datetime

from sluice.registry.client_secret import client_of, network_of
from sluice.registry.readonly import Clock
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.samples import ArmName
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.arm import ArmWorker
from sluice.serving.arm_comparison import ArmComparison
from sluice.serving.arm_result import (
    ArmResult,
    RoutedPrediction,
    prediction_error,
    routed_prediction,
    try_arm,
)
from sluice.serving.background_requests import BackgroundRequests
from sluice.serving.contract import PredictRequest
from sluice.serving.crowding import Crowding
from sluice.serving.metrics import Metrics
from sluice.serving.random_pool import RandomPool
from sluice.serving.request_sampler import RequestSampler
from sluice.serving.routing_table import RequestContext, RoutingTable
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.settings import ServingSettings
from sluice.serving.step_counters import ARMS, NO_FAULTS, GuardFaults, StepCounters
from sluice.serving.sticky import is_chosen


class Router:
    """Routes each request by the table in force, and counts the results."""

    def __init__(
        self,
        table: RoutingTable,
        *,
        settings: ServingSettings,
        clock: Clock,
        metrics: Metrics,
        buffer: SampleBuffer,
    ) -> None:
        self._table = table
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._random = RandomPool()
        self._expired_at: datetime | None = None
        self._crowding = {arm: Crowding() for arm in ARMS}
        self.counters = StepCounters(table.compared_split, now=clock())
        self.background = BackgroundRequests(settings)
        self._comparison = ArmComparison(
            self.counters, self.background, settings=settings, metrics=metrics
        )
        self._sampling = RequestSampler(
            buffer, self.counters.clients, self.background, settings=settings, clock=clock
        )
        metrics.register_step_counts(self.window)

    @property
    def table(self) -> RoutingTable:
        """Routing table of new requests."""
        return self._table

    def set_table(self, table: RoutingTable) -> None:
        """Use another table; requests in progress finish with the one they began with."""
        self._table = table
        self.counters.set_split(table.compared_split, now=self._clock())

    def in_force(self, split: TrafficSplit) -> TrafficSplit:
        """Return the split, or production alone once its lease has expired.

        An expired lease stays expired when the clock goes back.
        """
        if split.expires_at is None:
            return split
        if split.is_expired(self._clock()):
            self._expired_at = split.expires_at
        is_over = self._expired_at is not None and split.expires_at <= self._expired_at
        return split.production_only() if is_over else split

    async def route(
        self, request: PredictRequest, *, address: str, deadline: float
    ) -> RoutedPrediction:
        """Predict with the user's arm; without a user the arm is drawn at random.

        Args:
            request: Parsed request.
            address: Client address.
            deadline: Latest time of the response [s, monotonic].

        Raises:
            InvalidInput: The windows violate the contract, or the prediction is not finite.
            ModelFailed: Production raised.
            PredictionTimeout: Production did not answer before the deadline.
        """
        table = self._table
        split = self.in_force(table.split)
        compared = self.in_force(table.compared_split)
        x_NLD = table.production.deployed.contract.tensor(request)
        client = client_of(request.user, address)
        context = RequestContext(table, split, compared, request, x_NLD, client, address)
        challenger, failed, ours = table.challenger, None, NO_FAULTS
        if (
            challenger is not None
            and split.rollout is not None
            and self._is_chosen(request.user, split)
        ):
            result, is_crowded = await self._try_for_client(
                challenger,
                context,
                name="challenger",
                timeout_s=min(self._settings.challenger_deadline_s, deadline - time.monotonic()),
                max_waiting=self._settings.max_challenger_queue,
            )
            ours = self._count("challenger", result, context, is_crowded=is_crowded)
            self._sampling.record(context, "challenger", result)
            if result.fault is None:
                if split.shadow and table.shadowed == "production":
                    self._comparison.copy(context, ours)
                else:
                    self._comparison.ask_other("challenger", ours, context)
                return routed_prediction(result, "challenger", challenger, split, failed=None)
            failed = result
            self._metrics.fallbacks.inc()
        result, is_crowded = await self._try_for_client(
            table.production,
            context,
            name="production",
            timeout_s=deadline - time.monotonic(),
            max_waiting=self._settings.max_in_flight,
        )
        if failed is None:
            theirs = self._count("production", result, context, is_crowded=is_crowded)
            self._sampling.record(context, "production", result)
            # Also failed requests of production; otherwise only the challenger could have faults of
            # its own.
            if split.shadow and table.shadowed == "challenger":
                self._comparison.copy(context, theirs)
            else:
                self._comparison.ask_other("production", theirs, context)
        else:
            # The fallback is the other half of the pair: where both fail, the challenger is no
            # worse.
            theirs = self._comparison.faults(result)
            if split.shadow:
                self.counters.count("production", split=compared, seconds=None, fault=result.fault)
                self._comparison.compare_copies(context, ours=ours, theirs=theirs)
            elif self._comparison.can_ask(
                ours, context
            ):  # same limit as for production's faults, else only these would count
                self._comparison.compare("challenger", ours, theirs, context)
        if result.fault is not None:
            raise prediction_error(result)
        return routed_prediction(result, "production", table.production, split, failed=failed)

    def window(self) -> TrafficCounts | None:
        """Return the counts since the step began; None without a rollout."""
        return self.counters.window(self._clock())

    async def close(self) -> None:
        """Cancel the waiting shadow requests."""
        await self.background.close()

    def _is_chosen(self, user: str | None, split: TrafficSplit) -> bool:
        """Return whether the challenger answers: fixed for a user, otherwise random."""
        if user is not None:
            return is_chosen(user, salt=split.salt, share=split.share)
        # Drawn here, and not derived from the request: a client could repeat a value, such as a
        # trace id, that reached the challenger once.
        return self._random.uniform() < split.share

    async def _try_for_client(
        self,
        arm: ArmWorker,
        context: RequestContext,
        *,
        name: ArmName,
        timeout_s: float,
        max_waiting: int,
    ) -> tuple[ArmResult, bool]:
        """Predict with an arm; return also whether the request waited behind another network's."""
        crowding = self._crowding[name]
        network, windows = network_of(context.address), len(context.x_NLD)
        is_crowded = crowding.enter(network, windows)
        result = await try_arm(
            arm, context.x_NLD, name=name, timeout_s=timeout_s, max_waiting=max_waiting
        )
        linger_s = self._settings.challenger_deadline_s
        crowding.leave(network, windows, result, linger_s=linger_s)
        return result, is_crowded

    def _count(
        self, arm: ArmName, result: ArmResult, context: RequestContext, *, is_crowded: bool
    ) -> GuardFaults:
        """Count a request of an arm; return its faults if it is compared."""
        is_compared = context.split.shadow or self._comparison.compare_request(
            arm, context, is_crowded=is_crowded
        )
        self.counters.count(
            arm,
            split=context.compared_split,
            seconds=result.computed_s,
            fault=self._comparison.fault(result),
            address=context.address,
            is_usual=is_compared,
        )
        self._metrics.count(arm, seconds=result.seconds, fault=result.fault)
        return self._comparison.faults(result) if is_compared else NO_FAULTS
