"""Concurrent and killed controller processes change the rollout atomically (ROLL-1)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sluice.registry.conftest import postgres_server
from tests.sluice.registry.conftest import url as any_url

__all__ = ["any_url", "postgres_server"]

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def run_driver(mode: str, url: str, tmp_path: Path, *, stride: int = 1) -> Any:
    """Run ``controller_process``, which checks the registry after every kill and race."""
    program = [sys.executable, "-m", "tests.sluice.rollout_control.controller_process", mode, url]
    done = subprocess.run(
        [*program, str(tmp_path / "artifacts"), str(stride)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_one_started(results: list[str]) -> None:
    started = [s for s in results if s.startswith("started")]
    rejected = [s for s in results if "RolloutConflict" in s and "is rolling already" in s]
    assert (len(started), len(rejected)) == (1, 7), results


def assert_one_process_ended_it(result: dict[str, Any]) -> None:
    """At most one process moved production, and the phase of the rollout agrees with it."""
    phase, production, _ = result["state"]
    moves = {"promote 3": 3, "promote 4": 4, "rollback 1": 1}
    completed_moves = [move for move in result["history"] if move in moves]
    assert len(completed_moves) <= 1, result
    assert production == (moves[completed_moves[0]] if completed_moves else 2)
    assert phase == ("promoted" if completed_moves == ["promote 3"] else "rolled_back")
    if not completed_moves:
        assert "aborted" in result["results"]


def assert_completed_after_kills(result: dict[str, Any]) -> None:
    assert result["outcomes"] == ["start", "advance", "advance", "promote"]
    states = [tuple(each) for each in result["states"]]
    assert states[-1] == ("promoted", 3, 4)
    assert all((phase == "promoted") == (number == 3) for phase, number, _ in states)
    assert [n for *_, n in states] == sorted(n for *_, n in states)
    assert len({n for *_, n in states}) >= 3  # the rollout advanced between the kills


ASSERTIONS: dict[str, Callable[[Any], None]] = {
    "start": assert_one_started,
    "end": assert_one_process_ended_it,
    "kill": assert_completed_after_kills,
}


def test_rollout_stays_consistent_with_killed_and_concurrent_controllers(
    url: str, tmp_path: Path
) -> None:
    """Modes: race to start, race to end, and SIGKILL of the controller at every 31st step."""
    result = run_driver("each", url, tmp_path, stride=31)

    assert result.keys() == ASSERTIONS.keys()
    for mode, assert_result in ASSERTIONS.items():
        assert_result(result[mode])


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ASSERTIONS)
def test_rollout_stays_consistent_on_each_database_with_kills_at_every_second_step(
    mode: str, any_url: str, tmp_path: Path
) -> None:
    result = run_driver(mode, any_url, tmp_path, stride=2)

    assert result.keys() == {mode}
    ASSERTIONS[mode](result[mode])
