"""ROLL-2: what one client may contribute to the evidence."""

import random

import pytest

from sluice.rollout.samples import ArmName
from sluice.serving.clients import ENOUGH_FAULTS, PERIOD_S, Clients
from sluice.serving.steps import ARMS, NO_FAULTS, Faults, unshared


def faults(
    clients: Clients,
    client: str,
    *,
    address: str = "gateway",
    arm: ArmName = "challenger",
    now: float = 1.0,
) -> int:
    """How many of 1000 faults of a client count at a step of 5 %."""
    return sum(
        clients.may_fault(arm, "errors", client, address=address, share=0.05, now=now)
        for _ in range(1000)
    )


def seen(count: int, *, address: str = "gateway") -> Clients:
    clients = Clients()
    for number in range(count):
        clients.see("production", f"user {number}", address=address, now=0.0)
    return clients


@pytest.mark.parametrize(
    ("count", "counted"), [(1, 40), (25, 40), (110, 8), (420, 2), (1000, 1), (5000, 1)]
)
def test_clients_that_all_fail_reach_a_breach_and_one_of_many_does_not(
    count: int, counted: int
) -> None:
    """At 5 % of 420 clients 20 are expected on the challenger: two faults of each are 40.

    Clients are told apart by a digest, so that a few more are needed than the numbers say.
    """
    clients = seen(count)

    assert faults(clients, "user 0") == counted
    assert faults(clients, "user 1", arm="production") == counted, "both arms alike"
    assert faults(clients, "user 0", now=2 * PERIOD_S - 1) == counted, "again, a period later"


def test_new_users_of_one_address_count_as_its_part_of_the_requests() -> None:
    clients = seen(1000)
    for number in range(10):
        clients.see("challenger", f"user new {number}", address="attacker", now=0.0)
    sybils = sum(faults(clients, f"user new {n}", address="attacker") for n in range(10))
    gateway = sum(faults(clients, f"user {n}") for n in range(100))

    assert sybils == 1
    assert gateway == pytest.approx(ENOUGH_FAULTS, abs=1)


def test_a_client_is_compared_about_as_often_as_nearly_all_others() -> None:
    clients = Clients()

    def compared(client: str, requests: int, *, now: float) -> int:
        return sum(
            clients.see("production", client, address="gateway", now=now) for _ in range(requests)
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


def test_every_client_has_the_same_chance_to_be_drawn() -> None:
    clients = seen(1000)

    def drawn(client: str, requests: int) -> int:
        count = 0
        for _ in range(requests):
            if clients.may_draw(client, per_s=1.0, now=1.0):
                clients.draw(client)
                count += 1
        return count

    each = [drawn(f"user {number}", 50) for number in range(1000)]

    assert set(each) == {0, 1}
    assert sum(each) == pytest.approx(300, abs=60), "300 s of one a second"


def test_what_both_arms_do_badly_is_no_fault_of_either() -> None:
    errors, late, slow = Faults({"errors"}), Faults({"timeouts"}), Faults({"slower"})

    assert unshared("challenger", errors, NO_FAULTS) == errors
    assert unshared("challenger", errors, late) == NO_FAULTS, "in whatever way each fails"
    assert unshared("challenger", slow, slow) == NO_FAULTS
    assert unshared("challenger", slow, errors) == NO_FAULTS
    assert unshared("challenger", late | slow, slow) == late
    assert unshared("production", errors, errors) == NO_FAULTS


def test_a_challenger_that_is_a_little_slower_is_not_the_only_slow_one() -> None:
    """It is slow whenever production is: what both share of that counts for production."""
    slow, errors = Faults({"slower"}), Faults({"errors"})

    assert unshared("production", slow, slow) == slow
    assert unshared("production", slow | errors, errors) == slow


def test_an_arm_with_more_requests_has_as_many_more_faults_of_one_gateway() -> None:
    """Or production's slow answers would end to count first, and the challenger's go on."""
    clients = seen(1000)
    users_of: dict[ArmName, range] = {"challenger": range(50), "production": range(50, 1000)}
    counted = {
        arm: sum(
            clients.may_fault(
                arm, "slower", f"user {number}", address="gateway", share=0.05, now=1.0
            )
            for _ in range(3)
            for number in users
        )
        for arm, users in users_of.items()
    }

    assert counted["challenger"] == ENOUGH_FAULTS
    assert counted["production"] == 19 * ENOUGH_FAULTS


def test_whether_a_fault_would_count_is_known_before_and_changes_nothing() -> None:
    draw = random.Random(7)
    clients = seen(60)
    for number in range(3000):
        # Some have many faults, so that the limits of clients and of networks both apply.
        client = f"user {min(draw.randrange(60), draw.randrange(60), draw.randrange(60))}"
        arm = draw.choice(ARMS)
        address = draw.choice(("gateway", "192.0.2.1"))
        now = number / 10
        expected = clients.would_count(arm, "slower", client, address=address, share=0.3, now=now)
        counted = clients.may_fault(arm, "slower", client, address=address, share=0.3, now=now)

        assert counted == expected
