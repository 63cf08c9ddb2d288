"""Targets of rollbacks, computed from the history of moves (REG-2)."""

import random
from collections.abc import Sequence

import pytest

from sluice.registry.records import HistoryEntry
from sluice.registry.rollback_targets import production_trail
from tests.sluice.registry.ledger_samples import MODEL, NOW


def make_entries(moves: Sequence[tuple[str, int]]) -> list[HistoryEntry]:
    values = {"at": NOW, "model": MODEL, "actor": "a", "reason": "r", "receipt": None}
    return [
        HistoryEntry.model_validate(
            values
            | {"id": i, "action": action, "from_version": None, "to_version": to, "revision": i + 1}
        )
        for i, (action, to) in enumerate(moves)
    ]


@pytest.mark.parametrize(
    ("moves", "trail"),
    [
        ("", ()),
        ("p1", (1,)),
        ("p1 p2 p3", (1, 2, 3)),
        ("p1 p2 p3 r2", (1, 2)),
        ("p1 p2 r1 p3", (1, 3)),
        ("p1 p2 r1 p2", (1, 2)),  # promoted again: it is a target again
        ("p1 p2 p1 p3 r1", (2, 1)),
        ("p1 p2 p1 p3 r1 r2", (2,)),  # 1 was rolled back, so its earlier promotion is no target
        ("p1 p2 p3 p2 r3 p4", (1, 3, 4)),
        ("s1 p1 u1 s2 p2", (1, 2)),  # stage and unstage move no pointer
        ("r1", ()),
    ],
)
def test_trail_skips_rolled_back_versions(moves: str, trail: tuple[int, ...]) -> None:
    actions = {"p": "promote", "r": "rollback", "s": "stage", "u": "unstage"}

    result = production_trail(make_entries([(actions[m[0]], int(m[1:])) for m in moves.split()]))

    assert result == trail


def test_trail_of_many_moves_equals_a_reference_implementation() -> None:
    """Random promotions and rollbacks; the reference is a list of [version, is_target]."""
    rng = random.Random(7)
    moves: list[tuple[str, int]] = []
    reference_trail: list[list[int | bool]] = []
    for _ in range(400):
        targets = [
            i
            for i, (v, ok) in enumerate(reference_trail[:-1])
            if ok and v != reference_trail[-1][0]
        ]
        if targets and rng.random() < 0.45:
            rolled_back = reference_trail[-1][0]
            reference_trail = reference_trail[: targets[-1] + 1]
            for position in reference_trail:
                position[1] = position[1] and position[0] != rolled_back
            moves.append(("rollback", int(reference_trail[-1][0])))
        else:
            number = rng.choice(
                [n for n in range(1, 6) if not reference_trail or n != reference_trail[-1][0]]
            )
            for position in reference_trail:
                position[1] = position[1] or position[0] == number
            reference_trail.append([number, True])
            moves.append(("promote", number))

        trail = production_trail(make_entries(moves))

        assert trail[-1] == reference_trail[-1][0]
        assert list(trail[:-1]) == [
            v for v, ok in reference_trail[:-1] if ok and v != reference_trail[-1][0]
        ]
