"""ROLL-1: the assignment of users is sticky, monotone, uniform and new for each rollout."""

import itertools

import pytest

from sluice.serving.sticky import hash_fraction, is_chosen

USERS = [f"user {number}" for number in range(4000)]
SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.99, 1.0)


def select_users(salt: str, share: float) -> set[str]:
    return {user for user in USERS if is_chosen(user, salt=salt, share=share)}


def test_a_higher_share_adds_users_and_moves_none_back() -> None:
    sets = [select_users("r1", share) for share in SHARES]

    assert all(low <= high for low, high in itertools.pairwise(sets))
    assert (sets[0], sets[-1]) == (set(), set(USERS))


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_the_share_of_users_is_as_requested(share: float) -> None:
    """Within four standard errors of a binomial."""
    error = (share * (1 - share) / len(USERS)) ** 0.5

    assert len(select_users("r1", share)) / len(USERS) == pytest.approx(share, abs=4 * error)


def test_another_rollout_selects_other_users() -> None:
    """Two independent halves have a quarter of the users in common."""
    both = len(select_users("r1", 0.5) & select_users("r2", 0.5)) / len(USERS)

    assert both == pytest.approx(0.25, abs=0.03)


def test_the_hash_fraction_is_the_same_on_every_machine() -> None:
    """The value is pinned, since a change would move users during a rollout."""
    assert hash_fraction("ada", salt="r1") == pytest.approx(0.30089587558067965, abs=1e-15)


def test_salt_and_user_are_separated_in_the_hash() -> None:
    assert hash_fraction("bc", salt="a") != hash_fraction("c", salt="ab")


def test_a_nan_share_chooses_no_user() -> None:
    assert not select_users("r1", float("nan"))
