"""A trial is the training loop, cut into pieces that leave no trace; test rows stay out."""

import dataclasses
import shutil

import pytest

from sluice.data.folds import FoldSettings, walk_forward
from sluice.errors import ContractError
from sluice.models.scaled import prepare_model
from sluice.training.loop import train
from sluice.training.seeds import Stream, derive_seed, deterministic
from sluice.tuning.objective import search_folds
from sluice.tuning.records import Segment, Step
from tests.sluice.tuning.conftest import SINE
from tests.support.synthetic import SineWorkload

FAST = {"training.learning_rate": 0.02, "training.clip_norm": 5.0, "model.dropout": 0.1}
SLOW = {"training.learning_rate": 0.005, "training.clip_norm": 0.05, "model.dropout": 0.1}


def segment(until, *, start=None, steps=((0, FAST),), trial=0):
    schedule = tuple(Step(from_epoch=epoch, params=params) for epoch, params in steps)
    return Segment(trial=trial, start=start, until=until, schedule=schedule)


def plain(objective, params):
    """The training loop as everybody else calls it."""
    workload = SineWorkload()
    frame = workload.compute_features(workload.load_rows())
    fold = objective.folds[0]
    rows, val = workload.examples(frame, fold.train), workload.examples(frame, fold.val)
    setup = SINE.with_params(params, where="test")
    with Stream(derive_seed(0, "unit")).active(), deterministic():
        model = prepare_model(workload, setup.model, rows, seed=0)
        return [
            (r.train_loss, r.val_loss)
            for r in train(model, workload.loss, workload.losses, rows, val, setup.training, seed=0)
        ]


def curve(outcome):
    return [(e.train_loss, e.val_loss) for e in outcome.epochs]


def test_a_trial_in_pieces_has_the_losses_of_plain_training(objective, tmp_path):
    own = objective()
    first = own.run(segment(2), tmp_path / "a", None)
    second = own.run(segment(6, start=(0, 2)), tmp_path / "b", tmp_path / "a")

    assert (first.status, second.status) == ("reached", "reached")
    assert curve(first) == curve(second)[:2]
    assert curve(second) == plain(own, FAST)
    kept = [e.kept_loss for e in second.epochs]
    assert kept == [min(v for _, v in curve(second)[: i + 1]) for i in range(6)]


def test_a_piece_trains_only_its_own_epochs(objective, tmp_path, monkeypatch):
    own, trained = objective(), []

    def spy(*args, **options):
        for result in train(*args, **options):
            trained.append(result.epoch)
            yield result

    monkeypatch.setattr("sluice.tuning.objective.train", spy)
    own.run(segment(2), tmp_path / "a", None)
    own.run(segment(6, start=(0, 2)), tmp_path / "b", tmp_path / "a")

    assert trained == [1, 2, 3, 4, 5, 6]


def test_a_damaged_checkpoint_is_passed_over_and_said(objective, tmp_path):
    own = objective()
    own.run(segment(2), tmp_path / "a", None)
    sound = own.run(segment(6, start=(0, 2)), tmp_path / "b", tmp_path / "a")
    for path in (tmp_path / "a" / "fold-0").glob("epoch-*"):
        path.write_bytes(path.read_bytes()[:-100])

    again = own.run(segment(6, start=(0, 2)), tmp_path / "c", tmp_path / "a")

    assert again.damaged_checkpoints > 0
    assert sound.damaged_checkpoints == 0
    assert curve(again) == curve(sound)


def test_a_piece_run_again_or_without_its_start_gives_the_same(objective, tmp_path):
    own = objective()
    own.run(segment(2), tmp_path / "a", None)
    expected = curve(own.run(segment(6, start=(0, 2)), tmp_path / "b", tmp_path / "a"))

    again = own.run(segment(6, start=(0, 2)), tmp_path / "b", tmp_path / "a")
    assert curve(again) == expected
    shutil.rmtree(tmp_path / "a")
    lost = own.run(segment(6, start=(0, 2)), tmp_path / "c", tmp_path / "a")
    assert curve(lost) == expected


def test_a_schedule_of_pbt_replays_to_the_losses_of_its_pieces(objective, tmp_path):
    """The winner's schedule is a recipe: trained from the start it gives the same weights."""
    own = objective()
    steps = ((0, FAST), (2, SLOW), (4, FAST))
    own.run(segment(2, trial=0), tmp_path / "a", None)
    own.run(segment(4, start=(0, 2), steps=steps[:2], trial=1), tmp_path / "b", tmp_path / "a")
    last = segment(6, start=(1, 4), steps=steps, trial=2)
    pieces = own.run(last, tmp_path / "c", tmp_path / "b")
    replayed = own.run(segment(6, steps=steps, trial=9), tmp_path / "d", None)

    assert curve(replayed) == curve(pieces)
    assert curve(pieces)[:2] == plain(own, FAST)[:2]
    assert curve(pieces)[2:4] != plain(own, FAST)[2:4]


def test_divergence_ends_a_trial_with_fold_epoch_and_cause(objective, tmp_path, monkeypatch):
    own = objective()
    original = SineWorkload.loss
    monkeypatch.setattr(
        SineWorkload, "loss", lambda self, output, y: original(self, output, y) * 1e38 * 10
    )
    found = own.run(segment(6), tmp_path / "a", None)

    assert (found.status, found.epochs) == ("failed", ())
    assert "Fold 0: The training loss must be finite, got inf at epoch 1, step 1" in found.reason


def test_patience_ends_a_trial_by_itself(objective, tmp_path):
    own = objective()
    params = {"training.learning_rate": 1e-30, "training.patience_epochs": 1}
    found = own.run(segment(6, steps=((0, params),)), tmp_path / "a", None)

    assert found.status == "finished"
    assert len(found.epochs) < 6
    assert "patience_epochs" in found.reason


def test_a_fold_that_ended_by_patience_is_not_trained_again_while_others_go_on(
    objective, tmp_path, monkeypatch
):
    """Each segment's folder alone is there for the next one: the older ones are removed."""
    trained = []

    def spy(*args, **options):
        for result in train(*args, **options):
            trained.append(result.epoch)
            yield result

    monkeypatch.setattr("sluice.tuning.objective.train", spy)
    own = objective()
    params = {"training.learning_rate": 1e-30, "training.patience_epochs": 1}
    ends, start = [], None
    for until in (3, 4, 5, 6):
        folder = tmp_path / f"until-{until}"
        step = segment(until, start=None if start is None else (0, until - 1), steps=((0, params),))
        ends.append(own.run(step, folder, start))
        if start is not None:
            shutil.rmtree(start)
        start = folder

    epochs = len(ends[0].epochs)
    assert epochs < 3
    assert trained == list(range(1, epochs + 1))
    assert [end.epochs for end in ends] == [ends[0].epochs] * 4


def test_the_data_seed_moves_the_row_order_and_belongs_to_the_subject(objective, tmp_path):
    own, other, same = (dataclasses.replace(objective(), data_seed=seed) for seed in (None, 5, 0))
    curves = [
        curve(each.run(segment(1), tmp_path / str(number), None))
        for number, each in enumerate((own, other, same))
    ]

    assert curves[0] == curves[2] != curves[1]
    assert (own.subject()["data_seed"], other.subject()["data_seed"]) == (None, 5)
    with pytest.raises(ContractError, match="data_seed was None, now 5"):
        other.run(segment(2), tmp_path / "0", None)


def test_the_loss_of_several_folds_is_their_mean(objective, tmp_path):
    both = objective(folds=2)
    found = both.run(segment(2), tmp_path / "a", None)
    each = []
    for fold in both.folds:
        single = type(both)(
            **{n: getattr(both, n) for n in type(both).__slots__} | {"folds": (fold,)}
        )
        each.append(curve(single.run(segment(2), tmp_path / f"f{fold.fold_id}", None)))

    for at in range(2):
        expected = [(a + b) / 2 for a, b in zip(each[0][at], each[1][at], strict=True)]
        assert curve(found)[at] == pytest.approx(expected)


def test_test_rows_are_never_made_into_examples(objective, tmp_path, monkeypatch):
    """TUNE-4."""
    own, asked = objective(), []
    original = SineWorkload.examples

    def spy(self, frame, rows):
        asked.append((rows.start, rows.stop))
        return original(self, frame, rows)

    monkeypatch.setattr(SineWorkload, "examples", spy)
    own.run(segment(2), tmp_path / "a", None)

    fold = own.folds[0]
    assert asked == [(fold.train.start, fold.train.stop), (fold.val.start, fold.val.stop)]


def test_only_folds_before_all_test_rows_may_be_searched_on():
    """TUNE-4: later walk-forward folds train on the test rows of earlier ones."""
    folds = walk_forward(1000, FoldSettings(num_folds=3), horizon_rows=1)

    assert search_folds(folds, (0,)) == folds[:1]
    for wrong in ((1,), (0, 2)):
        with pytest.raises(ContractError, match="test rows of fold 0"):
            search_folds(folds, wrong)
    with pytest.raises(ContractError, match=r"fold 7; there are \[0, 1, 2\]"):
        search_folds(folds, (7,))
