"""Examples of a fold are built once per process and cached unchanged."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from sluice.base.seeding import RandomStream
from sluice.data.rows.protocol import DictRows
from sluice.tuning import prepared_folds
from sluice.tuning.prepared_folds import prepare_fold
from tests.support.synthetic import SineSettings, SineWorkload
from tests.support.trained_sources import TokenSource, TokenWorkload

WORKLOAD = SineWorkload(SineSettings())
FRAME = WORKLOAD.compute_features(WORKLOAD.load_rows())
FOLDS = WORKLOAD.plan_folds(FRAME)


class Counting(SineWorkload):
    """Workload that stores rows, draws a random number and counts calls in ``examples``."""

    num_calls = 0

    def examples(self, frame, rows):
        type(self).num_calls += 1
        self.seen = [*getattr(self, "seen", []), rows.start]
        self.drawn = float(torch.rand(1))
        return super().examples(frame, rows)


@pytest.fixture(autouse=True)
def empty_cache():
    prepared_folds._cache.clear()
    Counting.num_calls = 0
    yield
    prepared_folds._cache.clear()


def prepare(fold=FOLDS[0], *, data="a", seed=1, workload=Counting, frame=FRAME):
    return prepare_fold(frame, fold, open_workload=workload, key={"data": data}, seed=seed)


def test_examples_of_a_fold_are_built_once():
    first, second = prepare(), prepare()

    assert Counting.num_calls == 2  # train and validation rows
    assert second.train is first.train
    expected = WORKLOAD.examples(FRAME, FOLDS[0].train)
    assert torch.equal(second.train.x, expected.x)
    assert torch.equal(second.train.y, expected.y)


def test_cache_keeps_all_folds_of_one_study_only():
    for _ in range(2):
        for fold in FOLDS[:2]:
            prepare(fold)
    assert Counting.num_calls == 4
    for changed in ({"data": "b"}, {"seed": 2}):
        prepare(**changed)
        assert len(prepared_folds._cache) == 1
    assert Counting.num_calls == 8


def test_each_trial_has_its_own_workload_with_state_from_the_rows():
    first = prepare()
    first.workload.seen.append("changed by a trial")
    second = prepare()

    assert second.workload is not first.workload
    assert second.workload.seen == [FOLDS[0].train.start, FOLDS[0].val.start]


def test_workload_that_cannot_be_copied_is_rebuilt_for_each_trial():
    class Locked(Counting):
        def examples(self, frame, rows):
            self.lock = threading.Lock()
            return super().examples(frame, rows)

    first, second = prepare(workload=Locked), prepare(workload=Locked)
    assert Locked.num_calls == 4
    assert first.workload is not second.workload


@pytest.mark.parametrize("inference", [False, True])
def test_examples_changed_in_place_are_rebuilt(inference):
    before = prepare()
    expected = before.val.x.clone()
    with torch.inference_mode(inference):
        for part in before.val.x.split(10):
            part.mul_(2)
    assert torch.equal(prepare().val.x, expected)
    assert Counting.num_calls == 4


class Named(Counting):
    """Workload with a dict of inputs in memory."""

    def examples(self, frame, rows):
        found = super().examples(frame, rows)
        return dataclasses.replace(found, x=DictRows({"x": found.x, "again": found.x.clone()}))


@pytest.mark.parametrize("name", ["x", "again"])
def test_dict_inputs_changed_in_place_are_rebuilt(name):
    before = prepare(workload=Named)
    assert prepare(workload=Named).train is before.train
    before.train.x.tensors[name].add_(1)

    after = prepare(workload=Named)
    assert after.train is not before.train
    assert torch.equal(after.train.x.tensors["x"], after.train.x.tensors["again"])


def test_row_source_is_built_once():
    workload = TokenWorkload()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    first, second = (prepare(fold, workload=TokenWorkload, frame=frame) for _ in range(2))

    assert isinstance(first.train.x, TokenSource)
    assert second.train is first.train


def test_random_stream_continues_after_the_draws_of_the_examples():
    drawn = []
    for _ in range(2):
        prepared = prepare()
        with RandomStream(1, prepared.rng_state).active():
            drawn.append(float(torch.rand(1)))
    stream = RandomStream(1)
    with stream.active():
        expected = [float(torch.rand(1)) for _ in range(3)]
    assert drawn == [expected[2]] * 2
    assert prepared.workload.drawn == expected[1]


def test_read_only_frame_is_copied():
    """Arrays from Ray's object store are read-only."""
    read_only = FRAME.copy()
    for name in read_only:
        values = read_only[name].to_numpy().copy()
        values.flags.writeable = False
        read_only[name] = values

    class Writing(Counting):
        def examples(self, frame, rows):
            frame.iloc[0, 0] = np.nan
            return super().examples(frame, rows)

    prepare(frame=read_only, workload=Writing)
    assert not read_only.isna().any().any()
