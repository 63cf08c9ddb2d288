"""Resuming and selecting checkpoints: faults, twins, correct programs (TRACE-13, -16)."""

import pytest

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults.checkpoints import CHECKPOINT_CASES
from sluice.trace.records.batches import StateLoadRecord
from sluice.trace.records.environment import StateSaveRecord
from sluice.trace.records.losses import EvaluationPassRecord
from sluice.trace.rules.checkpoints.best_checkpoint_stale import BEST_CHECKPOINT_STALE
from sluice.trace.rules.library import judge
from tests.support.traced import loading_and_resuming as programs


def fault_severity_steps(trace):
    return [(f.fault, f.severity, f.step) for f in judge(trace)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CHECKPOINT_CASES[:2], ids=lambda case: case.name)
def test_a_fault_is_the_only_finding_and_its_twin_has_none(trace_of, tmp_path, case):
    def program(*, has_fault):
        return lambda: case.program(
            CaseSetup(net="mlp", seed=1, folder=tmp_path, has_fault=has_fault)
        )

    faulty = judge(trace_of(program(has_fault=True)))

    assert faulty[0].severity == "error"
    assert {f.fault for f in faulty} == case.correct_causes
    assert abs(faulty[0].step - case.starts_at) <= case.max_late_steps
    assert judge(trace_of(program(has_fault=False))) == ()


@pytest.mark.parametrize("program", programs.CORRECT_RESUMES, ids=lambda program: program.__name__)
def test_a_second_phase_is_not_a_resume(trace_of, program):
    assert judge(trace_of(program)) == ()


def test_a_new_optimizer_with_equal_settings_is_reported(trace_of):
    assert fault_severity_steps(trace_of(programs.new_optimizer_without_state)) == [
        ("resume state lost", "error", 13)
    ]


def test_a_restarted_schedule_is_reported_even_if_the_optimizer_is_loaded(trace_of):
    (found,) = judge(trace_of(programs.scheduler_state_lost))

    assert (found.fault, found.severity, found.step) == ("resume state lost", "error", 13)
    assert "Lost state: the position in CosineAnnealingLR" in found.what


def test_a_new_optimizer_in_every_epoch_needs_confirmation(trace_of):
    assert fault_severity_steps(trace_of(programs.new_optimizer_in_every_epoch)) == [
        ("resume state lost", "confirm", 7)
    ]


def judge_selection(trace_of, losses, saved, path="best.pt", loads=()):
    """Return the findings for evaluations every ten steps, of which some are saved."""
    trace = trace_of(programs.optimizer_without_state)
    facts = {"network": 0, "loader": 1, "kind": "cross_entropy", "num_calls": 3}
    steps = range(10, 10 * len(losses) + 1, 10)
    return BEST_CHECKPOINT_STALE(
        trace.model_copy(
            update={
                "evaluations": tuple(
                    EvaluationPassRecord(step=step, mean=loss, **facts)
                    for step, loss in zip(steps, losses, strict=True)
                ),
                "saves": tuple(
                    StateSaveRecord(
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


def test_a_best_checkpoint_that_stays_the_first_is_reported(trace_of):
    (found,) = judge_selection(trace_of, FALLING, saved=[0])

    assert (found.fault, found.severity, found.step) == ("stale best checkpoint", "error", 20)
    assert found.evidence["num_improvements"] == 5


def test_keeping_the_worst_of_the_first_evaluations_is_reported(trace_of):
    losses = (2.0, 2.1, 1.5, 1.2, 1.0, 0.9)
    (found,) = judge_selection(trace_of, losses, saved=[0, 1])

    assert (found.severity, found.step) == ("error", 30)


def test_a_stale_state_in_memory_is_an_error_if_loaded_at_the_end(trace_of):
    load = StateLoadRecord(
        step=24, what="network", kind="Net", object_id=0, num_keys=4, num_loaded=4, num_missing=0
    )
    (found,) = judge_selection(trace_of, FALLING, saved=[0], path="", loads=[load])
    (without_load,) = judge_selection(trace_of, FALLING, saved=[0], path="")

    assert (found.severity, without_load.severity) == ("error", "confirm")


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
        "every evaluation",
        "again later",
        "at the end",
        "named by epoch",
        "a plateau",
        "rises",
        "falls slightly",
        "few evaluations",
    ],
)
def test_a_plausible_selection_is_not_reported(trace_of, losses, saved, path):
    assert judge_selection(trace_of, losses, saved, path) == ()
