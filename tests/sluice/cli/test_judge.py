"""Exit codes and output of ``sluice judge`` (LLM-1)."""

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from sluice.cli.app import run_command
from tests.sluice.evaluation.llm_judge.judges import make_pairs

JUDGES = "tests.sluice.evaluation.llm_judge.judges"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    pd.DataFrame([dataclasses.asdict(pair) for pair in make_pairs(60)]).to_csv(path, index=False)
    return path


def test_trusted_judge_exits_with_0(pairs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["judge", str(pairs), "--judge", f"{JUDGES}:better_answer", "--json"]) == 0

    report = json.loads(capfd.readouterr().out)
    assert (report["trust"], report["candidate_wins"]) == ("trusted", 20)


def test_untrusted_judge_exits_with_1(pairs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["judge", str(pairs), "--judge", f"{JUDGES}:first_answer"]) == 1

    printed = capfd.readouterr().out
    assert printed.startswith("not trusted")
    assert "100% (50% is unbiased)" in printed


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (f"{JUDGES}:better_answers", "Did you mean 'better_answer'"),
        (f"{JUDGES}:_ANSWERS", "function"),
    ],
)
def test_unknown_judge_is_a_user_error(
    pairs: Path, judge: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["judge", str(pairs), "--judge", judge]) == 2
    assert message in " ".join(capfd.readouterr().err.split())
