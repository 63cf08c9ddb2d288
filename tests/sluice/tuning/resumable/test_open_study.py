"""A study is opened from its snapshot, or from its journal if the snapshot is not valid."""

import json

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.optuna import OptunaSearch

from sluice.tuning.resumable import open_study as open_study_module
from sluice.tuning.resumable.events import StudyEvent
from sluice.tuning.resumable.open_study import OpenStudy, StudySettings

SPACE = {"lr": tune.loguniform(1e-4, 1e-1)}
TIMES = {"time_attr": "epoch", "metric": "loss", "mode": "min"}
SETTINGS = StudySettings(time_attr="epoch", ordered=True, concurrency=4, seed=0, errors="record")
NUM_EPOCHS = 12


def open_study(folder, settings=SETTINGS):
    return OpenStudy(
        folder / "journal.jsonl",
        settings,
        PopulationBasedTraining(**TIMES, perturbation_interval=3, hyperparam_mutations=SPACE),
        OptunaSearch(SPACE, metric="loss", mode="min", seed=0),
        metric="loss",
        num_samples=8,
    )


def run(opened, reports):
    """Run a study for a number of reports; each adds an hour of decision time."""
    study = opened.study
    while reports > 0 and study.running_trials():
        trial = next(
            trial for trial in study.running_trials() if not study.has_pending_event(trial.number)
        )
        epoch = int(trial.time) + 1
        event = StudyEvent(trial=trial.number, attempt=trial.attempt, kind="complete")
        if epoch <= NUM_EPOCHS:
            loss = abs(trial.config["lr"] - 0.01) + 1 / epoch
            event = StudyEvent(
                trial=trial.number,
                attempt=trial.attempt,
                result={"epoch": epoch, "loss": loss},
                checkpoint=f"/study/{trial.number}/checkpoint_{epoch}",
            )
        study.receive(event)
        opened.add_decision_time(3600)
        reports -= 1


def decisions(study):
    return [(t.status, t.time, t.attempts, t.config, t.last_result) for t in study.trials]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    opened = open_study(tmp_path_factory.mktemp("whole"))
    run(opened, 1000)
    assert sum(trial.attempt for trial in opened.study.trials) >= 3
    opened.journal.close()
    return decisions(opened.study)


def edit_digest(path):
    header, content = path.read_bytes().split(b"\n", 1)
    edited = json.dumps({**json.loads(header), "digest": "0" * 64}).encode()
    path.write_bytes(edited + b"\n" + content)


DAMAGES = {
    "none": lambda _: None,
    "removed": lambda path: path.unlink(),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "of another journal": edit_digest,
    "others may write it": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_study_resumes_from_a_valid_snapshot_or_else_from_its_journal(
    damage, whole, tmp_path, monkeypatch
):
    replayed = []
    first = open_study(tmp_path)
    run(first, 40)
    first.journal.close()
    path = tmp_path / "journal.jsonl.copy"
    DAMAGES[damage](path)
    monkeypatch.setattr(
        open_study_module.StudyJournal,
        "iter_events",
        lambda self, since=0, iter_events=open_study_module.StudyJournal.iter_events: (
            replayed.append(since) or iter_events(self, since)
        ),
    )
    again = open_study(tmp_path)
    monkeypatch.undo()

    assert (replayed[0] > 1000) == (damage == "none")
    run(again, 1000)
    again.journal.close()
    assert decisions(again.study) == whole


def test_snapshot_is_readable_only_by_its_owner(tmp_path):
    opened = open_study(tmp_path)
    run(opened, 2)
    opened.journal.close()

    assert (tmp_path / "journal.jsonl.copy").stat().st_mode & 0o777 == 0o600
