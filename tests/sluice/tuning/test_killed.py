"""TUNE-3: a search over real trainings resumes after its driver was killed at random moments."""

import pytest

from sluice.tuning.settings import SearchSettings
from tests.sluice.tuning.conftest import SINE
from tests.sluice.tuning.toy_space import decisions, space
from tests.support.kill_server import KillPlan, KillServer
from tests.support.killed_work import SearchWork

EPOCHS = 6
OPTIONS = {
    "asha": {"grace_epochs": 2, "concurrent_trials": 3, "startup_trials": 3},
    "pbt": {"perturbation_epochs": 2},
}


@pytest.fixture(scope="module")
def server():
    with KillServer() as server:
        yield server


def make_work(objective, scheduler, num_trials) -> SearchWork:
    training = {"max_epochs": EPOCHS, "patience_epochs": EPOCHS, "checkpoint_every_epochs": 1}
    base = SINE.model_copy(
        update={"training": SINE.training.model_copy(update=training | {"batch_rows": 24})}
    )
    return SearchWork(
        objective=objective(base=base, num_rows=170),
        space=space().leading(1),
        settings=SearchSettings(
            num_trials=num_trials, scheduler=scheduler, seed=5, **OPTIONS[scheduler]
        ),
    )


def num_lines(folder) -> int:
    return (folder / "journal.jsonl").read_bytes().count(b"\n")


def kill_and_resume(server, work, tmp_path, *, kills):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    killed = server.kill(
        KillPlan(
            work=work,
            reference_folder=whole,
            killed_folder=cut,
            kills=kills,
            num_parts=work.settings.num_trials * 3 // 2,
            max_parts_per_child=1.5,
            seed=kills,
            call_phases=("checkpoint", "journal"),
        )
    )
    expected, resumed = work(whole), work(cut)  # results are read from the folders; no trial runs

    assert killed.kills == kills
    assert decisions(resumed) == decisions(expected)
    assert num_lines(cut) == num_lines(whole)  # nothing is reported twice
    return killed, expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "num_trials"),
    [("asha", 8), pytest.param("pbt", 4, marks=pytest.mark.exhaustive)],
)
def test_killed_search_makes_the_decisions_of_an_uninterrupted_one(
    scheduler, num_trials, server, objective, tmp_path, record_property
):
    work = make_work(objective, scheduler, num_trials)
    killed, expected = kill_and_resume(server, work, tmp_path, kills=1)

    states = {trial.state for trial in expected.trials}
    assert states == ({"finished", "pruned"} if scheduler == "asha" else {"finished"})
    assert bool(expected.exploits) == (scheduler == "pbt")
    record_property("measurement", killed.summary(f"{scheduler} search", "decisions"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scheduler", "num_trials"), [("asha", 32), ("pbt", 16)])
def test_search_killed_20_times_makes_the_same_decisions(
    scheduler, num_trials, server, objective, tmp_path, record_property
):
    work = make_work(objective, scheduler, num_trials)
    killed, _ = kill_and_resume(server, work, tmp_path, kills=20)

    assert {"checkpoint", "journal"} <= killed.phases.keys()
    record_property("measurement", killed.summary(f"{scheduler} search", "decisions"))
