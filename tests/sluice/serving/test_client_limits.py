"""ROLL-2: limits on the evidence that one client contributes."""

import random

import pytest

from sluice.rollout.samples import ArmName
from sluice.serving.client_limits import BREACH_FAULTS, PERIOD_S, ClientLimits
from sluice.serving.step_counters import ARMS, NO_FAULTS, GuardFaults, evidence_faults


def count_faults(
    clients: ClientLimits,
    client: str,
    *,
    address: str = "gateway",
    arm: ArmName = "challenger",
    now: float = 1.0,
) -> int:
    """Return how many of 1000 faults of a client count in a step of 5 %."""
    return sum(
        clients.count_fault(arm, "errors", client, address=address, share=0.05, now=now)
        for _ in range(1000)
    )


def record_clients(count: int, *, address: str = "gateway") -> ClientLimits:
    clients = ClientLimits()
    for number in range(count):
        clients.record_request("production", f"user {number}", address=address, now=0.0)
    return clients


@pytest.mark.parametrize(
    ("count", "counted"), [(1, 40), (25, 40), (110, 8), (420, 2), (1000, 1), (5000, 1)]
)
def test_failures_of_all_clients_breach_and_those_of_one_do_not(count: int, counted: int) -> None:
    """With 420 clients at 5 %, 20 use the challenger, and two faults of each make 40.

    Clients are counted by a short digest, so collisions require slightly more of them.
    """
    clients = record_clients(count)

    assert count_faults(clients, "user 0") == counted
    assert count_faults(clients, "user 1", arm="production") == counted, (
        "the limit is the same for both arms"
    )
    assert count_faults(clients, "user 0", now=2 * PERIOD_S - 1) == counted, (
        "the limit applies again in the next period"
    )


def test_new_users_of_one_address_share_one_limit() -> None:
    clients = record_clients(1000)
    for number in range(10):
        clients.record_request("challenger", f"user new {number}", address="attacker", now=0.0)
    sybils = sum(count_faults(clients, f"user new {n}", address="attacker") for n in range(10))
    gateway = sum(count_faults(clients, f"user {n}") for n in range(100))

    assert sybils == 1
    assert gateway == pytest.approx(BREACH_FAULTS, abs=1)


def test_a_client_is_compared_about_as_often_as_typical_clients() -> None:
    clients = ClientLimits()

    def count_compared(client: str, requests: int, *, now: float) -> int:
        return sum(
            clients.record_request("production", client, address="gateway", now=now)
            for _ in range(requests)
        )

    only_client = count_compared("user 0", 500, now=0.0)
    for _ in range(3):
        for number in range(200):
            count_compared(f"user {number}", 1, now=PERIOD_S)
    typical = sum(count_compared(f"user {number}", 1, now=PERIOD_S) for number in range(200))
    frequent = count_compared("user loud", 5000, now=PERIOD_S)

    assert only_client == 500, "it is the only client"
    assert typical > 190, "a few share a digest"
    assert frequent <= 2 * 5 + 1


def test_every_client_is_sampled_with_the_same_probability() -> None:
    clients = record_clients(1000)

    def count_samples(client: str, requests: int) -> int:
        count = 0
        for _ in range(requests):
            if clients.may_sample(client, per_s=1.0, now=1.0):
                clients.record_sample(client)
                count += 1
        return count

    samples = [count_samples(f"user {number}", 50) for number in range(1000)]

    assert set(samples) == {0, 1}
    assert sum(samples) == pytest.approx(300, abs=60), "one per second for 300 s"


def test_faults_of_both_arms_are_not_evidence() -> None:
    errors, timeouts, slow = (
        GuardFaults({"errors"}),
        GuardFaults({"timeouts"}),
        GuardFaults({"slower"}),
    )

    assert evidence_faults("challenger", errors, NO_FAULTS) == errors
    assert evidence_faults("challenger", errors, timeouts) == NO_FAULTS, (
        "regardless of the type of fault"
    )
    assert evidence_faults("challenger", slow, slow) == NO_FAULTS
    assert evidence_faults("challenger", slow, errors) == NO_FAULTS
    assert evidence_faults("challenger", timeouts | slow, slow) == timeouts
    assert evidence_faults("production", errors, errors) == NO_FAULTS


def test_a_slightly_slower_challenger_is_not_the_only_slow_arm() -> None:
    """It is slow whenever production is slow, so slow responses of production count as well."""
    slow, errors = GuardFaults({"slower"}), GuardFaults({"errors"})

    assert evidence_faults("production", slow, slow) == slow
    assert evidence_faults("production", slow | errors, errors) == slow


def test_the_fault_limit_of_a_gateway_scales_with_the_requests_of_the_arm() -> None:
    """Otherwise production reaches its limit first, and only the challenger keeps counting."""
    clients = record_clients(1000)
    users_of: dict[ArmName, range] = {"challenger": range(50), "production": range(50, 1000)}
    counted = {
        arm: sum(
            clients.count_fault(
                arm, "slower", f"user {number}", address="gateway", share=0.05, now=1.0
            )
            for _ in range(3)
            for number in users
        )
        for arm, users in users_of.items()
    }

    assert counted["challenger"] == BREACH_FAULTS
    assert counted["production"] == 19 * BREACH_FAULTS


def test_would_count_predicts_count_fault_without_side_effects() -> None:
    draw = random.Random(7)
    clients = record_clients(60)
    for number in range(3000):
        # Some clients have many faults, so that the limits of clients and of networks both apply.
        client = f"user {min(draw.randrange(60), draw.randrange(60), draw.randrange(60))}"
        arm = draw.choice(ARMS)
        address = draw.choice(("gateway", "192.0.2.1"))
        now = number / 10
        expected = clients.would_count(arm, "slower", client, address=address, share=0.3, now=now)
        counted = clients.count_fault(arm, "slower", client, address=address, share=0.3, now=now)

        assert counted == expected
