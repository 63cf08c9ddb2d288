"""Counts the requests and faults of both arms in a rollout step, without storing requests.

Shape legend: N = latencies of production.
"""

from collections import deque
from datetime import datetime

import numpy as np

from sluice.registry.client_names import subnet_of
from sluice.rollout.contribution_limits import contribution_weights
from sluice.rollout.evidence import GuardName
from sluice.rollout.observations import ArmCounts, EvidenceCounts, TrafficCounts
from sluice.rollout.samples import ArmName, RequestFault
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.client_limits import ClientLimits
from sluice.serving.subnet_balance import SubnetBalance

ARMS: tuple[ArmName, ...] = ("production", "challenger")
COUNTER_NAMES = ("requests", "errors", "timeouts", "not_finite", "slower")
"""Counters of each arm; the names are fields of ``ArmCounts``."""

_MAX_LATENCIES = 2000
"""Maximum number of production's newest latencies from which the p95 is computed."""
_MIN_LATENCIES = 100
"""Minimum number of latencies for a reliable p95. With fewer, no request counts as slower."""
_MAX_SUBNET_SHARE = 1 / 40
"""Maximum share of one client subnet in the weights of the p95, if there are at least 40 subnets.
The share is below 5 %, so that slow requests of one subnet cannot determine the p95 alone."""
_PROCESS_OVERHEAD_S = 0.002
"""Time that is added to production's p95 for the pipe and the two wake-ups of a challenger's
process [s]. Without this time every response of a small model would count as slower, although a
promoted model has no pipe."""


GuardFaults = frozenset[GuardName]
"""Faults of one response; empty without a fault."""

NO_FAULTS: GuardFaults = frozenset()
FAILURES: GuardFaults = frozenset(("errors", "timeouts", "not_finite"))
"""Faults after which a request has no usable response in time."""

LATENCY_FAULTS: GuardFaults = frozenset(("timeouts", "slower"))
"""Faults of the latency, which also depends on the load of the machine."""


def evidence_faults(arm: ArmName, faults: GuardFaults, other_faults: GuardFaults) -> GuardFaults:
    """Return the faults of an arm's response that are evidence, given the other arm's response.

    A fault is evidence if the other arm does not have it. If the other arm failed in any way, no
    fault is evidence. There is one exception: timeouts and slow responses of production always
    count. A slightly slower challenger is slow whenever production is slow. If the slow responses
    of production did not count in this case, production would seem to have none.

    Args:
        arm: Arm of the response.
        faults: Faults of this response.
        other_faults: Faults of the other arm's response to the same request.
    """
    always_counted = faults & LATENCY_FAULTS if arm == "production" else NO_FAULTS
    return always_counted | (NO_FAULTS if other_faults & FAILURES else faults - other_faults)


class StepCounters:
    """Counts of the current rollout step; used by the event loop only.

    A new step begins when the traffic split has a new epoch or another rollout. Each arm has two
    sets of counts: of all requests, and of the requests that are evidence (``EvidenceCounts``).

    Without a challenger there is no step, and no counts are reported. Requests before the
    challenger was loaded, or after the end of its lease, must not be compared with its requests.

    A response counts as ``slower`` if it takes longer than production's p95 at the start of the
    step plus the overhead of a separate process. A server that has just started has no p95 yet. It
    counts no response of either arm as slower until it has a p95, and then uses that p95.
    """

    def __init__(self, split: TrafficSplit, *, now: datetime) -> None:
        self._latencies: deque[tuple[float, str]] = deque(maxlen=_MAX_LATENCIES)
        """Latency [s] and client address of production's newest requests."""

        self._slow_threshold_s: float | None = None
        self.clients = ClientLimits()
        self._begin_step(split, now)

    @property
    def slow_threshold_s(self) -> float | None:
        """Latency above which a response counts as slower [s]; None while unknown."""
        return self._slow_threshold_s

    def set_split(self, split: TrafficSplit, *, now: datetime) -> None:
        """Begin a new step if the split has another epoch or rollout."""
        if not self._is_current(split):
            self._begin_step(split, now)

    def count(
        self,
        arm: ArmName,
        *,
        split: TrafficSplit,
        seconds: float | None,
        fault: RequestFault | None,
        address: str = "",
        is_in_p95: bool = True,
    ) -> None:
        """Count one request that was routed to an arm.

        Args:
            arm: Arm that the request was routed to, even if the other arm answered in its place.
            split: Traffic split that routed the request. A request that does not belong to the
                current step is not counted.
            seconds: Time that the arm took after it started to compute the request [s]; None for a
                shadow request, whose time is not comparable because it lets other requests go
                first.
            fault: Fault of the response, if any.
            address: Client address.
            is_in_p95: Whether the latency may enter production's p95. False for a request that is
                not compared, for example because its client sends far more than others.
        """
        has_latency = seconds is not None and fault in (None, "timeouts")
        if has_latency and is_in_p95 and arm == "production":
            self._latencies.append((seconds, address))  # type: ignore[arg-type]
            if self._slow_threshold_s is None:
                self._slow_threshold_s = self._compute_slow_threshold_s()
        if not self._is_current(split):
            return
        counts = self._counts[arm]
        counts["requests"] += 1
        if fault is not None:
            counts[fault] += 1
        counts["slower"] += "slower" in self.guard_faults(seconds=seconds, fault=fault)

    def guard_faults(self, *, seconds: float | None, fault: RequestFault | None) -> GuardFaults:
        """Return all faults of a response that a guard counts.

        Args:
            seconds: Time that the arm took [s]; None for a shadow request.
            fault: Fault of the response, if any.
        """
        faults: set[GuardName] = set() if fault is None else {fault}
        # Errors are not timed, because they already count as errors. In a shadow step, the latency
        # of the shadow arm is not comparable, so neither arm is timed.
        is_timed = (
            seconds is not None and self._slow_threshold_s is not None and not self._split.shadow
        )
        if is_timed and fault != "errors" and not seconds <= self._slow_threshold_s:  # type: ignore[operator]
            faults.add("slower")
        return frozenset(faults)

    def admit_request(
        self,
        arm: ArmName,
        *,
        split: TrafficSplit,
        client: str,
        address: str,
        now: float,
        is_crowded: bool = False,
    ) -> bool:
        """Add a request of an arm to the evidence if it may count; return whether it was added.

        Args:
            arm: Arm that the request was routed to.
            split: Traffic split that routed the request.
            client: Name of the client, from ``client_of``.
            address: Client address.
            now: Current time [s, monotonic].
            is_crowded: Whether the request waited behind many requests of another subnet, from
                ``Crowding``.
        """
        is_within_client_limit = self.clients.record_request(arm, client, address=address, now=now)
        is_admitted = (
            is_within_client_limit
            and not is_crowded
            and self._is_current(split)
            and self._balance.admit(
                arm,
                client,
                address=address,
                share=split.share,
                max_per_client=self.clients.max_compared_requests,
            )
        )
        self._evidence[arm]["requests"] += is_admitted
        return is_admitted

    def add_fault_evidence(
        self,
        arm: ArmName,
        faults: GuardFaults,
        other_faults: GuardFaults,
        *,
        split: TrafficSplit,
        client: str,
        address: str,
        now: float,
    ) -> None:
        """Add the faults of an admitted request to the evidence.

        Only faults from ``evidence_faults`` are added, up to the limits of ``ClientLimits``.

        Args:
            arm: Arm that the request was routed to.
            faults: Faults of this arm's response.
            other_faults: Faults of the other arm's response to the same request.
            split: Traffic split that routed the request.
            client: Name of the client, from ``client_of``.
            address: Client address.
            now: Current time [s, monotonic].
        """
        if split.rollout is None or not self._is_current(split):
            return
        for guard in sorted(evidence_faults(arm, faults, other_faults)):
            if self.clients.count_fault(
                arm, guard, client, address=address, share=split.share, now=now
            ):
                self._evidence[arm][guard] += 1

    def would_count(
        self,
        arm: ArmName,
        faults: GuardFaults,
        *,
        split: TrafficSplit,
        client: str,
        address: str,
        now: float,
    ) -> bool:
        """Return whether any of these faults would be evidence if the other arm had no fault.

        Args:
            arm: Arm that the request was routed to.
            faults: Faults of the response.
            split: Traffic split that routed the request.
            client: Name of the client, from ``client_of``.
            address: Client address.
            now: Current time [s, monotonic].
        """
        return self._is_current(split) and any(
            self.clients.would_count(
                arm, guard, client, address=address, share=split.share, now=now
            )
            for guard in faults
        )

    def count_dropped(self) -> None:
        """Count a shadow or repeated request that was dropped, for lack of room or of time."""
        self._num_dropped += 1

    def traffic_counts(self, now: datetime) -> TrafficCounts | None:
        """Return the counts of the step; None without a rollout."""
        split = self._split
        if split.rollout is None:
            return None
        return TrafficCounts(
            rollout=split.rollout,
            epoch=split.epoch,
            since=self._step_started_at,
            until=max(now, self._step_started_at),
            production=ArmCounts(**self._counts["production"]),
            challenger=ArmCounts(**self._counts["challenger"]),
            evidence_counts=EvidenceCounts(
                **{arm: ArmCounts(**self._evidence[arm]) for arm in ARMS}
            ),
            shadow_dropped=self._num_dropped,
        )

    def _is_current(self, split: TrafficSplit) -> bool:
        return (split.rollout, split.epoch) == (self._split.rollout, self._split.epoch)

    def _begin_step(self, split: TrafficSplit, now: datetime) -> None:
        self._split = split
        self._step_started_at = now
        self._slow_threshold_s = self._compute_slow_threshold_s()
        self.clients.begin_step()
        self._balance = SubnetBalance()
        self._num_dropped = 0
        self._counts: dict[ArmName, dict[str, int]] = {
            arm: dict.fromkeys(COUNTER_NAMES, 0) for arm in ARMS
        }
        self._evidence: dict[ArmName, dict[str, int]] = {
            arm: dict.fromkeys(COUNTER_NAMES, 0) for arm in ARMS
        }

    def _compute_slow_threshold_s(self) -> float | None:
        """Return the latency above which a response is slow [s]; None with too few latencies."""
        if len(self._latencies) < _MIN_LATENCIES:
            return None
        seconds_N = np.array([seconds for seconds, _ in self._latencies])
        subnets = [subnet_of(address) for _, address in self._latencies]
        weight_N = contribution_weights(subnets, max_share=_MAX_SUBNET_SHARE)
        order_N = np.argsort(seconds_N)
        weight_N = weight_N[order_N]
        # Weighted 95th percentile of the latencies.
        weight_below_N = np.cumsum(weight_N) - weight_N
        p95_s = np.interp(0.95, weight_below_N / weight_below_N[-1], seconds_N[order_N])
        return float(p95_s) + _PROCESS_OVERHEAD_S
