"""Decides which faults are evidence against an arm: the faults that the other arm does not have.

A faulty request is therefore repeated on the other arm, and is no evidence if that arm has the
same fault. Repeats run in the background, within the queue limit of shadow requests.
"""

import time
from collections import Counter

from sluice.rollout.samples import ArmName, RequestFault
from sluice.serving.arm import ArmWorker
from sluice.serving.arm_result import ArmResult
from sluice.serving.background_requests import BackgroundRequests
from sluice.serving.metrics import Metrics
from sluice.serving.routing_table import RequestContext
from sluice.serving.settings import ServingSettings
from sluice.serving.step_counters import (
    ARMS,
    FAILURES,
    LATENCY_FAULTS,
    NO_FAULTS,
    GuardFaults,
    StepCounters,
)

_CLIENT_QUEUE_DIVISOR = 4
"""The repeated requests of one client may use the background queue up to its size divided by this
number."""


class ArmComparison:
    """Compares the arms of one router; used by the event loop only."""

    def __init__(
        self,
        counters: StepCounters,
        background: BackgroundRequests,
        *,
        settings: ServingSettings,
        metrics: Metrics,
    ) -> None:
        self._counters = counters
        self._background = background
        self._settings = settings
        self._metrics = metrics
        self._num_repeats: Counter[str] = Counter()
        """Number of repeated requests in progress, by client."""

    def request_fault(self, result: ArmResult) -> RequestFault | None:
        """Return the fault of a response; None without one. The rule is the same for both arms."""
        # Production has a longer deadline, but the arms are compared with the same deadline.
        is_late = result.fault is None and result.seconds > self._settings.challenger_deadline_s
        return "timeouts" if is_late else result.fault

    def guard_faults(self, result: ArmResult) -> GuardFaults:
        """Return every fault of a response that a guard counts; a response may have several."""
        return self._counters.guard_faults(
            seconds=result.computed_s, fault=self.request_fault(result)
        )

    def admit_request(
        self, arm: ArmName, context: RequestContext, *, is_crowded: bool = False
    ) -> bool:
        """Add a request of an arm to the evidence if it may count; return whether it was added."""
        return self._counters.admit_request(
            arm,
            split=context.compared_split,
            client=context.client,
            address=context.address,
            now=time.monotonic(),
            is_crowded=is_crowded,
        )

    def add_fault_evidence(
        self,
        arm: ArmName,
        faults: GuardFaults,
        other_faults: GuardFaults,
        context: RequestContext,
    ) -> None:
        """Add to the evidence the faults of an arm that count; see ``StepCounters``.

        Args:
            arm: Arm that the evidence is about.
            faults: Faults of this arm.
            other_faults: Faults of the other arm on the same request.
            context: The request.
        """
        self._counters.add_fault_evidence(
            arm,
            faults,
            other_faults,
            split=context.compared_split,
            client=context.client,
            address=context.address,
            now=time.monotonic(),
        )

    def _would_count(self, arm: ArmName, faults: GuardFaults, context: RequestContext) -> bool:
        return bool(faults) and self._counters.would_count(
            arm,
            faults,
            split=context.compared_split,
            client=context.client,
            address=context.address,
            now=time.monotonic(),
        )

    def add_evidence_of_both_arms(
        self,
        context: RequestContext,
        *,
        challenger_faults: GuardFaults,
        production_faults: GuardFaults,
    ) -> None:
        """Add to the evidence of both arms a request that both arms have processed."""
        # A list and no generator: each arm must count the request, even if the other arm does not
        # admit it.
        if all([self.admit_request(arm, context) for arm in ARMS]):
            self.add_fault_evidence("challenger", challenger_faults, production_faults, context)
            self.add_fault_evidence("production", production_faults, challenger_faults, context)

    def repeat_on_other_arm(
        self, arm: ArmName, faults: GuardFaults, context: RequestContext
    ) -> None:
        """Repeat a faulty request on the other arm; faults that both arms have are no evidence.

        Late and slow responses of production are evidence without a repeat: see
        ``step_counters.evidence_faults``.
        """
        other_worker = context.table.production if arm == "challenger" else context.table.challenger
        if arm == "production" and faults <= LATENCY_FAULTS:
            self.add_fault_evidence(arm, faults, NO_FAULTS, context)
        elif (
            other_worker is not None
            and self._would_count(arm, faults, context)
            and self.can_repeat(faults, context)
        ):
            self._num_repeats[context.client] += 1
            self._background.start(self._repeat_and_compare(arm, faults, other_worker, context))

    def can_repeat(self, faults: GuardFaults, context: RequestContext) -> bool:
        """Return whether a request may be repeated on the other arm.

        The request must have faults, and a rollout must be in progress. There must also be room in
        the background queue and in the client's part of the queue. A failed request for which the
        queue has no room is counted as dropped.
        """
        if not faults or context.compared_split.rollout is None:
            return False
        max_repeats = max(1, self._settings.max_shadow_queue // _CLIENT_QUEUE_DIVISOR)
        if self._num_repeats[context.client] >= max_repeats:
            return False
        if not self._background.has_room and faults & FAILURES:
            self._count_dropped()
        return self._background.has_room

    async def _repeat_and_compare(
        self, arm: ArmName, faults: GuardFaults, other_worker: ArmWorker, context: RequestContext
    ) -> None:
        result = await self._background.predict(other_worker, context.x, name="compared")
        self._num_repeats[context.client] -= 1
        if not self._num_repeats[context.client]:
            del self._num_repeats[context.client]
        self.add_fault_evidence(arm, faults, self.guard_faults(result), context)

    def send_shadow(self, context: RequestContext, faults: GuardFaults) -> None:
        """Send a shadow request to the arm that answers no user.

        Args:
            context: The request.
            faults: Faults of the other arm's response to the user.
        """
        if context.table.shadow is None:
            return
        if not self._background.has_room:
            self._count_dropped()
            return
        self._background.start(self._compare_with_shadow(context, context.table.shadow, faults))

    async def _compare_with_shadow(
        self, context: RequestContext, shadow: ArmWorker, user_faults: GuardFaults
    ) -> None:
        result = await self._background.predict(shadow, context.x, name="shadow")
        # The delay is no fault of the arm, because a shadow request waits for requests of users.
        if not result.has_started:
            self._count_dropped()
            return
        shadow_arm = context.table.shadow_arm_name
        self._counters.count(
            shadow_arm, split=context.table.split, seconds=None, fault=result.fault
        )
        self._metrics.count_shadow(result.fault)
        shadow_faults = self._counters.guard_faults(seconds=None, fault=result.fault)
        is_challenger = shadow_arm == "challenger"
        self.add_evidence_of_both_arms(
            context,
            challenger_faults=shadow_faults if is_challenger else user_faults,
            production_faults=user_faults if is_challenger else shadow_faults,
        )

    def _count_dropped(self) -> None:
        self._counters.count_dropped()
        self._metrics.shadow_dropped.inc()
