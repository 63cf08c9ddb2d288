"""ROLL-1: concurrent and killed controller processes change the rollout atomically."""

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


def drive(mode: str, url: str, tmp_path: Path, *, stride: int = 1) -> Any:
    """Run the driver; it checks the registry after every death and every race."""
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


def assert_one_started(said: list[str]) -> None:
    started = [s for s in said if s.startswith("started")]
    refused = [s for s in said if "RolloutConflict" in s and "is rolling already" in s]
    assert (len(started), len(refused)) == (1, 7), said


def assert_one_ended_it(told: dict[str, Any]) -> None:
    """One of them won, the others got an error, and no change is partial."""
    phase, production, _ = told["seen"]
    moves = {"promote 3": 3, "promote 4": 4, "rollback 1": 1}
    made = [move for move in told["history"] if move in moves]
    assert len(made) <= 1, told
    assert production == (moves[made[0]] if made else 2)
    assert phase == ("promoted" if made == ["promote 3"] else "rolled_back")
    if not made:
        assert "aborted" in told["said"]


def assert_it_went_on_after_deaths(told: dict[str, Any]) -> None:
    assert told["outcomes"] == ["start", "advance", "advance", "promote"]
    seen = [tuple(each) for each in told["seen"]]
    assert seen[-1] == ("promoted", 3, 4)
    assert all((phase == "promoted") == (number == 3) for phase, number, _ in seen)
    assert [n for *_, n in seen] == sorted(n for *_, n in seen)
    assert len({n for *_, n in seen}) >= 3  # it went on through several deaths


ASSERTIONS: dict[str, Callable[[Any], None]] = {
    "start": assert_one_started,
    "end": assert_one_ended_it,
    "kill": assert_it_went_on_after_deaths,
}


def test_concurrent_controllers_may_be_killed_at_any_time(url: str, tmp_path: Path) -> None:
    """SIGKILL before a statement, around a commit, at an artifact read; another one goes on."""
    told = drive("each", url, tmp_path, stride=31)

    assert told.keys() == ASSERTIONS.keys()
    for mode, assert_as_it_should in ASSERTIONS.items():
        assert_as_it_should(told[mode])


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ASSERTIONS)
def test_the_same_on_every_database_at_every_other_step(
    mode: str, any_url: str, tmp_path: Path
) -> None:
    told = drive(mode, any_url, tmp_path, stride=2)

    assert told.keys() == {mode}
    ASSERTIONS[mode](told[mode])
