"""Routes each request: sticky assignment to an arm, fallback to production, shadow requests.

A request uses the routing table that was in force when it began, so replacing the table does not
affect requests in progress. If the challenger fails, production answers in its place, and the
fault is counted for the challenger although the client does not see it.
"""

import time
from datetime import datetime

from sluice.registry.client_names import client_of, subnet_of
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
from sluice.serving.contract import InputContract
from sluice.serving.crowding import Crowding
from sluice.serving.decoding import RequestDecoder
from sluice.serving.metrics import Metrics
from sluice.serving.model_arrays import ModelArrays, count_elements
from sluice.serving.random_pool import RandomPool
from sluice.serving.request_sampler import RequestSampler
from sluice.serving.routing_table import RequestContext, RoutingTable
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.settings import ServingSettings
from sluice.serving.step_counters import ARMS, NO_FAULTS, GuardFaults, StepCounters
from sluice.serving.sticky import is_chosen
from sluice.workloads.codecs.request import CodecRequest
from sluice.workloads.codecs.window_requests import PredictRequest


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
        self._expired_at: datetime | None = None  # end of the latest lease known to have expired
        self._decoder = RequestDecoder()
        self._crowding_by_arm = {arm: Crowding() for arm in ARMS}
        self.counters = StepCounters(table.compared_split, now=clock())
        self.background = BackgroundRequests(settings)
        self._comparison = ArmComparison(
            self.counters, self.background, settings=settings, metrics=metrics
        )
        self._sampler = RequestSampler(
            buffer, self.counters.clients, self.background, settings=settings, clock=clock
        )
        metrics.register_step_counts(self.traffic_counts)

    @property
    def table(self) -> RoutingTable:
        """Routing table for new requests."""
        return self._table

    def set_table(self, table: RoutingTable) -> None:
        """Use another table for new requests; requests in progress keep the previous table."""
        self._table = table
        self.counters.set_split(table.compared_split, now=self._clock())

    def effective_split(self, split: TrafficSplit) -> TrafficSplit:
        """Return the split, without the challenger if the lease has expired.

        An expired lease stays expired even if the clock is set back.
        """
        if split.expires_at is None:
            return split
        if split.is_expired(self._clock()):
            self._expired_at = split.expires_at
        has_expired = self._expired_at is not None and split.expires_at <= self._expired_at
        return split.without_challenger() if has_expired else split

    async def route(
        self, request: CodecRequest, *, address: str, deadline: float
    ) -> RoutedPrediction:
        """Predict with the arm of the user. For a request without a user, draw the arm at random.

        Args:
            request: Parsed request.
            address: Client address.
            deadline: Latest time of the response [s, monotonic].

        Raises:
            InvalidInput: The elements violate the contract, or the prediction is not finite.
            ModelFailed: Production or its codec raised an error.
            PredictionTimeout: Production did not answer before the deadline.
        """
        table = self._table
        split = self.effective_split(table.split)
        compared_split = self.effective_split(table.compared_split)
        contract = table.production.deployed.contract
        if isinstance(contract, InputContract):
            assert isinstance(request, PredictRequest), "the request was parsed for this contract"
            x: ModelArrays = contract.read_windows(request)
        else:
            codec = table.production.deployed.codec
            assert codec is not None, "production is in this process, and has its codec"
            x = await self._decoder.decode(codec, request, deadline=deadline)
        client = client_of(request.user, address)
        context = RequestContext(table, split, compared_split, request, x, client, address)
        challenger, challenger_failure, challenger_faults = table.challenger, None, NO_FAULTS
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
            challenger_faults = self._count("challenger", result, context, is_crowded=is_crowded)
            self._sampler.record(context, "challenger", result)
            if result.fault is None:
                if split.shadow and table.shadow_arm_name == "production":
                    self._comparison.send_shadow(context, challenger_faults)
                else:
                    self._comparison.repeat_on_other_arm("challenger", challenger_faults, context)
                return routed_prediction(
                    result, "challenger", challenger, split, challenger_failure=None
                )
            challenger_failure = result
            self._metrics.fallbacks.inc()
        result, is_crowded = await self._try_for_client(
            table.production,
            context,
            name="production",
            timeout_s=deadline - time.monotonic(),
            max_waiting=self._settings.max_in_flight,
        )
        if challenger_failure is None:
            production_faults = self._count("production", result, context, is_crowded=is_crowded)
            self._sampler.record(context, "production", result)
            # Faulty requests of production are repeated on the challenger. Without these repeats,
            # only the challenger could have faults that the other arm does not have.
            if split.shadow and table.shadow_arm_name == "challenger":
                self._comparison.send_shadow(context, production_faults)
            else:
                self._comparison.repeat_on_other_arm("production", production_faults, context)
        else:
            # Production has answered the same request, so the arms are compared without a repeat.
            # If both arms fail, the challenger is not worse.
            production_faults = self._comparison.guard_faults(result)
            if split.shadow:
                self.counters.count(
                    "production", split=compared_split, seconds=None, fault=result.fault
                )
                self._comparison.add_evidence_of_both_arms(
                    context,
                    challenger_faults=challenger_faults,
                    production_faults=production_faults,
                )
            # No repeat is needed here, but the queue limit of repeats applies. It limits the
            # evidence about faults of production, so it must also limit the evidence about faults
            # of the challenger.
            elif self._comparison.can_repeat(challenger_faults, context):
                self._comparison.add_fault_evidence(
                    "challenger", challenger_faults, production_faults, context
                )
        if result.fault is not None:
            raise prediction_error(result)
        return routed_prediction(
            result,
            "production",
            table.production,
            split,
            challenger_failure=challenger_failure,
        )

    def traffic_counts(self) -> TrafficCounts | None:
        """Return the counts since the rollout step began; None without a rollout."""
        return self.counters.traffic_counts(self._clock())

    async def close(self) -> None:
        """Cancel all background requests, and drop the requests that wait to be decoded."""
        await self.background.close()
        self._decoder.close()

    def _is_chosen(self, user: str | None, split: TrafficSplit) -> bool:
        """Return whether the challenger answers: fixed for a user, random without a user."""
        if user is not None:
            return is_chosen(user, salt=split.salt, share=split.share)
        # The arm is not derived from the request, for example from its trace id. A client that has
        # reached the challenger once could repeat the trace id to reach the challenger again.
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
        """Predict with an arm. Also return whether another subnet's requests delayed this one."""
        crowding = self._crowding_by_arm[name]
        subnet, num_elements = subnet_of(context.address), count_elements(context.x)
        is_crowded = crowding.enter(subnet, num_elements)
        result = await try_arm(
            arm, context.x, name=name, timeout_s=timeout_s, max_waiting=max_waiting
        )
        linger_s = self._settings.challenger_deadline_s
        crowding.leave(subnet, num_elements, result, linger_s=linger_s)
        return result, is_crowded

    def _count(
        self, arm: ArmName, result: ArmResult, context: RequestContext, *, is_crowded: bool
    ) -> GuardFaults:
        """Count a request of an arm. Return its faults if the arms are compared on this request."""
        # In a shadow step, the request is admitted once both arms have results; see
        # ``ArmComparison.add_evidence_of_both_arms``.
        is_compared = context.split.shadow or self._comparison.admit_request(
            arm, context, is_crowded=is_crowded
        )
        self.counters.count(
            arm,
            split=context.compared_split,
            seconds=result.computed_s,
            fault=self._comparison.request_fault(result),
            address=context.address,
            is_in_p95=is_compared,
        )
        self._metrics.count_prediction(arm, seconds=result.seconds, fault=result.fault)
        return self._comparison.guard_faults(result) if is_compared else NO_FAULTS
