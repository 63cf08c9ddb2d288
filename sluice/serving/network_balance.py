"""Compares the requests of a network in proportion to the traffic split.

A client that invents user names learns their arm from the first response, and may keep those of
one arm only. Its good requests would hide what the challenger does to all other users, and good
requests on production alone would make a healthy challenger look worse. A network whose users
were not selected this way has its share of requests on both arms, up to chance.

Source:
    The number of users on an arm is binomial; three standard deviations are allowed.
"""

import math

from sluice.registry.client_secret import network_of
from sluice.rollout.samples import ArmName

_DEVIATIONS = 3.0
"""Allowed standard deviations of the number of users on an arm."""

_MAX_USERS = 2**16
"""Largest number of (network, user) pairs that are distinguished in a step; beyond it the allowance
is smaller."""


class NetworkBalance:
    """Requests of each network on both arms in one step; used by the event loop only."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ArmName], int] = {}
        self._compared: dict[tuple[str, ArmName], int] = {}
        self._users: set[tuple[str, int]] = set()
        self._num_users: dict[str, int] = {}

    def admit(
        self, arm: ArmName, client: str, *, address: str, share: float, per_client: int
    ) -> bool:
        """Count a request; return whether it is in proportion to its network's on the other arm.

        Args:
            arm: Arm that the request was routed to.
            client: Client, from ``client_of``.
            address: Client address.
            share: Share of the users that the challenger answers.
            per_client: Most requests that a typical client sends.
        """
        if not 0 < share < 1:
            return True
        network = network_of(address)
        user = (network, hash(client))
        if user not in self._users and len(self._users) < _MAX_USERS:
            self._users.add(user)
            self._num_users[network] = self._num_users.get(network, 0) + 1
        own = share if arm == "challenger" else 1 - share
        other: ArmName = "production" if arm == "challenger" else "challenger"
        key = (network, arm)
        self._seen[key] = self._seen.get(key, 0) + 1
        spread = math.sqrt(own * (1 - own) * self._num_users.get(network, 0))
        by_chance = per_client * max(1.0, _DEVIATIONS * spread)
        in_proportion = own / (1 - own) * self._seen.get((network, other), 0)
        compared = self._compared.get(key, 0)
        if compared >= in_proportion + by_chance:
            return False
        self._compared[key] = compared + 1
        return True
