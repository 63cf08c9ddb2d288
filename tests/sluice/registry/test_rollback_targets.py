"""REG-2: targets of a rollback."""

import random
from collections.abc import Sequence

import pytest

from sluice.registry.records import HistoryEntry
from sluice.registry.rollback_targets import production_trail
from tests.sluice.registry.ledger_samples import MODEL, NOW


def entries(moves: Sequence[tuple[str, int]]) -> list[HistoryEntry]:
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
        ("p1 p2 r1 p2", (1, 2)),  # promoted again, on purpose or on newer evidence: good again
        ("p1 p2 p1 p3 r1", (2, 1)),
        ("p1 p2 p1 p3 r1 r2", (2,)),  # 1 was rolled back: its earlier place counts no more
        ("p1 p2 p3 p2 r3 p4", (1, 3, 4)),
        ("s1 p1 u1 s2 p2", (1, 2)),  # lines that move no pointer
        ("r1", ()),
    ],
)
def test_trail_skips_rolled_back_versions(moves: str, trail: tuple[int, ...]) -> None:
    words = {"p": "promote", "r": "rollback", "s": "stage", "u": "unstage"}

    found = production_trail(entries([(words[m[0]], int(m[1:])) for m in moves.split()]))

    assert found == trail


def test_trail_of_many_moves_equals_a_reference_implementation() -> None:
    """A random walk of moves as the ledger makes them, against a list of [version, good] places."""
    draw = random.Random(7)
    moves: list[tuple[str, int]] = []
    stack: list[list[int | bool]] = []
    for _ in range(400):
        good = [i for i, (v, ok) in enumerate(stack[:-1]) if ok and v != stack[-1][0]]
        if good and draw.random() < 0.45:
            left = stack[-1][0]
            stack = stack[: good[-1] + 1]
            for place in stack:
                place[1] = place[1] and place[0] != left
            moves.append(("rollback", int(stack[-1][0])))
        else:
            number = draw.choice([n for n in range(1, 6) if not stack or n != stack[-1][0]])
            for place in stack:
                place[1] = place[1] or place[0] == number
            stack.append([number, True])
            moves.append(("promote", number))

        trail = production_trail(entries(moves))

        assert trail[-1] == stack[-1][0]
        assert list(trail[:-1]) == [v for v, ok in stack[:-1] if ok and v != stack[-1][0]]
