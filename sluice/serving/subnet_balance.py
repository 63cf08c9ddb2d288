"""Limits the compared requests of a client subnet on one arm by its requests on the other arm.

A client can invent user names, learn the arm of each name from the first response, and continue
with the names of one arm only. Good requests to the challenger only would hide its faults. Good
requests to production only would make a healthy challenger look worse. The users of an honest
subnet are on both arms in proportion to the traffic split, except for chance.

The number of users on an arm has a binomial distribution; three standard deviations are allowed.
"""

import math

from sluice.registry.client_names import subnet_of
from sluice.rollout.samples import ArmName

_MAX_DEVIATION = 3.0
"""Maximum deviation of the number of users on an arm from its expectation [standard deviations]."""

_MAX_USERS = 2**16
"""Maximum number of (subnet, user) pairs that are stored in a step. If there are more pairs, the
maximum deviation is computed from too few users, and is smaller."""


class SubnetBalance:
    """Requests of each subnet on both arms in one step; used by the event loop only."""

    def __init__(self) -> None:
        self._num_requests: dict[tuple[str, ArmName], int] = {}
        self._num_compared: dict[tuple[str, ArmName], int] = {}
        self._users: set[tuple[str, int]] = set()
        self._num_users: dict[str, int] = {}

    def admit(
        self, arm: ArmName, client: str, *, address: str, share: float, max_per_client: int
    ) -> bool:
        """Count a request, and return whether it may be compared.

        The number of compared requests of a subnet on this arm must be in proportion to the number
        of its requests on the other arm.

        Args:
            arm: Arm that the request was routed to.
            client: Name of the client, from ``client_of``.
            address: Client address.
            share: Share of the users that the challenger answers.
            max_per_client: Maximum number of compared requests per client.
        """
        if not 0 < share < 1:
            return True
        subnet = subnet_of(address)
        user = (subnet, hash(client))
        if user not in self._users and len(self._users) < _MAX_USERS:
            self._users.add(user)
            self._num_users[subnet] = self._num_users.get(subnet, 0) + 1
        arm_share = share if arm == "challenger" else 1 - share
        other_arm: ArmName = "production" if arm == "challenger" else "challenger"
        subnet_and_arm = (subnet, arm)
        self._num_requests[subnet_and_arm] = self._num_requests.get(subnet_and_arm, 0) + 1
        std_users = math.sqrt(arm_share * (1 - arm_share) * self._num_users.get(subnet, 0))
        num_by_chance = max_per_client * max(1.0, _MAX_DEVIATION * std_users)
        num_in_proportion = (
            arm_share / (1 - arm_share) * self._num_requests.get((subnet, other_arm), 0)
        )
        num_compared = self._num_compared.get(subnet_and_arm, 0)
        if num_compared >= num_in_proportion + num_by_chance:
            return False
        self._num_compared[subnet_and_arm] = num_compared + 1
        return True
