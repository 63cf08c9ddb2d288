"""Requests of a network are compared in proportion to the split of the traffic (ROLL-2).

Whoever invents users learns their arm from the first answer, and may keep those of one arm only:
good requests by them would hide what the challenger does to everybody else, and good requests on
production alone would make a healthy challenger seem worse. A network whose users were not chosen
has its share of requests on both arms, up to chance.

Source:
    The number of users on an arm is binomial; three standard deviations are allowed.
"""

import math

from sluice.registry.client_secret import network_of
from sluice.rollout.samples import ArmName

_DEVIATIONS = 3.0
"""Standard deviations of the number of users on an arm that are allowed."""

_MAX_USERS = 2**16
"""Pairs of network and user that are told apart in a step; beyond, fewer are allowed for."""


class NetworkBalance:
    """The requests of each network on both arms, in one step; touched by the event loop only."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ArmName], int] = {}
        self._compared: dict[tuple[str, ArmName], int] = {}
        self._users: set[tuple[str, int]] = set()
        self._num_users: dict[str, int] = {}

    def admit(
        self, arm: ArmName, client: str, *, address: str, share: float, per_client: int
    ) -> bool:
        """Note a request; say whether it is in proportion to its network's on the other arm.

        Args:
            arm: Where the request went.
            client: As ``client_of`` says.
            address: Where it came from.
            share: Share of the users that the challenger answers.
            per_client: Requests that a usual client sends at most.
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
