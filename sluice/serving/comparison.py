"""What of both arms' answers is evidence: the other arm is asked what one did not do well (ROLL-2).

It is asked in the background, within the room that there is for copies of requests.
"""

import time
from collections import Counter

from sluice.rollout.samples import ArmName, Fault
from sluice.serving.arm import Arm
from sluice.serving.copies import Copies
from sluice.serving.metrics import Metrics
from sluice.serving.settings import ServingSettings
from sluice.serving.steps import ARMS, FAILURES, NO_FAULTS, TIMED, Faults, Steps
from sluice.serving.table import AskedRequest
from sluice.serving.tried import Tried

_PARTS = 4
"""One client's failures may take up such a part of the room to ask the other arm."""


class Comparison:
    """Compares the arms of one router; touched by the event loop only."""

    def __init__(
        self, steps: Steps, copies: Copies, *, settings: ServingSettings, metrics: Metrics
    ) -> None:
        self._steps = steps
        self._copies = copies
        self._settings = settings
        self._metrics = metrics
        self._asking: Counter[str] = Counter()

    def fault(self, tried: Tried) -> Fault | None:
        """Return what counts as wrong with an answer, whoever gave it."""
        # Production may take longer before it is given up, and must not look better for it.
        is_late = tried.fault is None and tried.seconds > self._settings.challenger_deadline_s
        return "timeouts" if is_late else tried.fault

    def faults(self, tried: Tried) -> Faults:
        """Return all that was wrong with an answer."""
        return self._steps.faults(seconds=tried.computed_s, fault=self.fault(tried))

    def compare_request(
        self, arm: ArmName, asked: AskedRequest, *, is_crowded: bool = False
    ) -> bool:
        """Take a request of an arm into the evidence, where it may count; say whether it is."""
        return self._steps.compare_request(
            arm,
            weights=asked.compared,
            client=asked.client,
            address=asked.address,
            now=time.monotonic(),
            is_crowded=is_crowded,
        )

    def compare(self, arm: ArmName, ours: Faults, theirs: Faults, asked: AskedRequest) -> None:
        """Take what was wrong with an arm's answer, and not with the other's, into the evidence."""
        self._steps.compare_faults(
            arm,
            ours,
            theirs,
            weights=asked.compared,
            client=asked.client,
            address=asked.address,
            now=time.monotonic(),
        )

    def _would_count(self, arm: ArmName, faults: Faults, asked: AskedRequest) -> bool:
        return bool(faults) and self._steps.would_count(
            arm,
            faults,
            weights=asked.compared,
            client=asked.client,
            address=asked.address,
            now=time.monotonic(),
        )

    def compare_copies(self, asked: AskedRequest, *, ours: Faults, theirs: Faults) -> None:
        """Take a request that both arms answered into the evidence of both."""
        compared = [self.compare_request(arm, asked) for arm in ARMS]
        if all(compared):
            self.compare("challenger", ours, theirs, asked)
            self.compare("production", theirs, ours, asked)

    def ask_other(self, arm: ArmName, ours: Faults, asked: AskedRequest) -> None:
        """Ask the other arm what this one did not do well; what both do badly is no evidence."""
        other = asked.table.production if arm == "challenger" else asked.table.challenger
        if arm == "production" and ours <= TIMED:  # whatever the challenger would say
            self.compare(arm, ours, NO_FAULTS, asked)
        elif (
            other is not None and self._would_count(arm, ours, asked) and self.can_ask(ours, asked)
        ):
            self._asking[asked.client] += 1
            self._copies.begin(self._judge(arm, ours, other, asked))

    def can_ask(self, faults: Faults, asked: AskedRequest) -> bool:
        """Say whether there is room to ask the other arm; one client has a part of the room."""
        if not faults or asked.compared.rollout is None:
            return False
        part = max(1, self._settings.shadow_waiting // _PARTS)
        if self._asking[asked.client] >= part:
            return False
        if not self._copies.has_room and faults & FAILURES:
            self._drop()
        return self._copies.has_room

    async def _judge(self, arm: ArmName, ours: Faults, other: Arm, asked: AskedRequest) -> None:
        tried = await self._copies.ask(other, asked.x_NLD, name="compared")
        self._asking[asked.client] -= 1
        if not self._asking[asked.client]:
            del self._asking[asked.client]
        self.compare(arm, ours, self.faults(tried), asked)

    def copy(self, asked: AskedRequest, faults: Faults) -> None:
        """Give the arm that answers nobody a copy; ``faults`` are those of the other's answer."""
        if asked.table.shadow is None:
            return
        if not self._copies.has_room:
            self._drop()
            return
        self._copies.begin(self._compute(asked, asked.table.shadow, faults))

    async def _compute(self, asked: AskedRequest, shadow: Arm, faults: Faults) -> None:
        tried = await self._copies.ask(shadow, asked.x_NLD, name="shadow")
        if not tried.is_begun:  # it made way: says nothing about it
            self._drop()
            return
        copied = asked.table.copied
        self._steps.count(copied, weights=asked.table.weights, seconds=None, fault=tried.fault)
        self._metrics.count_shadow(tried.fault)
        of_copy = self._steps.faults(seconds=None, fault=tried.fault)
        ours, theirs = (of_copy, faults) if copied == "challenger" else (faults, of_copy)
        self.compare_copies(asked, ours=ours, theirs=theirs)

    def _drop(self) -> None:
        self._steps.count_dropped()
        self._metrics.shadow_dropped.inc()
