"""The poll of a source that hangs retries in a limited number of threads."""

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
def poll(echo: PipelineSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourcePoll]:
    released = threading.Event()
    monkeypatch.setattr(Hanging, "released", released)
    monkeypatch.setattr(Hanging, "num_started_loads", 0)
    hanging = echo.model_copy(update={"workload": "tests.support.drifting:Hanging"})
    yield SourcePoll(resolve(hanging).workload, max_wait_s=0.05)
    released.set()


def read_reason(poll: SourcePoll) -> str:
    result = poll.read_state()
    assert isinstance(result, SourceUnavailable)
    assert result.is_slow
    return result.reason


def poll_until_state(poll: SourcePoll) -> SourceState:
    """Poll until the source responds, because the duration of a load is not tested here."""
    results = (poll.read_state() for _ in range(TRIES))
    return next(result for result in results if isinstance(result, SourceState))


def test_source_that_hung_once_is_loaded_again(
    poll: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "num_hanging", 1)

    reasons = [read_reason(poll) for _ in range(MAX_UNSUCCESSFUL_WAITS)]
    num_loads = Hanging.num_started_loads
    state = poll_until_state(poll)

    assert reasons == ["The source has not answered within 0.05 s."] * MAX_UNSUCCESSFUL_WAITS
    assert num_loads == 1  # a slow load gets time before a second one starts
    assert len(state.index) == 900


def test_hanging_loads_are_limited_and_a_late_result_is_used(
    poll: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "num_hanging", TRIES)

    reasons = [read_reason(poll) for _ in range(MAX_LOADS * MAX_UNSUCCESSFUL_WAITS)]

    assert Hanging.num_started_loads == MAX_LOADS
    assert "a time limit to load_rows" in reasons[-1]
    assert "a time limit to load_rows" not in reasons[0]
    Hanging.released.set()
    assert len(poll_until_state(poll).index) == 900
    assert Hanging.num_started_loads == MAX_LOADS


def test_loads_from_before_a_result_count_towards_the_limit(
    poll: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "num_hanging", 1)
    poll_until_state(poll)
    monkeypatch.setattr(Hanging, "num_hanging", TRIES)
    before = Hanging.num_started_loads

    reasons = [read_reason(poll) for _ in range(MAX_LOADS * MAX_UNSUCCESSFUL_WAITS)]

    assert Hanging.num_started_loads == before + MAX_LOADS - 1
    assert "a time limit to load_rows" in reasons[-1]
