"""Check that every trainable parameter is in the optimizer and gets a gradient of the loss."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream, derive_seed
from sluice.config.poc_settings import PocSettings
from sluice.failfast.gradients.frozen_parameters import check_frozen
from sluice.failfast.gradients.gradient_probe import GradientProbe
from sluice.failfast.gradients.missing_gradients import MissingGradients, judge_missing_gradients
from sluice.failfast.gradients.norms import GradientReport, validate_gradients
from sluice.failfast.gradients.optimizer_membership import judge_membership, validate_optimizer
from sluice.failfast.gradients.recurrent_report import (
    judge_forget_gates,
    judge_normalisers,
    recurrent_numbers,
)
from sluice.failfast.gradients.recurrent_state import record_normalisers, recurrent_gradients
from sluice.failfast.gradients.symmetric_units import symmetric_weights
from sluice.failfast.learning.example_sampling import format_shape, sample_evenly
from sluice.failfast.learning.instantiation import too_few_examples
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import EvidenceValue
from sluice.models.dropout import require_dropout
from sluice.models.module_activity import RECTIFIERS, ActivityRecorder, record_activity
from sluice.models.parameter_names import format_names
from sluice.models.settings import ModelSettings
from sluice.training.optimizers import require_optimizer
from sluice.training.parameter_groups import complete_groups, make_optimizer
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload


def check_gradient_flow(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    train: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> CheckOutcome:
    """Run one backward pass on one real batch and check the gradients.

    - Frozen parameters must be declared, and every trainable parameter must be in one parameter
      group.
    - ``loss`` must return one finite number, ``losses`` one number per example. All gradients must
      be finite.
    - Missing or zero gradients and equal units are checked again after ``probe_steps`` optimizer
      steps on other batches, because healthy designs with zero initialisation need some steps.
      Parameters that still have no gradient fail or warn (see ``judge_missing_gradients``). Units
      that are still equal fail.
    - A gradient norm above ``warn_gradient_norm`` warns. For an absolute loss above 1, this limit
      is multiplied by the loss.

    Args:
        workload: Builds the model and defines the loss and the parameter groups.
        model_settings: Architecture and size.
        training: Learning rate and weight decay of the steps.
        train: Train examples of a fold.
        settings: ``probe_batch_rows``, ``probe_steps`` and ``warn_gradient_norm``.
        seed: Base seed of the initial weights, of dropout and of the batches.

    Raises:
        ContractError: The parameter groups are invalid, or the optimizer has a state that cannot
            be stored in a checkpoint.
        SettingsError: The optimizer or one of its arguments is invalid.
        Exception: Any exception of the model's or the loss's own code.

    Cost:
        One forward and backward pass. If a gradient is missing or 0, a ReLU is inactive, or the
        units of a layer are equal, ``probe_steps`` more passes.
    """
    if len(train) < settings.probe_batch_rows:
        return too_few_examples(len(train), settings.probe_batch_rows)
    batch = sample_evenly(train, settings.probe_batch_rows)
    model = prepare_model(workload, model_settings, train, seed=seed)
    frozen_finding = _find_frozen(workload, model.network)
    if frozen_finding is not None and frozen_finding.outcome == "fail":
        return frozen_finding
    groups = complete_groups(workload.parameter_groups(model.network), training)
    membership_finding = judge_membership(validate_optimizer(model.named_parameters(), groups))
    if membership_finding is not None:
        return membership_finding
    require_optimizer(training)
    if training.dropout_at(training.max_epochs) is not None:
        require_dropout(model)
    make_optimizer(groups, training)  # raises for parameter shapes that the optimizer rejects

    model.train()
    stream = RandomStream(derive_seed(seed, "poc_gradient_flow"))
    with stream.active(), record_activity(model) as recorder:
        with record_normalisers(model) as normaliser_states:
            output = model(batch.inputs)
        ranges, normaliser_finding = judge_normalisers(normaliser_states)
        if normaliser_finding is not None and normaliser_finding.outcome == "fail":
            return normaliser_finding
        loss = workload.loss(output, batch.targets)
        wrong_loss = _find_wrong_loss(
            loss, workload.losses(output.detach(), batch.targets), len(batch)
        )
        if wrong_loss is not None:
            return wrong_loss
        loss.backward()
        # The limit grows with the loss: unscaled targets cause a loss in the thousands, and
        # proportionally large gradients.
        warn_norm = settings.warn_gradient_norm * max(1.0, abs(float(loss.detach())))
        try:
            report = validate_gradients(model.named_parameters(), warn_norm=warn_norm)
        except ContractError as error:
            return CheckOutcome(outcome="fail", summary=error.what, fault="non-finite gradient")
        # Measure before the optimizer steps, which replace the gradients by those of later batches.
        layer_gradients = recurrent_gradients(model)
        probe = GradientProbe(model)
        if _needs_more_steps(model, report, recorder):
            probe.run(
                workload,
                groups,
                training,
                train,
                recorder,
                batch_rows=settings.probe_batch_rows,
                num_steps=settings.probe_steps,
                seed=seed,
            )
    missing_gradients = _find_missing_gradients(model, probe)
    one_row_finding = _find_one_row_windows(batch, missing_gradients)
    findings = (
        *(
            (one_row_finding,)
            if one_row_finding
            else judge_missing_gradients(model, missing_gradients, recorder.activity)
        ),
        _find_symmetric_units(model, probe),
        _find_large_gradients(report, warn_norm),
        normaliser_finding,
        judge_forget_gates(layer_gradients),
        frozen_finding,
    )
    numbers = _report_numbers(report) | {"num_probe_steps": probe.num_batches - 1}
    return _combine_findings(
        [finding for finding in findings if finding is not None],
        report,
        numbers | recurrent_numbers(layer_gradients, ranges),
    )


def _find_frozen(workload: Workload, network: nn.Module) -> CheckOutcome | None:
    parameters = dict(network.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        return CheckOutcome(
            outcome="fail",
            summary="The model has no trainable parameter; the number of frozen parameters is "
            f"{len(parameters):,}.",
            fault="detached loss",
        )
    return check_frozen(parameters.items(), workload.frozen_parameters)


def _find_wrong_loss(loss: object, losses: object, num_examples: int) -> CheckOutcome | None:
    for name, value in (("loss()", loss), ("losses()", losses)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            actual = (
                f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
            )
            return CheckOutcome(
                outcome="fail",
                summary=f"{name} must return a floating-point tensor, got {actual}.",
                fault="invalid loss type",
            )
    assert isinstance(loss, Tensor)
    assert isinstance(losses, Tensor)
    if loss.numel() != 1:
        return CheckOutcome(
            outcome="fail",
            summary=f"loss() must return one number, got a tensor of {format_shape(loss)} "
            f"for {pluralize(num_examples, 'example')}.",
            fault="wrong loss shape",
        )
    if tuple(losses.shape) != (num_examples,):
        return CheckOutcome(
            outcome="fail",
            summary=f"losses() must return one number per example, ({num_examples},), "
            f"got {format_shape(losses)}.",
            fault="wrong loss shape",
        )
    if not bool(torch.isfinite(loss)):
        return CheckOutcome(
            outcome="fail",
            summary=f"The loss of the first batch is {float(loss.detach())}.",
            fault="non-finite loss",
        )
    if not loss.requires_grad:
        return CheckOutcome(
            outcome="fail",
            summary="The loss does not depend on any trainable parameter.",
            fault="detached loss",
        )
    return None


def _needs_more_steps(model: nn.Module, report: GradientReport, recorder: ActivityRecorder) -> bool:
    """Return whether optimizer steps are needed to distinguish a fault from a healthy start."""
    modules = dict(model.named_modules())
    return bool(
        report.missing
        or report.zero
        or any(
            isinstance(modules[n], RECTIFIERS) and activity.is_dead
            for n, activity in recorder.activity.items()
        )
        or symmetric_weights(model)
    )


def _find_missing_gradients(model: nn.Module, probe: GradientProbe) -> MissingGradients:
    trainable_names = frozenset(n for n, p in model.named_parameters() if p.requires_grad)
    return MissingGradients(
        missing=trainable_names - probe.names_with_gradient,
        zero=trainable_names & probe.names_with_gradient - probe.names_with_nonzero_gradient,
        num_trainable=len(trainable_names),
        num_batches=probe.num_batches,
    )


def _find_one_row_windows(
    batch: Examples, missing_gradients: MissingGradients
) -> CheckOutcome | None:
    names = sorted(missing_gradients.parameters)
    inputs = batch.inputs
    if not isinstance(inputs, Tensor) or inputs.ndim != 3 or inputs.shape[1] != 1 or not names:
        return None
    if not all("weight_hh" in name for name in names):
        return None
    return CheckOutcome(
        outcome="warn",
        summary="Inputs are windows of one row, so the recurrent weights "
        f"{format_names(names)} have no effect.",
        fault="sequence of one row",
    )


def _find_symmetric_units(model: nn.Module, probe: GradientProbe) -> CheckOutcome | None:
    names = symmetric_weights(model)
    if not names:
        return None
    return CheckOutcome(
        outcome="fail",
        summary=f"All units of {format_names(names)} have equal weights and equal gradients "
        f"after {pluralize(probe.num_batches - 1, 'optimizer step')}.",
        fault="constant initialization",
    )


def _find_large_gradients(report: GradientReport, warn_norm: float) -> CheckOutcome | None:
    if not report.large:
        return None
    largest_parameter, norm = report.largest
    return CheckOutcome(
        outcome="warn",
        summary=f"{len(report.large):,} of {len(report.norms):,} gradient norms are above "
        f"{warn_norm:g}; the largest is {norm:.4g}, of {largest_parameter}.",
        fault="explosion",
    )


def _report_numbers(report: GradientReport) -> dict[str, EvidenceValue]:
    largest_parameter, norm = report.largest
    return {
        "num_gradients": len(report.norms),
        "largest_norm": norm,
        "largest_parameter": largest_parameter,
        "mean_norm": report.mean_norm,
        "num_missing": len(report.missing),
        "num_zero": len(report.zero),
        "num_frozen": len(report.frozen),
    }


def _combine_findings(
    findings: Sequence[CheckOutcome], report: GradientReport, numbers: dict[str, EvidenceValue]
) -> CheckOutcome:
    """Return the first failure, else all warnings in one finding, else a pass."""
    failures = [finding for finding in findings if finding.outcome == "fail"]
    if failures:
        return replace(failures[0], numbers=numbers)
    if findings:
        summaries = " ".join(finding.summary for finding in findings)
        return replace(findings[0], summary=summaries, numbers=numbers)
    largest_parameter, norm = report.largest
    return CheckOutcome(
        outcome="pass",
        summary=f"{len(report.norms):,} trainable parameters have a finite gradient; the largest "
        f"norm is {norm:.4g}, of {largest_parameter}.",
        numbers=numbers,
    )
