"""TRAIN-1, REPRO-1, REPRO-4: training options in whole fold runs."""

import dataclasses
import json

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.training.fold_run import find_finished_member, train_fold_run

OPTIONS = {
    "bf16": {"precision": "bf16"},
    "fp16 in parts": {"precision": "fp16", "micro_batch_rows": 10},
    "recomputed": {"recompute_activations": True},
}


def fit(spec, stop_after=None):
    received = []

    def listen(event):
        received.append(event)
        if event.kind == "epoch" and event.epochs_done == stop_after:
            raise KeyboardInterrupt

    return train_fold_run(spec, listen), received


def read_epoch_events(spec, member):
    text = ArtifactStore(spec.artifacts).get(member.event_log).decode()
    events = [json.loads(line) for line in text.splitlines()]
    return [
        {name: value for name, value in event.items() if name not in ("timestamp", "seconds")}
        for event in events
        if event["event"] == "epoch_complete"
    ]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            options, id=name, marks=[] if name == "fp16 in parts" else pytest.mark.exhaustive
        )
        for name, options in OPTIONS.items()
    ],
)
def test_resumed_fold_run_has_the_bits_of_an_uninterrupted_one(specs, options):
    (whole,), (cut,) = specs("whole", **options), specs("cut", **options)
    expected, _ = fit(whole)
    with pytest.raises(KeyboardInterrupt):
        fit(cut, stop_after=2)
    member, _ = fit(cut)

    assert member.weights == expected.weights
    assert read_epoch_events(cut, member) == read_epoch_events(whole, expected)


def test_precision_is_logged_and_passed_to_the_listener(specs):
    (spec,) = specs(precision="bf16")
    member, received = fit(spec)

    assert {event["precision"] for event in read_epoch_events(spec, member)} == {"bf16"}
    assert {e.result.precision for e in received if e.kind == "epoch"} == {"bf16"}


def test_precision_changes_the_weights_but_recomputing_does_not(specs):
    plain, low, again = (
        fit(*specs(str(number), **options))[0].weights
        for number, options in enumerate(({}, OPTIONS["bf16"], OPTIONS["recomputed"]))
    )

    assert plain != low
    assert plain == again


def test_fold_run_is_reused_if_the_change_does_not_affect_weights(specs):
    (spec,) = specs(max_epochs=1)
    member, _ = fit(spec)
    for change in ({"device": "cpu"}, {"loader_workers": 2}):
        other = spec.training.model_copy(update=change)
        assert find_finished_member(dataclasses.replace(spec, training=other)) == member
    other = spec.training.model_copy(update={"micro_batch_rows": 10})
    assert find_finished_member(dataclasses.replace(spec, training=other)) is None


def test_data_seed_is_part_of_the_key(specs):
    (spec,) = specs(max_epochs=1)
    member, _ = fit(spec)
    moved = dataclasses.replace(spec, data_seed=1)

    assert find_finished_member(moved) is None
    assert fit(moved)[0].weights != member.weights
    assert fit(dataclasses.replace(spec, data_seed=0))[0].weights == member.weights
