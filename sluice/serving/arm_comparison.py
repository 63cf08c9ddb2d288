"""Decides which faults of both arms are evidence: a failed request is repeated on the other arm.

That happens in the background, within the queue for shadow requests.
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
from sluice.serving.step_counters import ARMS, FAILURES, NO_FAULTS, TIMED, GuardFaults, StepCounters

_CLIENT_QUEUE_PARTS = 4
"""One client's failures may use this fraction of the queue: 1 / _CLIENT_QUEUE_PARTS."""


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
        self._asking: Counter[str] = Counter()

    def fault(self, result: ArmResult) -> RequestFault | None:
        """Return the fault of a response, by the same rule for both arms."""
        # Production has a longer deadline, which must not make it look better than the challenger.
        is_late = result.fault is None and result.seconds > self._settings.challenger_deadline_s
        return "timeouts" if is_late else result.fault

    def faults(self, result: ArmResult) -> GuardFaults:
        """Return all faults of a response."""
        return self._counters.faults(seconds=result.computed_s, fault=self.fault(result))

    def compare_request(
        self, arm: ArmName, context: RequestContext, *, is_crowded: bool = False
    ) -> bool:
        """Add a request of an arm to the evidence if it may count; return whether it does."""
        return self._counters.compare_request(
            arm,
            split=context.compared_split,
            client=context.client,
            address=context.address,
            now=time.monotonic(),
            is_crowded=is_crowded,
        )

    def compare(
        self, arm: ArmName, ours: GuardFaults, theirs: GuardFaults, context: RequestContext
    ) -> None:
        """Add the faults that only this arm has to the evidence."""
        self._counters.compare_faults(
            arm,
            ours,
            theirs,
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

    def compare_copies(
        self, context: RequestContext, *, ours: GuardFaults, theirs: GuardFaults
    ) -> None:
        """Add a request that both arms answered to the evidence of both."""
        compared = [self.compare_request(arm, context) for arm in ARMS]
        if all(compared):
            self.compare("challenger", ours, theirs, context)
            self.compare("production", theirs, ours, context)

    def ask_other(self, arm: ArmName, ours: GuardFaults, context: RequestContext) -> None:
        """Repeat a faulty request on the other arm; faults of both arms are no evidence."""
        other = context.table.production if arm == "challenger" else context.table.challenger
        if arm == "production" and ours <= TIMED:  # regardless of the challenger
            self.compare(arm, ours, NO_FAULTS, context)
        elif (
            other is not None
            and self._would_count(arm, ours, context)
            and self.can_ask(ours, context)
        ):
            self._asking[context.client] += 1
            self._background.start(self._compare_with(arm, ours, other, context))

    def can_ask(self, faults: GuardFaults, context: RequestContext) -> bool:
        """Return whether the queue has room to ask the other arm; each client has a part of it."""
        if not faults or context.compared_split.rollout is None:
            return False
        part = max(1, self._settings.max_shadow_queue // _CLIENT_QUEUE_PARTS)
        if self._asking[context.client] >= part:
            return False
        if not self._background.has_room and faults & FAILURES:
            self._drop()
        return self._background.has_room

    async def _compare_with(
        self, arm: ArmName, ours: GuardFaults, other: ArmWorker, context: RequestContext
    ) -> None:
        result = await self._background.ask(other, context.x_NLD, name="compared")
        self._asking[context.client] -= 1
        if not self._asking[context.client]:
            del self._asking[context.client]
        self.compare(arm, ours, self.faults(result), context)

    def copy(self, context: RequestContext, faults: GuardFaults) -> None:
        """Send a shadow request to the arm that answers no user.

        ``faults`` are those of the other arm's response.
        """
        if context.table.shadow is None:
            return
        if not self._background.has_room:
            self._drop()
            return
        self._background.start(self._compute(context, context.table.shadow, faults))

    async def _compute(
        self, context: RequestContext, shadow: ArmWorker, faults: GuardFaults
    ) -> None:
        result = await self._background.ask(shadow, context.x_NLD, name="shadow")
        if not result.is_begun:  # it yielded to other requests, which is no fault of the arm
            self._drop()
            return
        copied = context.table.shadowed
        self._counters.count(copied, split=context.table.split, seconds=None, fault=result.fault)
        self._metrics.count_shadow(result.fault)
        of_copy = self._counters.faults(seconds=None, fault=result.fault)
        ours, theirs = (of_copy, faults) if copied == "challenger" else (faults, of_copy)
        self.compare_copies(context, ours=ours, theirs=theirs)

    def _drop(self) -> None:
        self._counters.count_dropped()
        self._metrics.shadow_dropped.inc()
