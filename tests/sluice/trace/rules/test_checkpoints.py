"""Resuming, loading and choosing checkpoints: faults, twins, and what looks like one."""

import pytest

from sluice.bench.tracer.case import Setup
from sluice.bench.tracer.faults.checkpoints import CHECKPOINT_CASES
from sluice.trace.evidence.batches import LoadFact
from sluice.trace.evidence.losses import EvaluationFact
from sluice.trace.evidence.surroundings import SaveFact
from sluice.trace.rules.library import judge
from sluice.trace.rules.selection_still import SELECTION_STILL
from tests.support.traced import surroundings as seen


def named(trace):
    return [(f.fault, f.severity, f.step) for f in judge(trace)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CHECKPOINT_CASES[:2], ids=lambda case: case.name)
def test_a_fault_is_named_alone_and_its_twin_is_silent(trace_of, tmp_path, case):
    def program(*, has_fault):
        return lambda: case.program(Setup(net="mlp", seed=1, folder=tmp_path, has_fault=has_fault))

    faulty = judge(trace_of(program(has_fault=True)))

    assert faulty[0].severity == "error"
    assert {f.fault for f in faulty} == case.answers
    assert abs(faulty[0].step - case.starts_at) <= case.within
    assert judge(trace_of(program(has_fault=False))) == ()


@pytest.mark.parametrize("program", seen.RIGHT_RESUMES, ids=lambda program: program.__name__)
def test_a_second_phase_is_no_resume(trace_of, program):
    assert judge(trace_of(program)) == ()


def test_a_new_optimizer_that_is_made_as_the_first_one_lost_its_state(trace_of):
    assert named(trace_of(seen.new_optimizer_alone)) == [("resume lost state", "error", 13)]


def test_a_schedule_that_begins_again_is_lost_though_the_optimizer_is_loaded(trace_of):
    (found,) = judge(trace_of(seen.schedule_alone))

    assert (found.fault, found.severity, found.step) == ("resume lost state", "error", 13)
    assert "lost are the place in CosineAnnealingLR" in found.what


def test_a_new_optimizer_in_every_epoch_is_asked_about(trace_of):
    assert named(trace_of(seen.new_optimizer_in_every_epoch)) == [
        ("resume lost state", "confirm", 7)
    ]


def test_keys_with_a_prefix_reach_nothing(trace_of):
    assert named(trace_of(seen.with_a_prefix)) == [("checkpoint not loaded", "error", 1)]


def test_a_body_without_its_head_is_loaded_on_purpose(trace_of):
    assert judge(trace_of(seen.only_the_body_is_loaded)) == ()


def selection(trace_of, losses, saved, path="best.pt", loads=()):
    """Return the findings over evaluations every ten steps, of which some were saved."""
    bare = trace_of(seen.without_a_state)
    facts = {"network": 0, "loader": 1, "kind": "cross_entropy", "num_calls": 3}
    steps = range(10, 10 * len(losses) + 1, 10)
    return SELECTION_STILL(
        bare.model_copy(
            update={
                "evaluations": tuple(
                    EvaluationFact(step=step, mean=loss, **facts)
                    for step, loss in zip(steps, losses, strict=True)
                ),
                "saves": tuple(
                    SaveFact(
                        step=steps[i],
                        path=path.format(i),
                        num_keys=4,
                        to="file" if path else "memory",
                    )
                    for i in saved
                ),
                "loads": tuple(loads),
            }
        )
    )


FALLING = (2.0, 1.5, 1.2, 1.0, 0.9, 0.8)


def test_a_best_that_stays_the_first_while_the_loss_falls_is_chosen_wrongly(trace_of):
    (found,) = selection(trace_of, FALLING, saved=[0])

    assert (found.fault, found.severity, found.step) == ("selection never moves", "error", 20)
    assert found.evidence["num_better"] == 5


def test_the_worst_of_the_first_ones_is_the_wrong_side_too(trace_of):
    losses = (2.0, 2.1, 1.5, 1.2, 1.0, 0.9)
    (found,) = selection(trace_of, losses, saved=[0, 1])

    assert (found.severity, found.step) == ("error", 30)


def test_what_is_kept_in_memory_counts_when_it_is_loaded_at_the_end(trace_of):
    load = LoadFact(
        step=24, what="network", kind="Net", subject=0, num_keys=4, num_loaded=4, num_missing=0
    )
    (found,) = selection(trace_of, FALLING, saved=[0], path="", loads=[load])
    (asked,) = selection(trace_of, FALLING, saved=[0], path="")

    assert (found.severity, asked.severity) == ("error", "confirm")


@pytest.mark.parametrize(
    ("losses", "saved", "path"),
    [
        (FALLING, [0, 1, 2, 3, 4, 5], "best.pt"),
        (FALLING, [0, 3], "best.pt"),
        (FALLING, [5], "last.pt"),
        (FALLING, [0, 1, 2, 3, 4, 5], "epoch_{}.pt"),
        (FALLING, [0, 1], "best.pt"),
        ((2.0, 2.1, 2.2, 2.3, 2.4, 2.5), [0], "best.pt"),
        ((2.0, 1.99, 1.9, 1.85, 1.8, 1.75), [0], "best.pt"),
        (FALLING[:3], [0], "best.pt"),
    ],
    ids=[
        "always",
        "later too",
        "at the end",
        "named by epoch",
        "a plateau",
        "rises",
        "hardly falls",
        "few",
    ],
)
def test_a_choice_that_may_be_right_is_silent(trace_of, losses, saved, path):
    assert selection(trace_of, losses, saved, path) == ()
