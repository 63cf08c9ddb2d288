"""Detects labels that are independent of the inputs."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pvariance

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import TargetSampleRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import network_name


class ShuffledLabelsSettings(Settings):
    """Thresholds of the rule ``SHUFFLED_LABELS``."""

    min_rows: int = Field(
        400,
        ge=2,
        description="A finding requires at least this number of sampled rows with a target.",
    )
    min_steps: int = Field(
        30,
        ge=1,
        description="A finding requires at least this number of optimizer steps from the start of "
        "a training phase to the end of the run.",
    )
    min_steps_without_evaluation_many_classes: int = Field(
        100,
        ge=1,
        description="Without an evaluation and with more than two classes, severity 'error' "
        "requires at least this number of steps.",
    )
    min_steps_without_evaluation_two_classes: int = Field(
        300,
        ge=1,
        description="Without an evaluation and with two classes, severity 'error' requires at "
        "least this number of steps.",
    )
    min_z_score: float = Field(
        3.0,
        gt=0,
        description="Numeric targets or two classes count as dependent on the inputs if the "
        "z-score is at least this number. The z-score compares the dependence of the targets with "
        "the dependence of shuffled targets.",
    )
    min_z_score_for_confirm: float = Field(
        2.0,
        gt=0,
        description="For numeric targets or two classes, a finding always needs confirmation if "
        "the z-score is at least this number. With a lower z-score, the severity may be 'error'.",
    )
    min_z_score_many_classes: float = Field(
        4.0,
        gt=0,
        description="More than two classes count as dependent on the inputs if the z-score is at "
        "least this number. For shuffled classes, the z-score exceeds 3 by chance in 1% of data "
        "sets.",
    )
    min_late_loss_ratio: float = Field(
        0.985,
        gt=0,
        description="Without an evaluation and with two classes, severity 'error' requires a high "
        "late loss: the mean of the second half of the recorded training losses. The ratio of the "
        "late loss to the loss of the best constant prediction must be at least this number.",
    )
    min_loss_ratio: float = Field(
        0.97,
        gt=0,
        description="The network counts as having learned nothing only if the ratio of its loss "
        "to the loss of the best constant prediction is at least this number.",
    )
    min_rows_of_second_class: int = Field(
        10,
        ge=1,
        description="A finding about classes requires at least this number of rows of the second "
        "most frequent class.",
    )


def _judge(rule: Rule[ShuffledLabelsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings: dict[int, TraceFinding] = {}
    for network, phase in sorted({(s.network, s.phase) for s in trace.target_samples}):
        samples = [s for s in trace.target_samples if (s.network, s.phase) == (network, phase)]
        loss_functions = {s.kind for s in samples}
        feature_counts = {s.num_features for s in samples}
        if len(loss_functions) > 1 or len(feature_counts) > 1 or _repeats_targets(samples):
            continue
        num_steps_before_phase = samples[0].step if phase else 0
        finding = _detect_independence(
            rule, trace, network, samples, num_steps_before_phase=num_steps_before_phase
        )
        if finding is not None:
            findings.setdefault(network, finding)
    return tuple(findings.values())


def _detect_independence(
    rule: Rule[ShuffledLabelsSettings],
    trace: Trace,
    network: int,
    samples: Sequence[TargetSampleRecord],
    *,
    num_steps_before_phase: int,
) -> TraceFinding | None:
    """Detect that the targets of one network are independent of its inputs in a training phase."""
    targets = [t for s in samples for t in s.targets]
    num_steps_since_phase_start = trace.num_steps - num_steps_before_phase
    num_distinct_targets = len(set(targets))
    if (
        len(targets) < rule.settings.min_rows
        or num_steps_since_phase_start < rule.settings.min_steps
        or num_distinct_targets < 2
    ):
        return None
    kind, is_class = samples[0].kind, samples[0].is_class
    if is_class and Counter(targets).most_common(2)[1][1] < rule.settings.min_rows_of_second_class:
        return None
    batch_baselines = [s.prior for s in samples if s.prior is not None]
    baseline = fmean(batch_baselines) if batch_baselines else _baseline_loss(kind, targets)
    if baseline is None:
        return None
    min_loss = rule.settings.min_loss_ratio * baseline
    evaluations = [
        e
        for e in trace.evaluations
        if (e.network, e.kind) == (network, kind) and e.step >= num_steps_before_phase
    ]
    # An evaluation before the first step of the phase is used only if no other evaluation follows.
    later_losses = [e.mean for e in evaluations if e.step > num_steps_before_phase]
    evaluation_losses = later_losses or [e.mean for e in evaluations]
    # Report nothing if an evaluation loss is below the minimum, or if it is NaN.
    if any(not loss >= min_loss for loss in evaluation_losses):
        return None
    losses = [
        v
        for n in trace.scalars
        if n.step > num_steps_before_phase
        for v in n.losses
        if math.isfinite(v)
    ]
    if not evaluation_losses and (not losses or fmean(losses) < min_loss):
        return None
    has_many_classes = is_class and num_distinct_targets > 2
    z_score = _compute_z_score(samples, targets)
    if not z_score < (
        rule.settings.min_z_score_many_classes if has_many_classes else rule.settings.min_z_score
    ):
        return None
    is_clearly_independent = has_many_classes or z_score < rule.settings.min_z_score_for_confirm
    is_training_conclusive = (
        has_many_classes
        and num_steps_since_phase_start >= rule.settings.min_steps_without_evaluation_many_classes
    )
    if losses and num_distinct_targets == 2:
        late_loss = fmean(losses[len(losses) // 2 :])
        is_training_conclusive = (
            num_steps_since_phase_start >= rule.settings.min_steps_without_evaluation_two_classes
            and late_loss >= rule.settings.min_late_loss_ratio * baseline
        )
    has_integer_inputs = samples[0].is_integer
    is_certain = (
        (bool(evaluation_losses) or is_training_conclusive)
        and not has_integer_inputs
        and is_clearly_independent
    )
    loss_text = (
        f"the best evaluation loss is {min(evaluation_losses):.4g}"
        if evaluation_losses
        else f"the mean training loss is {fmean(losses):.4g}"
    )
    return rule.finding(
        severity="error" if is_certain else "confirm",
        step=samples[0].step + 1,
        what=f"{network_name(trace, network)}: over {len(targets)} rows the targets depend on "
        f"the inputs no more than shuffled targets do (z-score {z_score:.1f}), and {loss_text}; "
        f"the best constant prediction has a loss of {baseline:.4g}.",
        cause="Targets that do not match their rows can only be memorized.",
        fix="Apply each shuffle, sort and join to inputs and targets together.",
        confidence=0.95 if is_certain else 0.6,
        num_rows=len(targets),
        z_score=z_score,
        baseline_loss=baseline,
    )


def _repeats_targets(samples: Sequence[TargetSampleRecord]) -> bool:
    """Whether every sampled batch has the same targets in the same order.

    The discriminator of a GAN has such targets: 1 for real images, 0 for generated ones.
    """
    targets_by_batch = [s.targets for s in samples]
    shortest = min(map(len, targets_by_batch))
    return len(targets_by_batch) > 1 and len({t[:shortest] for t in targets_by_batch}) == 1


def _baseline_loss(kind: str, targets: Sequence[float]) -> float | None:
    """Return the loss of the best constant prediction; None if it is undefined or unknown."""
    if kind in ("cross_entropy", "nll_loss"):
        shares = [count / len(targets) for count in Counter(targets).values()]
        return -sum(p * math.log(p) for p in shares)
    if kind.startswith("binary_cross_entropy"):
        p = fmean(targets)
        return -p * math.log(p) - (1 - p) * math.log(1 - p) if 0 < p < 1 else None
    if kind == "mse_loss":
        return pvariance(targets)
    if kind == "l1_loss":
        median_target = sorted(targets)[len(targets) // 2]
        return fmean(abs(t - median_target) for t in targets)
    return None


def _compute_z_score(samples: Sequence[TargetSampleRecord], targets: Sequence[float]) -> float:
    """Return the z-score of the dependence of the targets on the inputs."""
    import torch

    from sluice.trace.inspection.target_sketch import decode_features
    from sluice.trace.rules._helpers.independence_test import dependence_z_score

    features = torch.cat([decode_features(s.features, s.num_features) for s in samples])
    return dependence_z_score(
        features, targets, is_class=samples[0].is_class or len(set(targets)) == 2
    )


SHUFFLED_LABELS = Rule(
    name="the labels depend on the inputs",
    fault="shuffled labels",
    priority=490,
    requires="400 rows with a target each, and 30 steps. Severity 'error' also requires float "
    "inputs, and one of: evaluations with the loss function of the training; more than two "
    "classes and 100 steps; two classes and 300 steps. Otherwise the finding needs confirmation.",
    contradicted_by="A dependence that the test cannot detect, such as the parity of many "
    "features.",
    abstains="An evaluation loss or, without evaluations, the mean training loss is more than 3% "
    "below the loss of the best constant prediction; or every batch has the same targets in the "
    "same order.",
    settings=ShuffledLabelsSettings(),
    judge=_judge,
)
