"""POC-2: does one backward pass through the workload's own loss reach every parameter?"""

import torch
from torch import Tensor

from sluice.errors import ContractError
from sluice.failfast.gradients import GradientReport, validate_gradients
from sluice.failfast.instantiation import too_few
from sluice.failfast.probe import shape, spread
from sluice.failfast.result import Finding
from sluice.failfast.settings import PocSettings
from sluice.models.scaled import prepare_model
from sluice.models.settings import ModelSettings
from sluice.training.seeds import Stream, derive_seed
from sluice.workloads.workload import Examples, Workload


def check_gradient_flow(
    workload: Workload,
    model_settings: ModelSettings,
    train: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> Finding:
    """Run one backward pass on one real batch and judge the gradients (POC-2, GRAD-1).

    The loss must be one finite number and its parts one per example. At least one gradient must
    be there, all finite, none of the trainable parameters without one, not all of them zero. A
    norm above ``warn_gradient_norm`` and single zero gradients warn.

    Args:
        workload: Builds the model and has the loss.
        model_settings: Architecture and size.
        train: Train examples of a fold.
        settings: Rows of the batch, the norm that warns.
        seed: Base seed of the initial weights and of dropout.

    Raises:
        Exception: Whatever the model's or the loss's own code raises.
    """
    if len(train) < settings.probe_batch_rows:
        return too_few(len(train), settings.probe_batch_rows)
    batch = spread(train, settings.probe_batch_rows)
    model = prepare_model(workload, model_settings, train, seed=seed)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        num_frozen = sum(1 for _ in model.parameters())
        return Finding(
            outcome="fail",
            summary=f"The model has no trainable parameter ({num_frozen} are frozen).",
            kind="no gradients",
        )
    model.train()
    with Stream(derive_seed(seed, "poc_gradient_flow")).active():
        output = model(batch.x)
        loss = workload.loss(output, batch.y)
        wrong = _wrong_loss(loss, workload.losses(output.detach(), batch.y), len(batch))
        if wrong is not None:
            return wrong
        loss.backward()
    try:
        report = validate_gradients(model.named_parameters(), warn_norm=settings.warn_gradient_norm)
    except ContractError as error:
        return Finding(outcome="fail", summary=error.what, kind="NaN gradients")
    return _judge(report, settings.warn_gradient_norm)


def _wrong_loss(loss: object, losses: object, num_examples: int) -> Finding | None:
    for name, value in (("loss()", loss), ("losses()", losses)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
            return Finding(
                outcome="fail",
                summary=f"{name} must return a floating-point tensor, got {got}.",
                kind="loss not a number",
            )
    assert isinstance(loss, Tensor)
    assert isinstance(losses, Tensor)
    if loss.numel() != 1:
        return Finding(
            outcome="fail",
            summary=f"loss() must return one number, got a tensor of {shape(loss)} "
            f"for {num_examples} examples.",
            kind="wrong loss shape",
        )
    if tuple(losses.shape) != (num_examples,):
        return Finding(
            outcome="fail",
            summary=f"losses() must return one number per example, ({num_examples},), "
            f"got {shape(losses)}.",
            kind="wrong loss shape",
        )
    if not bool(torch.isfinite(loss)):
        return Finding(
            outcome="fail",
            summary=f"The loss of the first batch is {float(loss.detach())}.",
            kind="non-finite loss",
        )
    if not loss.requires_grad:
        return Finding(
            outcome="fail",
            summary="The loss depends on no trainable parameter.",
            kind="no gradients",
        )
    return None


def _judge(report: GradientReport, warn_norm: float) -> Finding:
    largest, norm = report.largest
    numbers: dict[str, float | int | str] = {
        "num_gradients": len(report.norms),
        "largest_norm": norm,
        "largest_parameter": largest,
        "mean_norm": report.mean_norm,
        "num_missing": len(report.missing),
        "num_zero": len(report.zero),
        "num_frozen": len(report.frozen),
    }
    total = len(report.norms) + len(report.missing)
    if report.missing:
        return Finding(
            outcome="fail",
            summary=f"{len(report.missing)} of {total} trainable parameters got no gradient: "
            f"{', '.join(report.missing)}.",
            numbers=numbers,
            kind="missing gradients",
        )
    if len(report.zero) == total:
        return Finding(
            outcome="fail",
            summary=f"All {total} gradients are exactly 0.",
            numbers=numbers,
            kind="zero gradients",
        )
    if report.large:
        return Finding(
            outcome="warn",
            summary=f"{len(report.large)} of {total} gradient norms are above {warn_norm:g}; the "
            f"largest is {norm:.4g}, of {largest}.",
            numbers=numbers,
            kind="explosion",
        )
    if report.zero:
        return Finding(
            outcome="warn",
            summary=f"{len(report.zero)} of {total} gradients are exactly 0: "
            f"{', '.join(report.zero)}.",
            numbers=numbers,
            kind="zero gradients",
        )
    return Finding(
        outcome="pass",
        summary=f"{total} of {total} parameters have a finite gradient; the largest norm is "
        f"{norm:.4g}, of {largest}.",
        numbers=numbers,
    )
