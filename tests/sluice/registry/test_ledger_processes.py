"""Registry after processes were killed at any step, and with concurrent processes (REG-2)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def run_driver(mode: str, url: str, tmp_path: Path, *, number: int = 1) -> Any:
    """Run ``ledger_driver``, which verifies the registry after every kill and race."""
    program = [sys.executable, "-m", "tests.sluice.registry.ledger_driver", mode, url]
    done = subprocess.run(
        [*program, str(tmp_path / "artifacts"), str(number)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("url", "action", "stride"),
    [
        ("postgresql", "promote", 29),
        ("sqlite", "rollback", 29),
        *(
            pytest.param(url, action, 1, marks=pytest.mark.exhaustive)
            for url in ("sqlite", "postgresql")
            for action in ("promote", "rollback")
        ),
    ],
    indirect=["url"],
)
def test_change_of_a_killed_process_is_complete_or_absent(
    action: str, stride: int, url: str, tmp_path: Path
) -> None:
    """SIGKILL before each statement, before and after each commit, and at each artifact read."""
    kills = run_driver(action, url, tmp_path, number=stride)

    assert kills["undone"] > 20 / stride
    if stride == 1:
        assert kills["kept"] >= 1  # killed after the commit: the move and its history entry remain


@pytest.mark.exhaustive
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_registry_is_consistent_after_kills_at_random_moments(url: str, tmp_path: Path) -> None:
    assert run_driver("random", url, tmp_path)["moves"] > 8 + 3  # 8 moves precede the kills


@pytest.mark.parametrize("racers", [8, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_exactly_one_concurrent_promoter_wins(racers: int, url: str, tmp_path: Path) -> None:
    result = run_driver("race", url, tmp_path, number=racers)

    assert len(result) == racers
    assert result.count("won") == 1
    lost = [s for s in result if s.startswith("conflict: ")]
    assert len(lost) == racers - 1
    assert all("no version was expected in production" in s and " promoted " in s for s in lost)


@pytest.mark.parametrize(
    ("url", "stride"),
    [
        ("sqlite", 3),
        *(pytest.param(url, 1, marks=pytest.mark.exhaustive) for url in ("sqlite", "postgresql")),
    ],
    indirect=["url"],
)
def test_killed_publisher_loses_no_event_and_keeps_the_order(
    url: str, stride: int, tmp_path: Path
) -> None:
    """REG-2: after a crash, events are delivered again with the same key, in order."""
    result = run_driver("publish", url, tmp_path, number=stride)

    keys = dict(line.split() for line in result["received"])
    assert len(result["received"]) > len(keys) == len(result["history"])
    assert list(keys.values()) == result["history"]


@pytest.mark.exhaustive
def test_concurrent_writers_register_each_candidate_once_and_agree_on_one_decision(
    url: str, tmp_path: Path
) -> None:
    """Eight processes create tables, register one and eight candidates, and decide once."""
    result = run_driver("register", url, tmp_path)

    assert sorted(result["same"]) == ["False"] * 7 + ["True"]
    assert result["different"] == [f"{number:02d}" for number in range(2, 10)]
    assert len(set(result["decide"])) == 1
    assert result["attempt"] == [f"{number:02d}" for number in range(1, 9)]
