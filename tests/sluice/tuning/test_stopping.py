"""Decisions follow a clock of their own: whoever is faster, the same trials are stopped."""

import random
from collections import deque

import pytest

from sluice.tuning.proposals import Past
from sluice.tuning.pruning import asha_rule, never
from sluice.tuning.records import EpochLosses, Outcome
from sluice.tuning.stopping import StoppingSearch

EPOCHS = (3, 9)


def propose(number, past):
    # Depends on what is known, as TPE does.
    known = sum(p.loss is not None for p in past)
    return {"training.learning_rate": 1.0 + number + known / 100}


def make(rule=None, *, num_trials=20, lanes=4, epochs=EPOCHS):
    return StoppingSearch(
        propose,
        rule or asha_rule(3),
        num_trials=num_trials,
        lanes=lanes,
        decision_epochs=epochs,
        max_epochs=27,
    )


def losses(trial, until):
    values = [(trial * 7 % 11 + 1) / e for e in range(1, until + 1)]
    return tuple(
        EpochLosses(epoch=e, train_loss=v, val_loss=v, kept_loss=v)
        for e, v in enumerate(values, start=1)
    )


def outcome(segment, **changes):
    values = {
        "trial": segment.trial,
        "until": segment.until,
        "epochs": losses(segment.trial, segment.until),
        "status": "reached",
    }
    return Outcome(**(values | changes))


def run(search, *, pick=None, workers=2, told=None):
    """Run with segments that end in the order ``pick`` says."""
    under_way = deque()
    while ready := search.ready():
        for segment in ready:
            if len(under_way) < workers and segment not in under_way:
                under_way.append(segment)
        chosen = pick(list(under_way)) if pick else under_way[0]
        under_way.remove(chosen)
        arrived = outcome(chosen)
        if told is not None:
            told.append(arrived)
        search.tell(arrived)
    return search.trials


def test_the_order_of_arrival_and_the_number_of_workers_change_nothing():
    expected = run(make())
    for seed in range(20):
        draw = random.Random(seed)
        trials = run(make(), pick=draw.choice, workers=1 + seed % 5)
        assert trials == expected
    assert {t.state for t in expected} == {"finished", "pruned"}


def test_outcomes_told_again_in_any_order_lead_to_the_same_point():
    """The journal is the whole state, at every moment of the search."""
    told: list[Outcome] = []
    expected = run(make(), told=told)
    for stop in range(0, len(told), 3):
        half = make()
        for each in told[:stop]:
            half.tell(each)
        assert run(half) == expected


def test_trials_run_side_by_side_as_many_as_there_are_lanes():
    assert len(make(lanes=4).ready()) == 4
    assert len(make(lanes=9, num_trials=3).ready()) == 3


def test_one_lane_is_the_plain_loop():
    """An independent reference: one trial after another, written down."""
    rungs: dict[int, list[float]] = {3: [], 9: []}
    expected = []
    for number in range(20):
        state = ("finished", 27)
        for epoch in EPOCHS:
            loss = losses(number, epoch)[-1].kept_loss
            stop = asha_rule(3)(loss, rungs[epoch])
            rungs[epoch].append(loss)
            if stop:
                state = ("pruned", epoch)
                break
        expected.append(state)

    trials = run(make(lanes=1), workers=1)

    assert [(t.state, len(t.epochs)) for t in trials] == expected
    assert [t.id for t in trials] == list(range(20))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_a_trial_with_the_reason(value):
    search = make(never, num_trials=2, lanes=1)
    bad = EpochLosses(epoch=1, train_loss=1.0, val_loss=value, kept_loss=value)
    search.tell(outcome(search.ready()[0], epochs=(bad,)))

    assert search.trials[0].state == "failed"
    assert f"val_loss is {value} at epoch 1" in search.trials[0].reason
    assert search.trials[0].loss == float("inf")
    assert [s.trial for s in search.ready()] == [1]


def test_a_trial_that_ended_by_itself_stands_at_the_rungs_it_did_not_reach():
    search = make(num_trials=2, lanes=1)
    search.tell(outcome(search.ready()[0], status="finished"))
    # Trial 1 is worse at epoch 9 than trial 0 was when it ended.
    search.tell(outcome(search.ready()[0], epochs=losses(0, 3)))
    worse = EpochLosses(epoch=9, train_loss=1.0, val_loss=1.0, kept_loss=1.0)
    search.tell(outcome(search.ready()[0], epochs=(worse,)))

    assert [t.state for t in search.trials] == ["finished", "pruned"]


def test_checkpoints_are_needed_until_nothing_goes_on_from_them():
    search = make(never, num_trials=1, lanes=1)
    assert search.needed() == {(0, 3)}
    search.tell(outcome(search.ready()[0]))
    assert search.needed() == {(0, 3), (0, 9)}
    for _ in range(2):
        search.tell(outcome(search.ready()[0]))
    assert search.needed() == frozenset()


def test_a_proposal_sees_what_was_decided_before_it():
    seen: list[list[Past]] = []

    def spy(_number, past):
        seen.append(list(past))
        return {"training.learning_rate": 1.0}

    search = StoppingSearch(spy, never, num_trials=3, lanes=2, decision_epochs=(), max_epochs=27)
    run(search)

    assert [len(past) for past in seen] == [0, 1, 2]
    assert [p.loss is None for p in seen[2]] == [False, True]
