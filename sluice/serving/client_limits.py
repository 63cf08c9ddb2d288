"""Limits what one client contributes to the evidence, regardless of how many requests it sends.

A client learns its arm from its first response. It could then send any number of requests that
count against this arm. Therefore only the first few faults of each client count, and each client
is sampled equally often. If there are few clients, more faults of each client count, so that the
evidence suffices to detect a challenger that fails for all clients.
"""

import functools
import heapq
import math
import secrets
from collections import Counter
from dataclasses import dataclass, field

from sluice.registry.client_names import subnet_of
from sluice.rollout.evidence import GuardName
from sluice.rollout.samples import ArmName

PERIOD_S = 300.0
"""Length of a period [s]. At its end the limits of all clients start again."""

BREACH_FAULTS = 40
"""Number of faults of an arm that suffices for a breach. The limit per client is this number
divided by the number of clients of the smaller arm. So the clients of each arm together can reach
this number."""

_TYPICAL_QUANTILE = 0.9
"""A client is typical if its number of requests (or faults) is at most this quantile of the numbers
of all clients.

Only the first requests of each client are compared, up to about twice the quantile. A client that
uses several user names cannot change the quantile as long as these names are less than a tenth of
all clients."""

_REFRESH_FACTOR = 1.1
"""Factor by which the number of requests must grow until the quantile is computed again. Computing
the quantile for each request would be slow."""

_NUM_BUCKETS = 2**14
"""Number of hash buckets for clients, and for subnets. Hashing bounds the memory; clients in the
same bucket share their limits."""


@dataclass(slots=True)
class _Period:
    """Counts of the clients in one period."""

    clients: dict[ArmName, set[int]] = field(
        default_factory=lambda: {"production": set(), "challenger": set()}
    )
    """Hash buckets of the clients with a request in this period, by arm."""

    client_requests: dict[int, int] = field(default_factory=dict)
    """Number of requests, by client."""

    num_requests: int = 0
    """Number of requests of all clients."""

    clients_by_requests: Counter[int] = field(default_factory=Counter)
    """Number of clients, by their number of requests."""

    subnet_requests: dict[int, int] = field(default_factory=dict)
    """Number of requests by client subnet, under any user name."""

    subnet_faults: dict[tuple[ArmName, GuardName, int], int] = field(default_factory=dict)
    """Number of faults that count as evidence, by arm, guard and client subnet."""

    faults: dict[tuple[ArmName, GuardName, int], int] = field(default_factory=dict)
    """Number of faults that count as evidence, by arm, guard and client."""

    all_faults: dict[GuardName, dict[int, int]] = field(default_factory=dict)
    """Number of all faults by guard and client, also of faults that do not count as evidence."""

    client_samples: dict[int, int] = field(default_factory=dict)
    """Number of sampled requests, by client."""


class ClientLimits:
    """Limits of the clients of one server; used by its event loop only.

    In all methods, ``share`` is the share of the users that the challenger answers.
    """

    def __init__(self) -> None:
        self._period_ends_at = -math.inf
        self._current_period, self._previous_period = _Period(), _Period()
        self._num_clients: dict[ArmName, int] = {"production": 0, "challenger": 0}
        """Number of clients in the current and the previous period, by arm."""

        self._max_typical_requests = 0
        """Largest number of requests of a typical client in the current period."""

        self._refresh_at_requests = 0
        """Number of requests at which ``_max_typical_requests`` is computed again."""

        self._num_absent = 0
        """Number of clients of the previous period without a request in the current period."""

        # Random, so that a client cannot choose a name that is sampled.
        self._sampling_salt = secrets.token_bytes(8)

    def record_request(self, arm: ArmName, client: str, *, address: str, now: float) -> bool:
        """Count a request, and return whether the arms are compared on it.

        If a client sends far more requests than nearly all others, only its first requests are
        compared. Its further requests would outweigh the requests of the other clients.

        Args:
            arm: Arm that the request was routed to.
            client: Name of the client, from ``client_of``.
            address: Client address.
            now: Current time [s, monotonic].
        """
        self._advance_period(now)
        subnet = self._subnet(address)
        self._current_period.subnet_requests[subnet] = (
            self._current_period.subnet_requests.get(subnet, 0) + 1
        )
        bucket, clients = self._bucket(client), self._current_period.clients[arm]
        if bucket not in clients:
            clients.add(bucket)
            self._num_clients[arm] += bucket not in self._previous_period.clients[arm]
        requests = self._current_period.client_requests
        num_earlier_requests = requests.get(bucket, 0)
        requests[bucket] = num_earlier_requests + 1
        if num_earlier_requests:
            self._current_period.clients_by_requests[num_earlier_requests] -= 1
        self._current_period.clients_by_requests[num_earlier_requests + 1] += 1
        if not num_earlier_requests and bucket in self._previous_period.client_requests:
            self._num_absent -= 1
        self._current_period.num_requests += 1
        if self._current_period.num_requests >= self._refresh_at_requests:
            self._max_typical_requests = self._compute_max_typical_requests()
            self._refresh_at_requests = math.ceil(
                _REFRESH_FACTOR * self._current_period.num_requests
            )
        return num_earlier_requests < self.max_compared_requests

    @property
    def max_compared_requests(self) -> int:
        """Maximum number of compared requests per client in this period."""
        return 2 * self._max_typical_requests + 1

    def _compute_max_typical_requests(self) -> int:
        """Return the maximum number of requests of a typical client in this period.

        Clients of the previous period without a request in this period count with 0 requests.
        """
        num_typical = math.ceil(
            _TYPICAL_QUANTILE * (len(self._current_period.client_requests) + self._num_absent)
        )
        num_remaining = num_typical - self._num_absent
        for num_requests, num_clients in sorted(self._current_period.clients_by_requests.items()):
            if num_remaining <= 0:
                break
            num_remaining -= num_clients
            if num_remaining <= 0:
                return num_requests
        return 0

    def num_clients(self, arm: ArmName) -> int:
        """Return the number of clients of an arm in this period and the previous one."""
        return self._num_clients[arm]

    def num_clients_of_smaller_arm(self, share: float) -> int:
        """Return the number of clients of the arm that has fewer clients.

        If an arm has fewer clients than expected from its share, the expected number is used. At
        the start of a step few clients have sent a request. The first client of an arm must not get
        the limit of the whole arm.
        """
        challenger, production = self.num_clients("challenger"), self.num_clients("production")
        num_expected = share * (challenger + production)
        return max(
            1,
            min(
                max(challenger, int(num_expected)),
                max(production, int(challenger + production - num_expected)),
            ),
        )

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
        """Count one fault of a client, and return whether the fault is evidence.

        The limit per client is the same for both arms. The arm with fewer clients determines it.
        With different limits, faults that both arms have could count for one arm only. A client
        may invent user names and change its address within a subnet, so each subnet has a limit as
        well, in proportion to its requests. A gateway that sends all requests has the limit of all
        clients together.
        """
        self._advance_period(now)
        bucket, subnet = self._bucket(client), self._subnet(address)
        all_faults = self._current_period.all_faults.setdefault(guard, {})
        all_faults[bucket] = all_faults.get(bucket, 0) + 1
        if not self.would_count(arm, guard, client, address=address, share=share, now=now):
            return False
        faults, subnet_faults = self._current_period.faults, self._current_period.subnet_faults
        client_key, subnet_key = (arm, guard, bucket), (arm, guard, subnet)
        faults[client_key] = faults.get(client_key, 0) + 1
        subnet_faults[subnet_key] = subnet_faults.get(subnet_key, 0) + 1
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
        """Return whether one more fault of a client would be evidence, without counting it.

        The result agrees with ``count_fault``, although ``count_fault`` counts the fault before it
        computes the limits: a client at its limit has more faults than nearly all others, so its
        next fault changes no limit.
        """
        self._advance_period(now)
        num_counted = self._current_period.faults.get((arm, guard, self._bucket(client)), 0)
        client_limit = math.ceil(BREACH_FAULTS / self.num_clients_of_smaller_arm(share))
        # If nearly all clients have faults, for example slow responses, a client is limited only
        # if it has far more faults than the others.
        typical_limit = 2 * self._typical_faults(self._current_period.all_faults.get(guard, {})) + 1
        if num_counted >= client_limit and num_counted >= typical_limit:
            return False
        num_subnet_counted = self._current_period.subnet_faults.get(
            (arm, guard, self._subnet(address)), 0
        )
        # All clients of the smaller arm may have BREACH_FAULTS together, and the clients of the
        # larger arm proportionally more. The limit of a subnet is its share of this total.
        subnet_part = self._subnet_share(address) * self._relative_share(arm, share)
        return num_subnet_counted < math.ceil(BREACH_FAULTS * subnet_part)

    def begin_step(self) -> None:
        """Reset the fault counts of all clients, because a new step has its own evidence."""
        for period in (self._current_period, self._previous_period):
            period.faults.clear()
            period.subnet_faults.clear()
            period.all_faults.clear()

    def _typical_faults(self, faults_by_client: dict[int, int]) -> int:
        """Return the maximum number of faults of a typical client.

        The result is 0 if at most a tenth of the clients have faults, and with at most 9 clients.
        """
        num_clients = sum(self._num_clients.values())
        num_atypical = num_clients - math.ceil(_TYPICAL_QUANTILE * num_clients)
        if not 0 < num_atypical < len(faults_by_client):
            return 0
        return heapq.nlargest(num_atypical + 1, faults_by_client.values())[-1]

    @staticmethod
    def _relative_share(arm: ArmName, share: float) -> float:
        """Return the planned share of an arm, divided by the share of the smaller arm."""
        arm_share = share if arm == "challenger" else 1 - share
        smaller = min(share, 1 - share)
        return arm_share / smaller if smaller > 0 else 1.0

    def _subnet_share(self, address: str) -> float:
        """Return the share of a subnet in all requests of this period and the previous one."""
        periods, subnet = (self._current_period, self._previous_period), self._subnet(address)
        num_requests = sum(period.subnet_requests.get(subnet, 0) for period in periods)
        return num_requests / max(1, sum(period.num_requests for period in periods))

    def may_sample(self, client: str, *, per_s: float, now: float) -> bool:
        """Return whether a request of a client may be sampled.

        Each client has the same chance, regardless of how many requests it sends.

        Args:
            client: Name of the client, from ``client_of``.
            per_s: Rate of samples over all clients [1/s].
            now: Current time [s, monotonic].
        """
        self._advance_period(now)
        bucket = self._bucket(client)
        samples_per_client = per_s * PERIOD_S / max(1, sum(self._num_clients.values()))
        if self._current_period.client_samples.get(bucket, 0) >= math.ceil(samples_per_client):
            return False
        # A samples_per_client below 1 is the fraction of the clients that are sampled at all.
        draw = hash((self._sampling_salt, self._period_ends_at, bucket)) % _NUM_BUCKETS
        return draw < samples_per_client * _NUM_BUCKETS

    def record_sample(self, client: str) -> None:
        """Count that a request of a client was sampled."""
        bucket = self._bucket(client)
        self._current_period.client_samples[bucket] = (
            self._current_period.client_samples.get(bucket, 0) + 1
        )

    def _advance_period(self, now: float) -> None:
        if now >= self._period_ends_at:
            has_just_ended = now < self._period_ends_at + PERIOD_S
            self._previous_period = self._current_period if has_just_ended else _Period()
            self._current_period = _Period()
            self._num_clients = {
                arm: len(clients) for arm, clients in self._previous_period.clients.items()
            }
            self._period_ends_at = now + PERIOD_S
            self._refresh_at_requests = self._max_typical_requests = 0
            self._num_absent = len(self._previous_period.client_requests)

    @staticmethod
    @functools.lru_cache(_NUM_BUCKETS)
    def _subnet(address: str) -> int:
        return hash(subnet_of(address)) % _NUM_BUCKETS

    @staticmethod
    def _bucket(client: str) -> int:
        # Hashes of str are salted per process, so clients cannot choose their bucket.
        return hash(client) % _NUM_BUCKETS
