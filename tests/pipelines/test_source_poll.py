"""A source that hangs is asked again beside it, by few threads."""

import threading
from collections.abc import Iterator

import pytest

from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.source_poll import (
    MAX_LOADS,
    MAX_UNSUCCESSFUL_WAITS,
    SourcePoll,
    SourceState,
    SourceUnavailable,
)
from tests.support.drifting import Hanging

TRIES = 300


@pytest.fixture
def look(echo: PipelineSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourcePoll]:
    released = threading.Event()
    monkeypatch.setattr(Hanging, "released", released)
    monkeypatch.setattr(Hanging, "num_begun", 0)
    hanging = echo.model_copy(update={"workload": "tests.support.drifting:Hanging"})
    yield SourcePoll(resolve(hanging).workload, max_wait_s=0.05)
    released.set()


def reason(look: SourcePoll) -> str:
    answer = look.read_state()
    assert isinstance(answer, SourceUnavailable)
    assert answer.is_slow
    return answer.reason


def first_state(look: SourcePoll) -> SourceState:
    """Ask until there is an answer: how long a load takes is not what is asked here."""
    answers = (look.read_state() for _ in range(TRIES))
    return next(answer for answer in answers if isinstance(answer, SourceState))


def test_a_source_that_hung_once_is_loaded_again(
    look: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "num_hanging", 1)

    waited = [reason(look) for _ in range(MAX_UNSUCCESSFUL_WAITS)]
    begun = Hanging.num_begun
    state = first_state(look)

    assert waited == ["The source has not answered within 0.05 s."] * MAX_UNSUCCESSFUL_WAITS
    assert begun == 1  # a load that is only slow has no company at first
    assert len(state.index) == 900


def test_loads_that_hang_are_few_and_one_that_ends_late_answers(
    look: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "num_hanging", TRIES)

    said = [reason(look) for _ in range(MAX_LOADS * MAX_UNSUCCESSFUL_WAITS)]

    assert Hanging.num_begun == MAX_LOADS
    assert "a time limit to load_rows" in said[-1]
    assert "a time limit to load_rows" not in said[0]
    Hanging.released.set()
    assert len(first_state(look).index) == 900
    assert Hanging.num_begun == MAX_LOADS


def test_loads_from_before_an_answer_count_and_answer_nothing(
    look: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "num_hanging", 1)
    first_state(look)
    monkeypatch.setattr(Hanging, "num_hanging", TRIES)
    before = Hanging.num_begun

    said = [reason(look) for _ in range(MAX_LOADS * MAX_UNSUCCESSFUL_WAITS)]

    assert Hanging.num_begun == before + MAX_LOADS - 1
    assert "a time limit to load_rows" in said[-1]
