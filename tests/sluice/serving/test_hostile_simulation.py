"""Hostile clients (1 %) can neither end a healthy rollout nor save a faulty challenger (ROLL-2).

10,000 clients send 100 requests per second. The 100 hostile ones send the same rate or ten times as
many, all to the arm that they want to harm or hide.
"""

import math

import pytest

from tests.support.hostile_traffic import SimulatedClients, time_to_rollback

ROLLOUTS = 3


def rollback_times(
    clients: SimulatedClients, *, seconds: float, compares_arms: bool = True, count: int = ROLLOUTS
) -> list[float]:
    return [
        time_to_rollback(clients, seconds=seconds, seed=seed, compares_arms=compares_arms)
        for seed in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["shared errors", "slow requests", "odd samples"])
def test_hostile_clients_on_a_healthy_challenger_do_not_end_its_rollout(attack: str) -> None:
    clients = SimulatedClients(attack=attack)  # type: ignore[arg-type]

    rolled_back = [time for time in rollback_times(clients, seconds=80) if time < math.inf]
    assert len(rolled_back) <= 1, "one in some hundred is rolled back by chance"
    assert max(rollback_times(clients, seconds=80, compares_arms=False)) < 60, (
        "it would end if all faults counted"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "on", "per_s"),
    [("shared errors", "production", 100.0), ("good requests", "challenger", 500.0)],
)
def test_hostile_clients_do_not_hide_a_faulty_challenger(
    attack: str, on: str, per_s: float
) -> None:
    faulty = SimulatedClients(
        error_factor=20, attack=attack, hostile_arm=on, hostile_requests_per_s=per_s
    )  # type: ignore[arg-type]

    assert max(rollback_times(faulty, seconds=60)) <= 40
    hidden = rollback_times(faulty, seconds=30, compares_arms=False, count=1)
    assert hidden == [math.inf], "it would be hidden if all faults counted"


@pytest.mark.slow
@pytest.mark.parametrize("per_s", [100.0, 1000.0])
def test_users_invented_for_one_arm_neither_hide_nor_end_a_rollout(
    per_s: float,
) -> None:
    """One network sends good requests only as users that are assigned to one arm."""
    invented = {"attack": "good requests", "invents_users": True, "hostile_requests_per_s": per_s}
    hidden = SimulatedClients(error_factor=20, hostile_arm="challenger", **invented)  # type: ignore[arg-type]
    blamed = SimulatedClients(hostile_arm="production", **invented)  # type: ignore[arg-type]

    assert max(rollback_times(hidden, seconds=90)) <= 80
    assert rollback_times(blamed, seconds=80, count=2) == [math.inf] * 2


@pytest.mark.slow
def test_client_limits_do_not_delay_detection_without_an_attack() -> None:
    """The error rate rises from 1 % to 20 %; at 5 requests per second detection takes 15 s."""
    faulty = SimulatedClients(error_factor=20)
    with_limits, without_limits = (
        sorted(rollback_times(faulty, seconds=40, compares_arms=c, count=5)) for c in (True, False)
    )

    assert with_limits[2] <= 15
    assert abs(with_limits[2] - without_limits[2]) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("gateway", [True, False], ids=["gateway", "addresses"])
def test_faults_of_400_frequent_clients_are_still_detected(gateway: bool) -> None:
    """Each has repeated slow responses; with a gateway, all share one address."""
    options = {"num_honest": 400, "num_hostile": 4, "has_gateway": gateway}
    healthy = rollback_times(SimulatedClients(**options), seconds=120, count=2)  # type: ignore[arg-type]
    faulty = rollback_times(SimulatedClients(**options, error_factor=20), seconds=60)  # type: ignore[arg-type]

    assert healthy == [math.inf] * 2
    assert max(faulty) <= 40


def test_equal_seeds_give_equal_simulations() -> None:
    def rollback_time(seed: int) -> float:
        return time_to_rollback(
            SimulatedClients(error_factor=20), seconds=20, seed=seed, compares_arms=True
        )

    assert rollback_time(1) == rollback_time(1)
