"""Every rule on programs with one fault each, and on healthy ones (TRACE-9, TRACE-11..13)."""

import pytest

from sluice.bench.tracer.faults.library import FAULT_CASES
from sluice.trace.rules.library import RULES, judge
from tests.support.traced import faulty
from tests.support.traced.healthy import HEALTHY

FAULTS = [
    (faulty.no_zero_grad, "gradients are cleared between two steps", "confirm", 2),
    (
        faulty.zero_grad_after_backward,
        "a step uses the gradients that backward brought",
        "error",
        1,
    ),
    (faulty.zeros_after_backward, "a step uses the gradients that backward brought", "error", 1),
    (faulty.step_before_backward, "backward comes before the step", "error", 1),
    (faulty.no_backward, "backward comes before the step", "error", 1),
    (faulty.schedule_first, "the scheduler steps after its optimizer", "confirm", 1),
    (faulty.clip_after_step, "gradients are clipped before they are used", "error", 1),
    (faulty.clip_before_unscale, "gradients are unscaled before they are clipped", "error", 1),
    (
        faulty.head_outside,
        "every parameter that gets gradients is in an optimizer",
        "confirm",
        1,
    ),
    (faulty.in_two_optimizers, "every parameter is moved by one optimizer", "error", 2),
    (faulty.two_losses_in_turns, "every parameter is moved by one optimizer", "confirm", 2),
    (
        faulty.head_replaced,
        "the optimizer holds the parameters that the network has now",
        "error",
        1,
    ),
    (
        faulty.head_replaced_halfway,
        "the optimizer holds the parameters that the network has now",
        "error",
        4,
    ),
    (faulty.stays_in_eval, "networks learn in training mode", "error", 7),
    (faulty.always_in_eval, "networks learn in training mode", "confirm", 1),
    (faulty.looks_before_it_learns, "networks learn in training mode", "error", 1),
    (faulty.validates_in_training_mode, "networks are judged in evaluation mode", "confirm", 6),
]


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
@pytest.mark.parametrize(
    ("program", "rule", "severity", "step"), FAULTS, ids=lambda v: getattr(v, "__name__", None)
)
def test_a_fault_is_named_alone_and_since_its_first_step(trace_of, program, rule, severity, step):
    found = judge(trace_of(program))

    assert [(f.rule, f.severity) for f in found] == [(rule, severity)]
    assert abs(found[0].step - step) <= 1


@pytest.mark.filterwarnings("ignore:The parameters of .* are clipped")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_has_no_finding(trace_of, name):
    assert judge(trace_of(HEALTHY[name])) == ()


def test_every_rule_says_when_it_is_silent_and_what_contradicts_it():
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert all((rule.requirement, rule.requires, rule.contradicted_by, rule.abstains))


def test_every_rule_is_shown_by_a_fault():
    """By a program here or a case of the benchmark, or it is of what others bring about."""
    here = {rule for _, rule, _, _ in FAULTS}
    answers = {fault for case in FAULT_CASES for fault in case.answers}

    alone = {r.fault for r in RULES if r.name not in here and r.fault not in answers}

    # Warnings and symptoms; see test_near_misses and test_structure_and_numbers. The one of a
    # schedule stands in test_other_hands, that of validation losses in test_overfitting.
    assert alone <= {
        "freeze without effect",
        "schedule hardly moves",
        "logits extreme",
        "clipping unsuited",
        "moments unstable",
        "vanishing gradients",
        "rate too high",
        "loss not finite",
        "loss not falling",
        "weights do not move",
        "overfitting",
    }
