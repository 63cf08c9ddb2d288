"""What was seen of both arms since the weights last changed: counts, never payloads (ROLL-2)."""

from collections import deque
from datetime import datetime

import numpy as np

from sluice.registry.client_secret import network_of
from sluice.rollout.evidence import GuardName
from sluice.rollout.observations import ArmCounts, Unshared, Window
from sluice.rollout.parts import limited_parts
from sluice.rollout.samples import ArmName, Fault
from sluice.rollout.weights import Weights
from sluice.serving.balance import NetworkBalance
from sluice.serving.clients import Clients

ARMS: tuple[ArmName, ...] = ("production", "challenger")
KINDS = ("requests", "errors", "timeouts", "not_finite", "slower")

_RECENT = 2000
"""Latencies of production that its p95 is taken from."""
_ENOUGH = 100
"""With fewer the p95 says little: nothing counts as slower until production has so many."""
_MOST_OF_NETWORK = 1 / 40
"""Of forty networks and more, one has such a part of these latencies: below the 5 % of slow ones,
or its heavy requests alone would say what is slow [rate]."""
_PROCESS_S = 0.002
"""What a challenger may be slower for its process alone: the pipe and two wake-ups. Small networks
answer within less than that, and once promoted they have no pipe [s]."""


Faults = frozenset[GuardName]
"""What was wrong with one answer; empty when nothing was."""

NO_FAULTS: Faults = frozenset()
FAILURES: Faults = frozenset(("errors", "timeouts", "not_finite"))
"""What leaves a request without an answer in time."""


TIMED: Faults = frozenset(("timeouts", "slower"))
"""What is a matter of degree, and of the machine at that moment."""


def unshared(arm: ArmName, ours: Faults, theirs: Faults) -> Faults:
    """Return what was wrong with an arm's answer and is evidence beside the other arm's.

    An arm that failed gives the other's failure no meaning, in whatever way each of them failed.
    But production's late and slow answers count whatever the challenger made of the request: or a
    challenger that is slower by very little, and so is also slow whenever production is, would be
    the only one with slow answers.

    Args:
        arm: Whose answer ``ours`` is about.
        ours: What was wrong with it.
        theirs: What was wrong with the other arm's answer to the same request.
    """
    always = ours & TIMED if arm == "production" else NO_FAULTS
    return always | (NO_FAULTS if theirs & FAILURES else ours - theirs)


class Steps:
    """Counts of the step under way; a new epoch or rollout begins a new one.

    Beside what each arm did there is what of it is evidence: see ``Unshared``.

    Without a challenger there is no step: what production did alone, before it was loaded or after
    its lease, would be compared with what the challenger did beside it.

    Touched by the event loop only. ``slower`` is measured against production's p95 when the step
    began, and what a process of its own costs. A server that has just started has none: it takes
    the first that production gives it, and until then counts no request of either arm as slower.
    """

    def __init__(self, weights: Weights, *, now: datetime) -> None:
        self._recent: deque[tuple[float, str]] = deque(maxlen=_RECENT)
        self._slow_s: float | None = None
        self.clients = Clients()
        self._begin(weights, now)

    @property
    def slow_s(self) -> float | None:
        """What counts as slower in this step [s]; None while it is not known."""
        return self._slow_s

    def follow(self, weights: Weights, *, now: datetime) -> None:
        """Begin a new step when the weights are of another epoch."""
        if not self._is_of(weights):
            self._begin(weights, now)

    def count(
        self,
        arm: ArmName,
        *,
        weights: Weights,
        seconds: float | None,
        fault: Fault | None,
        address: str = "",
        is_usual: bool = True,
    ) -> None:
        """Count one request that was routed to an arm.

        Args:
            arm: Where it was routed, whoever answered in the end.
            weights: That routed it; a request of an earlier step, or of none, is not counted.
            seconds: How long the arm took for it once it had begun; None for a shadow copy, which
                waits for production on purpose.
            fault: What went wrong, if anything.
            address: Where the request came from.
            is_usual: False for a request of a client that sends far more than others: what is slow
                is measured without it.
        """
        is_timed = seconds is not None and fault in (None, "timeouts")
        if is_timed and is_usual and arm == "production":
            self._recent.append((seconds, address))  # type: ignore[arg-type]
            if self._slow_s is None:
                self._slow_s = self._limit_s()
        if not self._is_of(weights):
            return
        counts = self._counts[arm]
        counts["requests"] += 1
        if fault is not None:
            counts[fault] += 1
        counts["slower"] += "slower" in self.faults(seconds=seconds, fault=fault)

    def faults(self, *, seconds: float | None, fault: Fault | None) -> Faults:
        """Return all that was wrong with an answer.

        Args:
            seconds: How long the arm took; None for a shadow copy.
            fault: What went wrong, if anything.
        """
        found: set[GuardName] = set() if fault is None else {fault}
        # What raised at once was not fast, and says so by its error. Copies have no latency, and
        # one arm alone must not be judged.
        is_timed = seconds is not None and self._slow_s is not None and not self._weights.shadow
        if is_timed and fault != "errors" and not seconds <= self._slow_s:  # type: ignore[operator]
            found.add("slower")
        return frozenset(found)

    def compare_request(
        self,
        arm: ArmName,
        *,
        weights: Weights,
        client: str,
        address: str,
        now: float,
        is_crowded: bool = False,
    ) -> bool:
        """Take a request of an arm into the evidence; say whether it is, and so its faults.

        Args:
            arm: Where it was routed.
            weights: That routed it.
            client: Who sent it, as ``client_of`` says.
            address: Where it came from.
            now: The moment [s, monotonic].
            is_crowded: Whether it waited behind another network's, as ``Crowding`` says.
        """
        is_usual = self.clients.see(arm, client, address=address, now=now)
        is_compared = (
            is_usual
            and not is_crowded
            and self._is_of(weights)
            and self._balance.admit(
                arm,
                client,
                address=address,
                share=weights.share,
                per_client=self.clients.most_of_one,
            )
        )
        self._evidence[arm]["requests"] += is_compared
        return is_compared

    def compare_faults(
        self,
        arm: ArmName,
        ours: Faults,
        theirs: Faults,
        *,
        weights: Weights,
        client: str,
        address: str,
        now: float,
    ) -> None:
        """Take what was wrong with a compared request into the evidence, where it may count.

        Args:
            arm: Where the request was routed.
            ours: What was wrong with its answer.
            theirs: What was wrong with the other arm's answer to the same request.
            weights: That routed it.
            client: Who sent it.
            address: Where it came from.
            now: The moment [s, monotonic].
        """
        if weights.rollout is None or not self._is_of(weights):
            return
        for guard in sorted(unshared(arm, ours, theirs)):
            if self.clients.may_fault(
                arm, guard, client, address=address, share=weights.share, now=now
            ):
                self._evidence[arm][guard] += 1

    def would_count(
        self,
        arm: ArmName,
        faults: Faults,
        *,
        weights: Weights,
        client: str,
        address: str,
        now: float,
    ) -> bool:
        """Say whether any of these faults would be evidence if the other arm had none of them.

        Args:
            arm: Where the request was routed.
            faults: What was wrong with its answer.
            weights: That routed it.
            client: Who sent it.
            address: Where it came from.
            now: The moment [s, monotonic].
        """
        return self._is_of(weights) and any(
            self.clients.would_count(
                arm, guard, client, address=address, share=weights.share, now=now
            )
            for guard in faults
        )

    def count_dropped(self) -> None:
        """Count a copy, or a failure to be asked of the other arm, that there was no room for."""
        self._dropped += 1

    def window(self, now: datetime) -> Window | None:
        """Return the counts of the step; None without a rollout."""
        weights = self._weights
        if weights.rollout is None:
            return None
        return Window(
            rollout=weights.rollout,
            epoch=weights.epoch,
            since=self._since,
            until=max(now, self._since),
            production=ArmCounts(**self._counts["production"]),
            challenger=ArmCounts(**self._counts["challenger"]),
            unshared=Unshared(**{arm: ArmCounts(**self._evidence[arm]) for arm in ARMS}),
            shadow_dropped=self._dropped,
        )

    def _is_of(self, weights: Weights) -> bool:
        return (weights.rollout, weights.epoch) == (self._weights.rollout, self._weights.epoch)

    def _begin(self, weights: Weights, now: datetime) -> None:
        self._weights = weights
        self._since = now
        self._slow_s = self._limit_s()
        self.clients.begin_step()
        self._balance = NetworkBalance()
        self._dropped = 0
        self._counts: dict[ArmName, dict[str, int]] = {arm: dict.fromkeys(KINDS, 0) for arm in ARMS}
        self._evidence: dict[ArmName, dict[str, int]] = {
            arm: dict.fromkeys(KINDS, 0) for arm in ARMS
        }

    def _limit_s(self) -> float | None:
        if len(self._recent) < _ENOUGH:
            return None
        seconds_N = np.array([seconds for seconds, _ in self._recent])
        networks = [network_of(address) for _, address in self._recent]
        part_N = limited_parts(networks, most=_MOST_OF_NETWORK)
        order_N = np.argsort(seconds_N)
        part_N = part_N[order_N]
        below_N = np.cumsum(part_N) - part_N
        p95_s = np.interp(0.95, below_N / below_N[-1], seconds_N[order_N])
        return float(p95_s) + _PROCESS_S
