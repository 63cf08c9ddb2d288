"""Every rule on programs with one fault each and on healthy ones, and rule discovery."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.base.errors import SettingsError
from sluice.bench.tracer.faults.library import FAULT_CASES
from sluice.trace.rules import library
from sluice.trace.rules.gradients.missing_zero_grad import (
    MISSING_ZERO_GRAD,
    MissingZeroGradSettings,
)
from sluice.trace.rules.library import RANK_RULES, RULES, judge
from tests.support.traced import faulty
from tests.support.traced.healthy import HEALTHY

FAULTS = [
    (faulty.no_zero_grad, "gradients are cleared between two steps", "confirm", 2),
    (
        faulty.zero_grad_after_backward,
        "gradients are not cleared between backward and the step",
        "error",
        1,
    ),
    (
        faulty.zeros_after_backward,
        "gradients are not cleared between backward and the step",
        "error",
        1,
    ),
    (faulty.step_before_backward, "backward runs before the optimizer step", "error", 1),
    (faulty.no_backward, "backward runs before the optimizer step", "error", 1),
    (faulty.scheduler_before_optimizer, "the scheduler steps after its optimizer", "confirm", 1),
    (faulty.clip_after_step, "gradients are clipped before the optimizer step", "error", 1),
    (faulty.clip_before_unscale, "gradients are unscaled before they are clipped", "error", 1),
    (
        faulty.head_not_in_optimizer,
        "every parameter that receives gradients belongs to an optimizer",
        "confirm",
        1,
    ),
    (faulty.parameter_in_two_optimizers, "every parameter belongs to one optimizer", "error", 2),
    (faulty.alternating_optimizers, "every parameter belongs to one optimizer", "confirm", 2),
    (
        faulty.head_replaced,
        "the optimizer contains the current parameters of the network",
        "error",
        1,
    ),
    (
        faulty.head_replaced_halfway,
        "the optimizer contains the current parameters of the network",
        "error",
        4,
    ),
    (faulty.stays_in_eval, "networks are trained in training mode", "error", 7),
    (faulty.always_in_eval, "networks are trained in training mode", "confirm", 1),
    (faulty.evaluates_before_training, "networks are trained in training mode", "error", 1),
    (faulty.validates_in_training_mode, "networks are evaluated in evaluation mode", "confirm", 6),
    (
        faulty.takes_rows_for_positions,
        "no output depends on other rows of the batch",
        "error",
        1,
    ),
    (
        faulty.returns_its_input,
        "a causal network is not trained to return its own input",
        "error",
        1,
    ),
]


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
@pytest.mark.parametrize(
    ("program", "rule", "severity", "step"), FAULTS, ids=lambda v: getattr(v, "__name__", None)
)
def test_a_fault_is_the_only_finding_from_its_first_step_on(
    trace_of, program, rule, severity, step
):
    found = judge(trace_of(program))

    assert [(f.rule, f.severity) for f in found] == [(rule, severity)]
    assert abs(found[0].step - step) <= 1


@pytest.mark.filterwarnings("ignore:The parameters of .* are clipped")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_has_no_finding(trace_of, name):
    assert judge(trace_of(HEALTHY[name])) == ()


REQUIREMENTS = {
    "TRACE-2": (
        "constant_column",
        "index_out_of_range",
        "shuffled_labels",
        "nonfinite_input",
        "all_targets_ignored",
        "train_val_leakage",
        "overlapping_windows",
        "preprocessing_skew",
        "feature_order_mismatch",
    ),
    "TRACE-3": ("duplicate_bos", "eos_masked"),
    "TRACE-4": ("inverted_padding_mask", "future_token_leak", "targets_not_shifted", "mixed_rows"),
    "TRACE-5": (
        "missing_set_epoch",
        "ddp_bypassed",
        "ranks_diverge",
        "label_skew_across_ranks",
        "missing_distributed_sampler",
        "sampler_seed_mismatch",
    ),
    "TRACE-6": ("duplicate_worker_seeds",),
    "TRACE-8": (
        "nonfinite_gradient",
        "dead_units",
        "constant_init",
        "vanishing_gradients",
        "nonfinite_loss",
    ),
    "TRACE-9": (
        "stale_optimizer_parameters",
        "parameter_in_two_optimizers",
        "parameters_not_optimized",
        "lr_divergence",
        "loss_divergence",
        "loss_not_decreasing",
        "weights_not_updating",
        "unnormalized_accumulation",
        "overfitting",
    ),
    "TRACE-10": ("gradient_underflow", "bf16_update_lost", "scaler_skips_steps"),
    "TRACE-11": (
        "step_before_backward",
        "scheduler_before_optimizer",
        "lr_stays_zero",
        "schedule_ends_early",
        "scheduler_stepped_per_epoch",
    ),
    "TRACE-12": ("clip_before_unscale", "clip_after_step", "clip_norm_mismatch"),
    "TRACE-13": (
        "misplaced_zero_grad",
        "missing_zero_grad",
        "unstable_adam_moments",
        "resume_state_lost",
        "checkpoint_partially_loaded",
    ),
    "TRACE-14": ("extreme_logits", "loss_broadcasting", "logits_probability_mixup"),
    "TRACE-16": (
        "training_in_eval_mode",
        "evaluating_in_train_mode",
        "detached_subgraph",
        "unregistered_module",
        "unintended_freeze",
        "misspelled_requires_grad",
        "loss_detached",
        "tied_weights_broken",
        "checkpoint_not_loaded",
        "best_checkpoint_stale",
    ),
}
"""The requirement that each rule implements, by module name."""


def test_every_rule_states_its_evidence_and_its_limits():
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in (*RULES, *RANK_RULES):
        assert all((rule.requires, rule.contradicted_by, rule.abstains))


@pytest.mark.parametrize("rules", [RULES, RANK_RULES], ids=["one process", "ranks"])
def test_priorities_are_unique_and_ascending(rules):
    priorities = [rule.priority for rule in rules]

    assert priorities == sorted(set(priorities))


def test_every_module_of_a_topic_package_is_a_rule_with_a_requirement():
    files = Path(library.__file__).parent.glob("[!_]*/[!_]*.py")
    implemented = [name for names in REQUIREMENTS.values() for name in names]

    assert sorted(implemented) == sorted(file.stem for file in files)
    assert len(implemented) == len(RULES) + len(RANK_RULES)


def test_every_rule_module_has_a_test_module():
    """The tests mirror the packages of the rules."""
    rules_folder, tests_folder = Path(library.__file__).parent, Path(__file__).parent
    expected = [
        f"{path.parent.name}/test_{path.name}" for path in rules_folder.glob("[!_]*/[!_]*.py")
    ]

    assert len(expected) == len(RULES) + len(RANK_RULES)
    assert sorted(name for name in expected if not (tests_folder / name).is_file()) == []


def test_every_rule_is_covered_by_a_faulty_program():
    """The program is in this module or in the benchmark, except for warnings and symptoms."""
    tested_rules = {rule for _, rule, _, _ in FAULTS}
    benchmark_faults = {fault for case in FAULT_CASES for fault in case.correct_causes}

    untested_faults = {
        r.fault for r in RULES if r.name not in tested_rules and r.fault not in benchmark_faults
    }

    # Warnings and symptoms; their rules have test modules in the topic folders.
    assert untested_faults <= {
        "misspelled requires_grad",
        "scheduler stepped per epoch",
        "extreme logits",
        "clip norm mismatch",
        "unstable Adam moments",
        "vanishing gradients",
        "learning rate too high",
        "non-finite loss",
        "loss not decreasing",
        "weights not updating",
        "overfitting",
    }


NO_THRESHOLDS = {
    "_MAX_NAMES",
    "_MAX_LISTED_COLUMNS",
    "_NUM_SHIFTED_POSITIONS",
    "_KERNEL_WIDTHS",
    "_NUM_PERMUTATIONS",
}
"""Constants that are not thresholds: numbers of items in messages, number of shifted positions, and
the parameters of the independence test."""


def numeric_constants(path: Path) -> set[str]:
    """Return the names to which a module assigns numbers."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if all(isinstance(v, ast.Constant) and type(v.value) in (int, float) for v in values):
                found |= {n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)}
    return found


def test_every_threshold_is_a_field_of_the_settings_of_its_rule():
    for path in Path(library.__file__).parent.glob("*/*.py"):
        assert numeric_constants(path) <= NO_THRESHOLDS, path


@pytest.mark.parametrize("rule", [*RULES, *RANK_RULES], ids=lambda rule: rule.name)
def test_every_threshold_has_a_description_and_a_range(rule):
    for name, field in type(rule.settings).model_fields.items():
        is_number = field.annotation in (int, float)
        assert field.description, name
        assert field.description.endswith("."), name
        assert field.metadata or not is_number or "log_scale" in name, name


def test_a_stricter_threshold_of_a_rule_removes_its_finding(trace_of):
    trace = trace_of(faulty.no_zero_grad)
    stricter = replace(
        MISSING_ZERO_GRAD, settings=MissingZeroGradSettings(min_steps=trace.num_steps + 1)
    )

    assert MISSING_ZERO_GRAD(trace)
    assert not stricter(trace)


def test_a_threshold_outside_its_range_is_rejected():
    with pytest.raises(SettingsError, match="min_steps"):
        MissingZeroGradSettings(min_steps=0)
