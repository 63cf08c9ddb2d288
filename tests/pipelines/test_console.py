"""What a run says of itself where there is no terminal."""

import io

import pytest
from rich.console import Console

from sluice.pipelines.console import RunConsole


@pytest.fixture
def said():
    """A console that is a file, its clock, and what it said so far."""
    out, now = io.StringIO(), [0.0]
    with RunConsole(Console(file=out, width=100), clock=lambda: now[0]) as console:
        yield console, now, lambda: out.getvalue().split()


def test_a_stage_of_many_pieces_is_told_in_tenths(said) -> None:
    console, _, words = said
    for done in range(41):
        console("x", done=done, total=40)

    assert words()[::2] == [f"{done}/40" for done in range(0, 41, 4)]


def test_a_stage_of_few_pieces_speaks_after_a_silence(said) -> None:
    console, now, words = said
    for second in range(0, 50, 5):
        now[0] = float(second)
        console("x", done=0, total=8)

    assert words() == ["0/8", "x"] * 2  # at 20 s and at 40 s
