"""Decides which faults of the two arms are evidence: a fault counts only for the arm that has it.

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
from sluice.serving.step_counters import ARMS, FAILURES, NO_FAULTS, TIMED, GuardFaults, StepCounters

_CLIENT_QUEUE_PARTS = 4
"""Repeated requests of one client may use 1 / ``_CLIENT_QUEUE_PARTS`` of the queue."""


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

    def fault(self, result: ArmResult) -> RequestFault | None:
        """Return the fault of a response; None without one. The rule is the same for both arms."""
        # Production has a longer deadline. It must not have fewer timeouts because of that.
        is_late = result.fault is None and result.seconds > self._settings.challenger_deadline_s
        return "timeouts" if is_late else result.fault

    def faults(self, result: ArmResult) -> GuardFaults:
        """Return every fault of a response that a guard counts; a response may have several."""
        return self._counters.faults(seconds=result.computed_s, fault=self.fault(result))

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

    def compare(
        self, arm: ArmName, ours: GuardFaults, theirs: GuardFaults, context: RequestContext
    ) -> None:
        """Add the faults that only this arm has to the evidence.

        Args:
            arm: Arm that the evidence is about.
            ours: Faults of this arm.
            theirs: Faults of the other arm on the same request.
            context: The request.
        """
        self._counters.add_fault_evidence(
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
        is_admitted = [self.admit_request(arm, context) for arm in ARMS]
        if all(is_admitted):
            self.compare("challenger", ours, theirs, context)
            self.compare("production", theirs, ours, context)

    def ask_other(self, arm: ArmName, ours: GuardFaults, context: RequestContext) -> None:
        """Repeat a faulty request on the other arm; faults that both arms have are no evidence.

        Late and slow responses of production are evidence without a repeat: see
        ``step_counters.evidence_faults``.
        """
        other = context.table.production if arm == "challenger" else context.table.challenger
        if arm == "production" and ours <= TIMED:
            self.compare(arm, ours, NO_FAULTS, context)
        elif (
            other is not None
            and self._would_count(arm, ours, context)
            and self.can_ask(ours, context)
        ):
            self._num_repeats[context.client] += 1
            self._background.start(self._repeat_and_compare(arm, ours, other, context))

    def can_ask(self, faults: GuardFaults, context: RequestContext) -> bool:
        """Return whether the background queue, and the client's part of it, have room.

        A failed request for which the queue has no room is counted as dropped.
        """
        if not faults or context.compared_split.rollout is None:
            return False
        part = max(1, self._settings.max_shadow_queue // _CLIENT_QUEUE_PARTS)
        if self._num_repeats[context.client] >= part:
            return False
        if not self._background.has_room and faults & FAILURES:
            self._drop()
        return self._background.has_room

    async def _repeat_and_compare(
        self, arm: ArmName, ours: GuardFaults, other: ArmWorker, context: RequestContext
    ) -> None:
        result = await self._background.ask(other, context.x, name="compared")
        self._num_repeats[context.client] -= 1
        if not self._num_repeats[context.client]:
            del self._num_repeats[context.client]
        self.compare(arm, ours, self.faults(result), context)

    def copy(self, context: RequestContext, faults: GuardFaults) -> None:
        """Send a shadow request to the arm that answers no user.

        Args:
            context: The request.
            faults: Faults of the other arm's response to the user.
        """
        if context.table.shadow is None:
            return
        if not self._background.has_room:
            self._drop()
            return
        self._background.start(self._run_copy(context, context.table.shadow, faults))

    async def _run_copy(
        self, context: RequestContext, shadow: ArmWorker, faults: GuardFaults
    ) -> None:
        result = await self._background.ask(shadow, context.x, name="shadow")
        if not result.is_begun:  # shadow requests yield to users' requests: no fault of the arm
            self._drop()
            return
        shadow_arm = context.table.shadowed
        self._counters.count(
            shadow_arm, split=context.table.split, seconds=None, fault=result.fault
        )
        self._metrics.count_shadow(result.fault)
        shadow_faults = self._counters.faults(seconds=None, fault=result.fault)
        ours, theirs = (
            (shadow_faults, faults) if shadow_arm == "challenger" else (faults, shadow_faults)
        )
        self.compare_copies(context, ours=ours, theirs=theirs)

    def _drop(self) -> None:
        self._counters.count_dropped()
        self._metrics.shadow_dropped.inc()
