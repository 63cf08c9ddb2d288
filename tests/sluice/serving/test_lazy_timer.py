"""A postponed timer fires at its last deadline and schedules only one callback."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sluice.serving.lazy_timer import LazyTimer


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimulatedLoop:
    """An event loop with a simulated clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], None], Handle]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Handle:
        handle = Handle()
        self.calls.append((when, call, handle))
        return handle

    def advance_to(self, now: float) -> None:
        while due := sorted(c for c in self.calls if c[0] <= now and not c[2].cancelled):
            self.calls.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = now


@pytest.fixture
def loop() -> Any:
    return SimulatedLoop()


def test_the_timer_fires_at_the_last_deadline(loop: Any) -> None:
    fired: list[float] = []
    timer = LazyTimer(loop, lambda: fired.append(loop.now))
    for number in range(100):
        loop.advance_to(0.1 * number)
        timer.set(None)
        timer.set(loop.now + 5)
    loop.advance_to(100)

    assert fired == [pytest.approx(9.9 + 5)]


def test_100_postponements_schedule_one_callback(loop: Any) -> None:
    num_scheduled = 0
    timer = LazyTimer(loop, lambda: None)
    for number in range(100):
        before = len(loop.calls)
        timer.set(5 + 0.01 * number)
        num_scheduled += len(loop.calls) - before

    assert num_scheduled == 1


def test_the_timer_fires_at_an_earlier_deadline(loop: Any) -> None:
    fired: list[float] = []
    timer = LazyTimer(loop, lambda: fired.append(loop.now))
    timer.set(60.0)
    timer.set(10.0)
    loop.advance_to(100)

    assert fired == [10.0]


@pytest.mark.parametrize("end", ["cancel", "none"])
def test_a_timer_without_a_deadline_does_not_fire(loop: Any, end: str) -> None:
    fired: list[float] = []
    timer = LazyTimer(loop, lambda: fired.append(loop.now))
    timer.set(5.0)
    if end == "cancel":
        timer.cancel()
    else:
        timer.set(None)
    loop.advance_to(100)

    assert fired == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, pytest.param("uvloop")])
def test_the_timer_works_with_uvloop_and_asyncio(new_loop: Any) -> None:
    uvloop = pytest.importorskip("uvloop")
    running = uvloop.new_event_loop() if new_loop == "uvloop" else new_loop()
    future = running.create_future()
    timer = LazyTimer(running, lambda: future.set_result(running.time()))
    start = running.time()
    timer.set(start + 0.02)
    timer.set(start + 0.0507)
    try:
        fired_at = running.run_until_complete(asyncio.wait_for(future, 10))
    finally:
        running.close()

    assert fired_at >= start + 0.0507 - 0.002
