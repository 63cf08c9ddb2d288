"""A trial equals plain training, however it is interrupted, and never reads test rows."""

import dataclasses

import pytest
import torch

from sluice.base.errors import ContractError, TrainingFailed
from sluice.base.seeding import RandomStream, derive_seed, deterministic
from sluice.data.folds import FoldSettings, walk_forward
from sluice.training.checkpoint import load_checkpoint
from sluice.training.loop import train
from sluice.tuning.objective import select_search_folds
from sluice.tuning.records import ScheduleStep
from sluice.tuning.schedule_to_settings import settings_from_schedule
from sluice.workloads.prepare_model import prepare_model
from tests.support.synthetic import SineSettings, SineWorkload

FAST = {"training.learning_rate": 0.02, "training.clip_norm": 5.0, "model.dropout": 0.1}
SLOW = {"training.learning_rate": 0.005, "training.clip_norm": 0.05, "model.dropout": 0.1}
CONSTANT = {"training.learning_rate": 1e-30, "training.patience_epochs": 1}


def steps(*pairs):
    return tuple(ScheduleStep(from_epoch=epoch, params=params) for epoch, params in pairs)


ONE = steps((0, FAST))


def save_report(report, folder):
    folder.mkdir()
    report.save(folder)
    return folder


def train_without_restart(objective, schedule, report_epochs, folder):
    """Train without a restart; return the reports and the last checkpoint's folder."""
    found = []
    for report in objective.train(schedule, start=None, report_epochs=report_epochs):
        found.append(report)
        last = save_report(report, folder / f"at-{len(report.epochs)}")
    return found, last


def train_with_restarts(objective, schedule, report_epochs, folder):
    """Restart training after every report from the checkpoint of that report."""
    found, start = [], None
    while not found or not found[-1].is_finished:
        reports = objective.train(schedule, start=start, report_epochs=report_epochs)
        found.append(next(reports))
        start = save_report(found[-1], folder / f"from-{len(found[-1].epochs)}")
        reports.close()
    return found, start


def train_plainly(objective, fold, schedule):
    """Train one fold with a direct call of the loop; return the states after every epoch."""
    workload = SineWorkload(SineSettings(**objective.workload_settings))
    rows, val = (workload.examples(objective.frame, part) for part in (fold.train, fold.val))
    setup = settings_from_schedule(objective.base, schedule, where="test")
    states = []

    def keep(state):
        copies = {
            name: {key: tensor.clone() for key, tensor in getattr(state, name).items()}
            for name in ("model", "best", "optimizer", "rng")
        }
        states.append(dataclasses.replace(state, **copies))

    with RandomStream(derive_seed(objective.seed, "unit")).active(), deterministic():
        model = prepare_model(workload, setup.model, rows, seed=objective.seed)
        list(
            train(
                model,
                workload.loss,
                workload.losses,
                rows,
                val,
                setup.training,
                seed=objective.seed,
                on_state=keep,
            )
        )
    return states


def drop_seconds(history):
    return [dataclasses.replace(result, seconds=0.0) for result in history]


def assert_same_bits(state, expected):
    assert drop_seconds(state.history) == drop_seconds(expected.history)
    assert (state.steps, state.best_epoch) == (expected.steps, expected.best_epoch)
    for name in ("model", "best", "optimizer", "rng"):
        actual_tensors, expected_tensors = getattr(state, name), getattr(expected, name)
        assert actual_tensors.keys() == expected_tensors.keys()
        for key in actual_tensors:
            assert actual_tensors[key].dtype == expected_tensors[key].dtype
            assert (
                actual_tensors[key].numpy().tobytes() == expected_tensors[key].numpy().tobytes()
            ), f"{name}: {key}"


def load_state(objective, folder, fold_id):
    return load_checkpoint(
        folder / f"fold-{fold_id}", subject=objective._checkpoint_subject()
    ).state


def losses_of(report):
    return [(e.train_loss, e.val_loss) for e in report.epochs]


@pytest.mark.parametrize("run", [train_without_restart, train_with_restarts])
@pytest.mark.parametrize(
    ("report_epochs", "folds", "schedule"),
    [
        ((), 1, ONE),
        ((3, 99), 2, ONE),
        ((2, 4), 1, steps((0, FAST), (2, SLOW), (4, FAST))),
        ((1, 2, 3, 4, 5, 6), 2, steps((0, FAST), (2, SLOW))),
    ],
)
def test_trial_has_the_bits_of_plain_training_with_any_reports_and_restarts(
    run, report_epochs, folds, schedule, objective, tmp_path
):
    sine_objective = objective(folds=folds)
    expected = [train_plainly(sine_objective, fold, schedule) for fold in sine_objective.folds]

    found, last = run(sine_objective, schedule, report_epochs, tmp_path)

    assert [len(r.epochs) for r in found] == sorted({e for e in report_epochs if e < 6} | {6})
    assert [r.is_finished for r in found] == [False] * (len(found) - 1) + [True]
    for fold, states in zip(sine_objective.folds, expected, strict=True):
        assert_same_bits(load_state(sine_objective, last, fold.fold_id), states[-1])
    for report in found:
        for at, epoch in enumerate(report.epochs):
            per_fold = [states[at] for states in expected]
            assert epoch.epoch == at + 1
            for name in ("train_loss", "val_loss"):
                mean = sum(getattr(s.history[at], name) for s in per_fold) / len(per_fold)
                assert getattr(epoch, name) == mean
            kept = [s.history[s.best_epoch - 1].val_loss for s in per_fold]
            assert epoch.kept_loss == sum(kept) / len(kept)


def test_parameter_values_change_the_training(objective, tmp_path):
    sine_objective = objective()
    fast, slow = (
        train_without_restart(sine_objective, steps((0, values)), (), tmp_path / name)[0][-1]
        for name, values in (("a", FAST), ("b", SLOW))
        if not (tmp_path / name).mkdir()
    )
    assert losses_of(fast) != losses_of(slow)


def test_each_epoch_is_trained_once(objective, tmp_path, monkeypatch):
    sine_objective, trained = objective(folds=2), []

    def spy(*args, **options):
        for result in train(*args, **options):
            trained.append(result.epoch)
            yield result

    monkeypatch.setattr("sluice.tuning.fold_training.train", spy)
    train_without_restart(sine_objective, ONE, (2, 4), tmp_path)
    assert trained == [1, 2, 1, 2, 3, 4, 3, 4, 5, 6, 5, 6]

    trained.clear()
    list(sine_objective.train(ONE, start=tmp_path / "at-4", report_epochs=(2, 4, 5)))
    assert trained == [5, 5, 6, 6]


def damage(folder):
    for path in folder.glob("epoch-*"):
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("lost", [("fold-0",), ("fold-1",), ("fold-0", "fold-1")])
def test_damaged_checkpoint_is_trained_again_and_counted(lost, objective, tmp_path):
    sine_objective, schedule = objective(folds=2), steps((0, FAST), (2, SLOW))
    sound, last = train_without_restart(sine_objective, schedule, (2, 4), tmp_path)
    for name in lost:
        damage(tmp_path / "at-4" / name)

    again = sine_objective.train(schedule, start=tmp_path / "at-4", report_epochs=(5,))
    first = next(again)
    (end,) = again

    assert (len(first.epochs), first.damaged_checkpoints) == (5, len(lost))
    assert end.damaged_checkpoints == 0
    assert end.epochs == sound[-1].epochs
    again_at = save_report(end, tmp_path / "again")
    for fold in sine_objective.folds:
        assert_same_bits(
            load_state(sine_objective, again_at, fold.fold_id),
            load_state(sine_objective, last, fold.fold_id),
        )


def test_report_cannot_be_saved_after_training_continued(objective, tmp_path):
    reports = objective().train(ONE, start=None, report_epochs=(2,))
    early = next(reports)
    next(reports)
    with pytest.raises(AssertionError, match="before training continues"):
        early.save(tmp_path)


def test_trial_does_not_advance_the_callers_generators(objective):
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    found = []
    for _ in objective().train(ONE, start=None, report_epochs=(1, 2)):
        found.append(torch.rand(1))
        assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.cat(found), expected[:3])


def test_divergence_fails_a_trial_with_fold_epoch_and_cause(objective, monkeypatch):
    original = SineWorkload.loss
    monkeypatch.setattr(
        SineWorkload, "loss", lambda self, output, y: original(self, output, y) * 1e38 * 10
    )
    expected = "Fold 0: The training loss must be finite, got inf at epoch 1, step 1"
    with pytest.raises(TrainingFailed, match=expected):
        next(objective().train(ONE, start=None, report_epochs=(6,)))


def test_trial_ends_when_patience_is_exhausted(objective):
    (found,) = objective().train(steps((0, CONSTANT)), start=None, report_epochs=(6,))

    assert found.is_finished
    assert len(found.epochs) < 6
    assert "patience_epochs" in found.reason


def test_trial_ends_after_the_last_epoch(objective):
    found = list(objective().train(ONE, start=None, report_epochs=(2,)))

    assert [r.reason for r in found] == ["", "All 6 epochs were trained."]


def test_finished_trial_is_not_trained_again(objective, tmp_path, monkeypatch):
    sine_objective = objective()
    found, last = train_without_restart(sine_objective, steps((0, CONSTANT)), (3,), tmp_path)
    monkeypatch.setattr("sluice.tuning.fold_training.train", None)  # a call would raise
    (again,) = sine_objective.train(steps((0, CONSTANT)), start=last, report_epochs=(3, 5))

    assert (again.is_finished, again.epochs) == (True, found[-1].epochs)
    assert_same_bits(
        load_state(sine_objective, save_report(again, tmp_path / "again"), 0),
        load_state(sine_objective, last, 0),
    )


def test_data_seed_changes_the_training_and_is_part_of_the_subject(objective, tmp_path):
    default, seed_5, seed_0 = (
        dataclasses.replace(objective(), data_seed=seed) for seed in (None, 5, 0)
    )
    first = [next(o.train(ONE, start=None, report_epochs=(1,))) for o in (default, seed_5, seed_0)]
    curves = [losses_of(report) for report in first]

    assert curves[0] == curves[2] != curves[1]
    assert (default.subject()["data_seed"], seed_5.subject()["data_seed"]) == (None, 5)
    start = save_report(first[0], tmp_path / "own")
    with pytest.raises(ContractError, match="data_seed was None, now 5"):
        next(seed_5.train(ONE, start=start, report_epochs=(2,)))


def test_trial_never_reads_test_rows(objective, monkeypatch):
    """TUNE-4: only train and validation rows become examples."""
    sine_objective, requested = objective(num_rows=301), []
    original = SineWorkload.examples

    def spy(self, frame, rows):
        requested.append((rows.start, rows.stop))
        return original(self, frame, rows)

    monkeypatch.setattr(SineWorkload, "examples", spy)
    next(sine_objective.train(ONE, start=None, report_epochs=(2,)))
    fold = sine_objective.folds[0]
    assert requested == [(fold.train.start, fold.train.stop), (fold.val.start, fold.val.stop)]


def test_only_folds_before_all_test_rows_can_be_searched():
    """TUNE-4: later walk-forward folds train on the test rows of earlier ones."""
    folds = walk_forward(1000, FoldSettings(num_folds=3), horizon_rows=1)

    assert select_search_folds(folds, (0,)) == folds[:1]
    for wrong in ((1,), (0, 2)):
        with pytest.raises(ContractError, match="test rows of fold 0"):
            select_search_folds(folds, wrong)
    with pytest.raises(ContractError, match=r"contains 7, but the folds are \[0, 1, 2\]"):
        select_search_folds(folds, (7,))
