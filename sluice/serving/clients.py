"""What one client may contribute to the evidence: a share, however much it sends (ROLL-2).

A client knows its arm from the first answer on, and may then send whatever speaks against that arm,
as often as it likes. So what it did counts up to a share of what all clients did: of its faults
only the first few, and it is drawn as a sample no more often than others. Where clients are few,
each has the larger share, or a challenger that fails for all of them could not be found.
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
"""Time after which a client has its share again [s]."""

ENOUGH_FAULTS = 40
"""Faults of an arm that suffice for a breach; clients that all fail reach them together."""

_USUAL = 0.9
"""Quantile of the requests of all clients: more than twice as many are unusual. Clients that a
tenth of all outnumbers cannot move it."""

_GROWTH = 1.1
"""The quantile is taken again once there are so many times the requests."""

_BUCKETS = 2**14
"""Clients told apart: of more than that some share their parts, and memory stays bounded."""


@dataclass(slots=True)
class _Period:
    """What was seen of clients in one period."""

    seen: dict[ArmName, set[int]] = field(
        default_factory=lambda: {"production": set(), "challenger": set()}
    )
    requests: dict[int, int] = field(default_factory=dict)
    total: int = 0
    clients_by_requests: Counter[int] = field(default_factory=Counter)
    """How many clients sent how many requests."""

    networks: dict[int, int] = field(default_factory=dict)
    """Requests of each network, whatever users they name."""

    network_faults: dict[tuple[ArmName, GuardName, int], int] = field(default_factory=dict)
    faults: dict[tuple[ArmName, GuardName, int], int] = field(default_factory=dict)
    had_faults: dict[GuardName, dict[int, int]] = field(default_factory=dict)
    """How many faults each client had, whether they counted or not."""

    draws: dict[int, int] = field(default_factory=dict)


class Clients:
    """The clients of one server; touched by its event loop only."""

    def __init__(self) -> None:
        self._ends_at = -math.inf
        self._now, self._last = _Period(), _Period()
        self._counts: dict[ArmName, int] = {"production": 0, "challenger": 0}
        self._next_quantile = self._usual = 0
        self._absent = 0
        """Clients of the last period that have not come in this one."""

        self._key = secrets.token_bytes(8)  # nobody outside can choose clients that are drawn

    def see(self, arm: ArmName, client: str, *, address: str, now: float) -> bool:
        """Note a client's request; say whether it is compared.

        Of a client that sends far more than nearly all others the first requests are: what it
        sends beyond would hide what the arms do to everybody else.

        Args:
            arm: Where the request went.
            client: As ``client_of`` says.
            address: Where it came from.
            now: The moment [s, monotonic].
        """
        self._turn(now)
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
            self._usual = self._quantile()
            self._next_quantile = math.ceil(_GROWTH * self._now.total)
        return before < self.most_of_one

    @property
    def most_of_one(self) -> int:
        """Requests of one client in this period that are compared."""
        return 2 * self._usual + 1

    def _quantile(self) -> int:
        """Return how many requests of this period nearly all clients have at most."""
        wanted = math.ceil(_USUAL * (len(self._now.requests) + self._absent)) - self._absent
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

    def smaller(self, share: float) -> int:
        """Return how many clients the arm with fewer of them has, or is to have by its share.

        At the start of a step hardly any has come yet, and the first one must not count for all.
        """
        ours, theirs = self.count("challenger"), self.count("production")
        expected = share * (ours + theirs)
        return max(1, min(max(ours, int(expected)), max(theirs, int(ours + theirs - expected))))

    def may_fault(
        self,
        arm: ArmName,
        guard: GuardName,
        client: str,
        *,
        address: str,
        share: float,
        now: float,
    ) -> bool:
        """Say whether one more fault of a client is evidence, and count it when it is.

        Both arms have the same limit, that of the arm with fewer clients: or faults that both
        have would seem to be those of one. As anybody may name new users, and change addresses
        within a network, a network has a limit too, its part of the requests: all of it where one
        gateway asks for everybody.
        """
        self._turn(now)
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
        """Say whether one more fault of a client would be evidence, and count nothing.

        What ``may_fault`` would say: a client at its limit has more faults than nearly all, so that
        one more of them changes no limit.
        """
        self._turn(now)
        counted = self._now.faults.get((arm, guard, self._bucket(client)), 0)
        # Where nearly all clients have faults, as with slow answers, one more of each is as usual.
        if counted >= math.ceil(ENOUGH_FAULTS / self.smaller(share)) and counted >= (
            2 * self._usual_faults(self._now.had_faults.get(guard, {})) + 1
        ):
            return False
        of_network = self._now.network_faults.get((arm, guard, self._origin(address)), 0)
        part = self._part(address) * self._times(arm, share)
        return of_network < math.ceil(ENOUGH_FAULTS * part)

    def begin_step(self) -> None:
        """Give all clients their share of the faults again."""
        for period in (self._now, self._last):
            period.faults.clear()
            period.network_faults.clear()
            period.had_faults.clear()

    def _usual_faults(self, had: dict[int, int]) -> int:
        """Return how many faults nearly all clients had at most; 0 unless a tenth had some."""
        known = sum(self._counts.values())
        few = known - math.ceil(_USUAL * known)
        if not 0 < few < len(had):
            return 0
        return heapq.nlargest(few + 1, had.values())[-1]

    @staticmethod
    def _times(arm: ArmName, share: float) -> float:
        """Return how many times the requests of the smaller arm an arm gets."""
        own = share if arm == "challenger" else 1 - share
        smaller = min(share, 1 - share)
        return own / smaller if smaller > 0 else 1.0

    def _part(self, address: str) -> float:
        """Return which part of the requests came from a network, in this period and the last."""
        periods, origin = (self._now, self._last), self._origin(address)
        theirs = sum(period.networks.get(origin, 0) for period in periods)
        return theirs / max(1, sum(period.total for period in periods))

    def may_draw(self, client: str, *, per_s: float, now: float) -> bool:
        """Say whether a request of a client may be drawn as a sample.

        All clients have the same chance, whatever they send.

        Args:
            client: As ``client_of`` says.
            per_s: Samples that are drawn of all clients [1/s].
            now: The moment [s, monotonic].
        """
        self._turn(now)
        bucket = self._bucket(client)
        quota = per_s * PERIOD_S / max(1, sum(self._counts.values()))
        drawn = self._now.draws.get(bucket, 0)
        if drawn >= math.ceil(quota):
            return False
        return hash((self._key, self._ends_at, bucket)) % _BUCKETS < quota * _BUCKETS

    def draw(self, client: str) -> None:
        """Count that a request of a client was drawn."""
        bucket = self._bucket(client)
        self._now.draws[bucket] = self._now.draws.get(bucket, 0) + 1

    def _turn(self, now: float) -> None:
        if now >= self._ends_at:
            is_next = now < self._ends_at + PERIOD_S
            self._last = self._now if is_next else _Period()
            self._now = _Period()
            self._counts = {arm: len(seen) for arm, seen in self._last.seen.items()}
            self._ends_at = now + PERIOD_S
            self._next_quantile = self._usual = 0
            self._absent = len(self._last.requests)

    @staticmethod
    @functools.lru_cache(_BUCKETS)
    def _origin(address: str) -> int:
        return hash(network_of(address)) % _BUCKETS

    @staticmethod
    def _bucket(client: str) -> int:
        return hash(client) % _BUCKETS  # of texts, hash is keyed anew in each process
