"""REG-2: processes that die between any two steps, and concurrent processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def drive(mode: str, url: str, tmp_path: Path, *, number: int = 1) -> Any:
    """Run the driver; it checks the registry with verify after every death and every race."""
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
def test_a_killed_change_is_complete_or_absent(
    action: str, stride: int, url: str, tmp_path: Path
) -> None:
    """SIGKILL before every statement, around every commit, at every artifact read."""
    deaths = drive(action, url, tmp_path, number=stride)

    assert deaths["undone"] > 20 / stride
    if stride == 1:
        assert deaths["kept"] >= 1  # killed after the commit: the move stands, with its history


@pytest.mark.exhaustive
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_killed_at_random_moments_leaves_a_consistent_registry(url: str, tmp_path: Path) -> None:
    assert drive("random", url, tmp_path)["moves"] > 8 + 3  # 8 made before the killing


@pytest.mark.parametrize("racers", [8, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_exactly_one_concurrent_promoter_wins(racers: int, url: str, tmp_path: Path) -> None:
    said = drive("race", url, tmp_path, number=racers)

    assert len(said) == racers
    assert said.count("won") == 1
    lost = [s for s in said if s.startswith("conflict: ")]
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
def test_publisher_killed_anywhere_loses_nothing(url: str, stride: int, tmp_path: Path) -> None:
    """REG-2: after a crash, events are delivered again with the same key, in order."""
    said = drive("publish", url, tmp_path, number=stride)

    keys = dict(line.split() for line in said["received"])
    assert len(said["received"]) > len(keys) == len(said["history"])
    assert list(keys.values()) == said["history"]


@pytest.mark.exhaustive
def test_racing_writers_agree(url: str, tmp_path: Path) -> None:
    """Eight processes create tables, register one and eight candidates, and decide once."""
    said = drive("register", url, tmp_path)

    assert sorted(said["same"]) == ["False"] * 7 + ["True"]
    assert said["different"] == [f"{number:02d}" for number in range(2, 10)]
    assert len(set(said["decide"])) == 1
