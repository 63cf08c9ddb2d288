"""Population based training: who copies whom, what changes, and that nothing depends on speed."""

import random

import pytest

from sluice.tuning.population import PopulationSearch
from sluice.tuning.records import EpochLosses, Outcome
from tests.sluice.tuning.toy_space import space
from tests.support.toy_search import LR


def propose(number, _past):
    return {LR: 0.01 * (number + 1), "training.batch_rows": 8 if number % 2 else 16}


def make(num_trials=8, epochs=(5, 10), max_epochs=15, seed=0):
    return PopulationSearch(
        space(),
        propose,
        num_trials=num_trials,
        decision_epochs=epochs,
        max_epochs=max_epochs,
        seed=seed,
    )


def outcome(segment, value=None, status="reached"):
    value = float(segment.trial) if value is None else value
    epochs = tuple(
        EpochLosses(epoch=e, train_loss=0.0, val_loss=value, kept_loss=value - e / 100)
        for e in range(1, segment.until + 1)
    )
    return Outcome(trial=segment.trial, until=segment.until, epochs=epochs, status=status)


def run(search, *, shuffle=None):
    while ready := list(search.ready()):
        if shuffle:
            shuffle.shuffle(ready)
        search.tell(outcome(ready[0]))
    return search.trials, search.exploits


def test_the_worst_quarter_copies_the_best_quarter():
    search = make()
    for segment in search.ready():
        search.tell(outcome(segment))

    assert {e.trial for e in search.exploits} == {6, 7}
    assert {e.donor for e in search.exploits} <= {0, 1}
    starts = {s.trial: s.start for s in search.ready()}
    assert {t: s for t, s in starts.items() if t < 6} == {t: (t, 5) for t in range(6)}
    for exploit in search.exploits:
        assert starts[exploit.trial] == (exploit.donor, 5)


def test_changed_values_are_a_fifth_away_or_new_and_stay_in_range():
    seen = set()
    for seed in range(30):
        search = make(seed=seed)
        for segment in search.ready():
            search.tell(outcome(segment))
        for exploit in search.exploits:
            donor = propose(exploit.donor, ())
            # What fixes shapes or steps comes with the weights.
            assert exploit.params["training.batch_rows"] == donor["training.batch_rows"]
            ratio = exploit.params[LR] / donor[LR]
            assert 1e-4 <= exploit.params[LR] <= 1.0
            seen.add(round(ratio, 6) if round(ratio, 6) in (0.8, 1.2) else "new")
    assert seen == {0.8, 1.2, "new"}


def test_the_order_of_arrival_changes_nothing_and_the_seed_does():
    expected = run(make())

    for seed in range(10):
        assert run(make(), shuffle=random.Random(seed)) == expected
    assert run(make(seed=1))[1] != expected[1]


def test_nothing_is_decided_before_the_last_member_arrived():
    search = make()
    ready = search.ready()
    for segment in ready[:-1]:
        search.tell(outcome(segment))
    assert search.ready() == ready[-1:]
    assert search.exploits == []


def test_outcomes_told_again_lead_to_the_same_point():
    told, search = [], make()
    while ready := search.ready():
        told.append(outcome(ready[-1]))
        search.tell(told[-1])
    for stop in range(0, len(told), 3):
        again = make()
        for each in told[:stop]:
            again.tell(each)
        assert run(again) == (search.trials, search.exploits)


def test_a_failed_member_goes_on_from_a_good_one():
    search = make(num_trials=4)
    for segment in search.ready():
        bad = segment.trial == 0
        search.tell(outcome(segment, value=float("nan") if bad else None))

    assert [(e.trial, e.donor) for e in search.exploits] == [(0, 1)]
    assert run(search)[0][0].state == "finished"


def test_a_population_that_failed_whole_ends_with_the_reason():
    search = make(num_trials=4)
    for segment in search.ready():
        search.tell(outcome(segment, value=float("nan")))

    assert search.ready() == ()
    assert {t.state for t in search.trials} == {"failed"}
    assert "val_loss is nan" in search.trials[0].reason


def test_a_schedule_tells_the_whole_past_of_the_weights():
    trials, exploits = run(make())

    last = exploits[-1]
    steps = trials[last.trial].schedule
    assert steps[-1].from_epoch == last.epoch == 10
    assert steps[:-1] == trials[last.donor].schedule
    assert steps[-1].params == last.params


@pytest.mark.parametrize("num_trials", [2, 3, 5, 9])
def test_populations_of_any_size_come_to_their_end(num_trials):
    trials, exploits = run(make(num_trials=num_trials))

    assert {t.state for t in trials} == {"finished"}
    assert all(e.trial != e.donor for e in exploits)
    assert len(exploits) == 2 * max(1, num_trials // 4)
