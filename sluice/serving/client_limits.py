"""Limits what one client contributes to the evidence, however much it sends.

A client learns its arm from the first response, and can then send requests that count against
that arm, as often as it likes. Therefore each client contributes up to a share of the total:
only its first few faults count, and it is sampled no more often than others. With few clients
each has a larger share; otherwise a challenger that fails for all of them could not be detected.
"""

import functools
import heapq
import math
import secrets
from collections import Counter
from dataclasses import dataclass, field

from sluice.registry.client_secret import network_of
from sluice.rollout.evidence import GuardName
from sluice.rollout.samples import ArmName

PERIOD_S = 300.0
"""Period after which the limits of a client start again [s]."""

BREACH_FAULTS = 40
"""Number of faults of an arm that suffices for a breach; clients that all fail reach it
together."""

_TYPICAL_QUANTILE = 0.9
"""Quantile of the requests per client; more than twice that many are atypical. Up to a tenth of the
clients cannot move it."""

_REFRESH_FACTOR = 1.1
"""The quantile is computed again when the number of requests has grown by this factor."""

_NUM_BUCKETS = 2**14
"""Number of distinguished clients. Beyond it some clients share their limits, which bounds the
memory."""


@dataclass(slots=True)
class _Period:
    """Counts of the clients in one period."""

    seen: dict[ArmName, set[int]] = field(
        default_factory=lambda: {"production": set(), "challenger": set()}
    )
    requests: dict[int, int] = field(default_factory=dict)
    total: int = 0
    clients_by_requests: Counter[int] = field(default_factory=Counter)
    """Number of clients by their number of requests."""

    networks: dict[int, int] = field(default_factory=dict)
    """Requests of each network, whatever users it names."""

    network_faults: dict[tuple[ArmName, GuardName, int], int] = field(default_factory=dict)
    faults: dict[tuple[ArmName, GuardName, int], int] = field(default_factory=dict)
    had_faults: dict[GuardName, dict[int, int]] = field(default_factory=dict)
    """Number of faults of each client, counted as evidence or not."""

    draws: dict[int, int] = field(default_factory=dict)


class ClientLimits:
    """Limits of the clients of one server; used by its event loop only."""

    def __init__(self) -> None:
        self._ends_at = -math.inf
        self._now, self._last = _Period(), _Period()
        self._counts: dict[ArmName, int] = {"production": 0, "challenger": 0}
        self._next_quantile = self._typical = 0
        self._absent = 0
        """Number of clients of the last period without a request in this one."""

        self._key = secrets.token_bytes(
            8
        )  # unpredictable, so that clients cannot choose to be sampled

    def record_request(self, arm: ArmName, client: str, *, address: str, now: float) -> bool:
        """Count a request; return whether it is compared.

        Only the first requests of a client that sends far more than nearly all others are
        compared: the rest would hide what the arms do to other clients.

        Args:
            arm: Arm that the request was routed to.
            client: Client, from ``client_of``.
            address: Client address.
            now: Current time [s, monotonic].
        """
        self._advance_period(now)
        origin = self._origin(address)
        self._now.networks[origin] = self._now.networks.get(origin, 0) + 1
        bucket, seen = self._bucket(client), self._now.seen[arm]
        if bucket not in seen:
            seen.add(bucket)
            self._counts[arm] += bucket not in self._last.seen[arm]
        requests = self._now.requests
        before = requests.get(bucket, 0)
        requests[bucket] = before + 1
        if before:
            self._now.clients_by_requests[before] -= 1
        self._now.clients_by_requests[before + 1] += 1
        self._absent -= not before and bucket in self._last.requests
        self._now.total += 1
        if self._now.total >= self._next_quantile:
            self._typical = self._quantile()
            self._next_quantile = math.ceil(_REFRESH_FACTOR * self._now.total)
        return before < self.max_compared_requests

    @property
    def max_compared_requests(self) -> int:
        """Largest number of compared requests per client in this period."""
        return 2 * self._typical + 1

    def _quantile(self) -> int:
        """Return the largest number of requests of a typical client in this period."""
        wanted = (
            math.ceil(_TYPICAL_QUANTILE * (len(self._now.requests) + self._absent)) - self._absent
        )
        for requests, clients in sorted(self._now.clients_by_requests.items()):
            if wanted <= 0:
                break
            wanted -= clients
            if wanted <= 0:
                return requests
        return 0

    def count(self, arm: ArmName) -> int:
        """Return how many clients the arm had in this period and the one before."""
        return self._counts[arm]

    def smaller_arm_clients(self, share: float) -> int:
        """Return how many clients the arm with fewer of them has, or should have by its share.

        At the start of a step hardly any client has sent a request, and the first one must not
        get the limit of all of them.
        """
        ours, theirs = self.count("challenger"), self.count("production")
        expected = share * (ours + theirs)
        return max(1, min(max(ours, int(expected)), max(theirs, int(ours + theirs - expected))))

    def count_fault(
        self,
        arm: ArmName,
        guard: GuardName,
        client: str,
        *,
        address: str,
        share: float,
        now: float,
    ) -> bool:
        """Count one more fault of a client if it is evidence, and return whether it is.

        Both arms have the same limit, that of the arm with fewer clients; otherwise faults that
        both arms have would count for one of them only. Clients may invent user names and change
        addresses within a network, so a network has a limit as well, in proportion to its
        requests: no limit where one gateway sends all of them.
        """
        self._advance_period(now)
        bucket = self._bucket(client)
        key, origin = (arm, guard, bucket), (arm, guard, self._origin(address))
        had = self._now.had_faults.setdefault(guard, {})
        had[bucket] = had.get(bucket, 0) + 1
        if not self.would_count(arm, guard, client, address=address, share=share, now=now):
            return False
        faults, of_networks = self._now.faults, self._now.network_faults
        faults[key] = faults.get(key, 0) + 1
        of_networks[origin] = of_networks.get(origin, 0) + 1
        return True

    def would_count(
        self,
        arm: ArmName,
        guard: GuardName,
        client: str,
        *,
        address: str,
        share: float,
        now: float,
    ) -> bool:
        """Return whether one more fault of a client would be evidence, and count nothing.

        Agrees with ``count_fault``: a client at its limit has more faults than nearly all
        others, so one more of them changes no limit.
        """
        self._advance_period(now)
        counted = self._now.faults.get((arm, guard, self._bucket(client)), 0)
        # If nearly all clients have faults, as with slow responses, one more fault of each is
        # typical.
        if counted >= math.ceil(BREACH_FAULTS / self.smaller_arm_clients(share)) and counted >= (
            2 * self._typical_faults(self._now.had_faults.get(guard, {})) + 1
        ):
            return False
        of_network = self._now.network_faults.get((arm, guard, self._origin(address)), 0)
        part = self._network_share(address) * self._relative_share(arm, share)
        return of_network < math.ceil(BREACH_FAULTS * part)

    def begin_step(self) -> None:
        """Reset the limits of faults for all clients."""
        for period in (self._now, self._last):
            period.faults.clear()
            period.network_faults.clear()
            period.had_faults.clear()

    def _typical_faults(self, had: dict[int, int]) -> int:
        """Return the largest number of faults of a typical client; 0 unless a tenth had some."""
        known = sum(self._counts.values())
        few = known - math.ceil(_TYPICAL_QUANTILE * known)
        if not 0 < few < len(had):
            return 0
        return heapq.nlargest(few + 1, had.values())[-1]

    @staticmethod
    def _relative_share(arm: ArmName, share: float) -> float:
        """Return the requests of an arm relative to those of the smaller arm."""
        own = share if arm == "challenger" else 1 - share
        smaller = min(share, 1 - share)
        return own / smaller if smaller > 0 else 1.0

    def _network_share(self, address: str) -> float:
        """Return the share of the requests from a network, in this period and the last."""
        periods, origin = (self._now, self._last), self._origin(address)
        theirs = sum(period.networks.get(origin, 0) for period in periods)
        return theirs / max(1, sum(period.total for period in periods))

    def may_sample(self, client: str, *, per_s: float, now: float) -> bool:
        """Return whether a request of a client may be sampled.

        All clients have the same chance, however many requests they send.

        Args:
            client: Client, from ``client_of``.
            per_s: Rate of samples over all clients [1/s].
            now: Current time [s, monotonic].
        """
        self._advance_period(now)
        bucket = self._bucket(client)
        quota = per_s * PERIOD_S / max(1, sum(self._counts.values()))
        drawn = self._now.draws.get(bucket, 0)
        if drawn >= math.ceil(quota):
            return False
        return hash((self._key, self._ends_at, bucket)) % _NUM_BUCKETS < quota * _NUM_BUCKETS

    def record_sample(self, client: str) -> None:
        """Count that a request of a client was sampled."""
        bucket = self._bucket(client)
        self._now.draws[bucket] = self._now.draws.get(bucket, 0) + 1

    def _advance_period(self, now: float) -> None:
        if now >= self._ends_at:
            is_next = now < self._ends_at + PERIOD_S
            self._last = self._now if is_next else _Period()
            self._now = _Period()
            self._counts = {arm: len(seen) for arm, seen in self._last.seen.items()}
            self._ends_at = now + PERIOD_S
            self._next_quantile = self._typical = 0
            self._absent = len(self._last.requests)

    @staticmethod
    @functools.lru_cache(_NUM_BUCKETS)
    def _origin(address: str) -> int:
        return hash(network_of(address)) % _NUM_BUCKETS

    @staticmethod
    def _bucket(client: str) -> int:
        return hash(client) % _NUM_BUCKETS  # str hashes are salted per process
