"""ROLL-2: limits of what one client contributes to the evidence."""

import random

import pytest

from sluice.rollout.samples import ArmName
from sluice.serving.client_limits import BREACH_FAULTS, PERIOD_S, ClientLimits
from sluice.serving.step_counters import ARMS, NO_FAULTS, GuardFaults, evidence_faults


def faults(
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


def seen(count: int, *, address: str = "gateway") -> ClientLimits:
    clients = ClientLimits()
    for number in range(count):
        clients.record_request("production", f"user {number}", address=address, now=0.0)
    return clients


@pytest.mark.parametrize(
    ("count", "counted"), [(1, 40), (25, 40), (110, 8), (420, 2), (1000, 1), (5000, 1)]
)
def test_failures_of_all_clients_breach_and_those_of_one_do_not(count: int, counted: int) -> None:
    """At 5 % of 420 clients 20 are expected on the challenger: two faults of each are 40.

    Clients are told apart by a digest, so that a few more are needed than the numbers say.
    """
    clients = seen(count)

    assert faults(clients, "user 0") == counted
    assert faults(clients, "user 1", arm="production") == counted, "both arms alike"
    assert faults(clients, "user 0", now=2 * PERIOD_S - 1) == counted, "again, a period later"


def test_new_users_of_one_address_share_the_limit_of_its_network() -> None:
    clients = seen(1000)
    for number in range(10):
        clients.record_request("challenger", f"user new {number}", address="attacker", now=0.0)
    sybils = sum(faults(clients, f"user new {n}", address="attacker") for n in range(10))
    gateway = sum(faults(clients, f"user {n}") for n in range(100))

    assert sybils == 1
    assert gateway == pytest.approx(BREACH_FAULTS, abs=1)


def test_a_client_is_compared_about_as_often_as_typical_clients() -> None:
    clients = ClientLimits()

    def compared(client: str, requests: int, *, now: float) -> int:
        return sum(
            clients.record_request("production", client, address="gateway", now=now)
            for _ in range(requests)
        )

    alone = compared("user 0", 500, now=0.0)
    for _ in range(3):
        for number in range(200):
            compared(f"user {number}", 1, now=PERIOD_S)
    usual = sum(compared(f"user {number}", 1, now=PERIOD_S) for number in range(200))
    loud = compared("user loud", 5000, now=PERIOD_S)

    assert alone == 500, "nobody else is there"
    assert usual > 190, "but for some that share their part"
    assert loud <= 2 * 5 + 1


def test_every_client_is_sampled_with_the_same_probability() -> None:
    clients = seen(1000)

    def drawn(client: str, requests: int) -> int:
        count = 0
        for _ in range(requests):
            if clients.may_sample(client, per_s=1.0, now=1.0):
                clients.record_sample(client)
                count += 1
        return count

    each = [drawn(f"user {number}", 50) for number in range(1000)]

    assert set(each) == {0, 1}
    assert sum(each) == pytest.approx(300, abs=60), "300 s of one a second"


def test_faults_of_both_arms_are_no_evidence() -> None:
    errors, late, slow = GuardFaults({"errors"}), GuardFaults({"timeouts"}), GuardFaults({"slower"})

    assert evidence_faults("challenger", errors, NO_FAULTS) == errors
    assert evidence_faults("challenger", errors, late) == NO_FAULTS, "in whatever way each fails"
    assert evidence_faults("challenger", slow, slow) == NO_FAULTS
    assert evidence_faults("challenger", slow, errors) == NO_FAULTS
    assert evidence_faults("challenger", late | slow, slow) == late
    assert evidence_faults("production", errors, errors) == NO_FAULTS


def test_a_slightly_slower_challenger_is_not_the_only_slow_arm() -> None:
    """It is slow whenever production is, so production's slow responses must count as well."""
    slow, errors = GuardFaults({"slower"}), GuardFaults({"errors"})

    assert evidence_faults("production", slow, slow) == slow
    assert evidence_faults("production", slow | errors, errors) == slow


def test_the_fault_limit_of_a_gateway_scales_with_the_requests_of_the_arm() -> None:
    """Or production's slow answers would end to count first, and the challenger's go on."""
    clients = seen(1000)
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
    clients = seen(60)
    for number in range(3000):
        # Some have many faults, so that the limits of clients and of networks both apply.
        client = f"user {min(draw.randrange(60), draw.randrange(60), draw.randrange(60))}"
        arm = draw.choice(ARMS)
        address = draw.choice(("gateway", "192.0.2.1"))
        now = number / 10
        expected = clients.would_count(arm, "slower", client, address=address, share=0.3, now=now)
        counted = clients.count_fault(arm, "slower", client, address=address, share=0.3, now=now)

        assert counted == expected
