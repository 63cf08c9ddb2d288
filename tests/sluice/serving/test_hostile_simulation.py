"""A hostile 1 % of the clients neither ends a healthy rollout nor saves a sick one (ROLL-2).

10,000 clients send 100 requests a second, 100 hostile ones as many or ten times as many, and all
of these are on the arm that they want to harm or to hide.
"""

import math

import pytest

from tests.support.hostile_traffic import SimulatedClients, time_to_rollback

ROLLOUTS = 3


def ends(
    crowd: SimulatedClients, *, seconds: float, compares: bool = True, count: int = ROLLOUTS
) -> list[float]:
    return [
        time_to_rollback(crowd, seconds=seconds, seed=seed, compares=compares)
        for seed in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["shared errors", "slow requests", "odd samples"])
def test_hostile_clients_on_a_healthy_challenger_do_not_end_its_rollout(attack: str) -> None:
    crowd = SimulatedClients(attack=attack)  # type: ignore[arg-type]

    back = [end for end in ends(crowd, seconds=80) if end < math.inf]
    assert len(back) <= 1, "one in some hundred is rolled back by chance"
    assert max(ends(crowd, seconds=80, compares=False)) < 60, "it did, when all faults counted"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "on", "per_s"),
    [("shared errors", "production", 100.0), ("good requests", "challenger", 500.0)],
)
def test_hostile_clients_do_not_hide_a_faulty_challenger(
    attack: str, on: str, per_s: float
) -> None:
    sick = SimulatedClients(error_factor=20, attack=attack, on=on, hostile_per_s=per_s)  # type: ignore[arg-type]

    assert max(ends(sick, seconds=60)) <= 40
    hidden = ends(sick, seconds=30, compares=False, count=1)
    assert hidden == [math.inf], "it was, when all faults counted"


@pytest.mark.slow
@pytest.mark.parametrize("per_s", [100.0, 1000.0])
def test_users_invented_for_one_arm_neither_hide_nor_end_a_rollout(
    per_s: float,
) -> None:
    """One network keeps the users that reach one arm, and sends good requests by them alone."""
    invented = {"attack": "good requests", "invents": True, "hostile_per_s": per_s}
    hidden = SimulatedClients(error_factor=20, on="challenger", **invented)  # type: ignore[arg-type]
    blamed = SimulatedClients(on="production", **invented)  # type: ignore[arg-type]

    assert max(ends(hidden, seconds=90)) <= 80
    assert ends(blamed, seconds=80, count=2) == [math.inf] * 2


@pytest.mark.slow
def test_without_an_attack_a_faulty_challenger_is_detected_as_fast_as_before() -> None:
    """Errors of 1 % become 20 % at 5 % of 100 requests a second: 15 s are the figure."""
    sick = SimulatedClients(error_factor=20)
    now, before = (sorted(ends(sick, seconds=40, compares=c, count=5)) for c in (True, False))

    assert now[2] <= 15
    assert abs(now[2] - before[2]) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("gateway", [True, False], ids=["gateway", "addresses"])
def test_400_frequent_clients_are_judged_as_before(gateway: bool) -> None:
    """Each has slow answers again and again; of one address all of them are."""
    few = {"clients": 400, "hostile": 4, "gateway": gateway}
    healthy = ends(SimulatedClients(**few), seconds=120, count=2)  # type: ignore[arg-type]
    sick = ends(SimulatedClients(**few, error_factor=20), seconds=60)  # type: ignore[arg-type]

    assert healthy == [math.inf] * 2
    assert max(sick) <= 40


def test_equal_seeds_give_equal_simulations() -> None:
    def end(seed: int) -> float:
        return time_to_rollback(
            SimulatedClients(error_factor=20), seconds=20, seed=seed, compares=True
        )

    assert end(1) == end(1)
