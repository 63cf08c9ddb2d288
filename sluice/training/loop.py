"""The training loop: a generator that yields one result per epoch and ends with the best weights.

Covers: AdamW with parameter groups, warmup and cosine, clipping, early stopping, best weights,
exact resume.
Does not cover: writing anything, several devices, mixed precision.

Shape legend: N = train rows, B = rows of a batch, O = outputs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.errors import ContractError, TrainingFailed
from sluice.training.parameter_groups import ParameterGroups, make_optimizer, set_rate
from sluice.training.schedule import rate_at
from sluice.training.seeds import Stream, derive_seed
from sluice.training.selector import best_epoch
from sluice.training.settings import TrainSettings
from sluice.training.weights import differing_shapes
from sluice.workloads.workload import Examples

LossFunction = Callable[[Tensor, Tensor], Tensor]
Select = Callable[[Mapping[int, float]], int]

_EVAL_ROWS = 4096
"""Rows scored at once: bounds memory, and is part of the bits, so it is no setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """What one full pass over the train rows did."""

    epoch: int
    """Counted from 1."""
    train_loss: float
    """Mean over the epoch's batches while the weights moved, in the workload's loss unit."""
    val_loss: float
    """Mean over the validation rows after the epoch, in the workload's loss unit."""
    learning_rate: float
    """At the epoch's last step, of a group whose ``rate_share`` is 1."""
    grad_norm_mean: float
    """Of the global norms before clipping."""
    grad_norm_max: float
    clipped_share: float
    """Share of steps whose gradient was cut to ``clip_norm``."""
    improved: bool
    """The selector now prefers this epoch to all before."""
    seconds: float
    """Wall time of training and validation [s]; all other fields are the same in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """All that training needs to go on after an epoch as if nothing had happened (REPRO-4).

    The tensors are the live ones: write them down before training goes on.
    """

    history: tuple[EpochResult, ...]
    steps: int
    """Optimizer steps taken; the schedule's position."""
    best_epoch: int
    model: dict[str, Tensor]
    best: dict[str, Tensor]
    """The model's weights after ``best_epoch``."""
    optimizer: dict[str, Tensor]
    """Moments, by 'index of the parameter/name of the moment'."""
    rng: Mapping[str, Tensor]


def train(
    model: nn.Module,
    loss_fn: LossFunction,
    losses_fn: LossFunction,
    train: Examples,
    val: Examples,
    settings: TrainSettings,
    *,
    seed: int,
    groups: ParameterGroups | None = None,
    select: Select = best_epoch,
    resume: TrainState | None = None,
    keep: Callable[[TrainState], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[EpochResult]:
    """Fit ``model`` in place; yield after every epoch; leave it with the chosen epoch's weights.

    Stops after ``max_epochs``, or when the chosen epoch lies ``patience_epochs`` back. A caller
    that stops earlier keeps the weights of the last epoch. The caller's random generators are
    neither read nor moved. For the same bits everywhere, run inside ``seeds.deterministic()``.

    Args:
        model: From ``train.x`` to predictions.
        loss_fn: (output, y) to the scalar that is minimised.
        losses_fn: (output, y) to one loss per row (B,); their mean is the validation loss.
        train: Rows to fit.
        val: Rows to choose the epoch by.
        settings: How to fit.
        seed: Base seed; row order and dropout have their own, derived from it.
        groups: The parameters to fit, as ``Workload.parameter_groups`` returns them; one group
            of all trainable ones when absent.
        select: From validation loss by epoch to the epoch whose weights are kept. It may return
            the newest epoch or the one it returned before: other weights are not kept.
        resume: Where to go on, as ``keep`` received it.
        keep: Called after every epoch, before it is yielded, with all that is needed to go on.
        clock: Monotonic time [s].

    Raises:
        TrainingFailed: A loss or a gradient is not finite; epoch, step and cause are named.
        ContractError: Nothing to train, ``groups`` are not well-formed, ``resume`` is of another
            model or other rows, or ``select`` chose an epoch whose weights are gone.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ContractError(
            f"Training requires at least one trainable parameter, {type(model).__name__} has none.",
            cause="Every parameter is frozen, or the network holds none.",
            fix="Set requires_grad on what is to be fitted.",
        )
    optimizer = make_optimizer([{"params": trainable}] if groups is None else groups, settings)
    steps_per_epoch = math.ceil(len(train) / settings.batch_rows)
    stream = Stream(derive_seed(seed, "dropout"), resume.rng if resume else None)
    history: list[EpochResult] = []
    chosen, best = 0, dict[str, Tensor]()
    if resume is not None:
        _take_over(model, optimizer, resume, steps_per_epoch)
        history, chosen = list(resume.history), resume.best_epoch
        best = {name: tensor.clone() for name, tensor in resume.best.items()}

    while len(history) < settings.max_epochs and (len(history) - chosen < settings.patience_epochs):
        epoch, started = len(history) + 1, clock()
        with stream.active():
            fitted = _fit_epoch(model, loss_fn, train, optimizer, settings, seed=seed, epoch=epoch)
            val_loss = mean_loss(model, losses_fn, val)
        if not math.isfinite(val_loss):
            raise _diverged("validation loss", val_loss, epoch, steps_per_epoch, settings)
        scores = {result.epoch: result.val_loss for result in history} | {epoch: val_loss}
        before, chosen = chosen, select(scores)
        if chosen == epoch:
            best = _copy(model)
        elif chosen != before:
            raise _weights_gone(chosen, before, epoch)
        history.append(
            EpochResult(
                epoch=epoch,
                train_loss=fitted.loss,
                val_loss=val_loss,
                learning_rate=fitted.learning_rate,
                grad_norm_mean=fitted.grad_norm_mean,
                grad_norm_max=fitted.grad_norm_max,
                clipped_share=fitted.clipped_share,
                improved=chosen == epoch,
                seconds=clock() - started,
            )
        )
        if keep is not None:
            keep(
                TrainState(
                    history=tuple(history),
                    steps=epoch * steps_per_epoch,
                    best_epoch=chosen,
                    model=model.state_dict(),
                    best=best,
                    optimizer=_moments(optimizer),
                    rng=stream.state,
                )
            )
        yield history[-1]
    model.load_state_dict(best)
    model.eval()


def mean_loss(model: nn.Module, losses_fn: LossFunction, rows: Examples) -> float:
    """Return the mean of the per-row losses of ``model`` on ``rows``, without training it."""
    return float(losses_fn(predict(model, rows.x), rows.y).double().mean())


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Return the predictions for all rows of ``x``, in row order, without gradients."""
    training = model.training
    model.eval()
    with torch.inference_mode():
        output = torch.cat([model(part) for part in x.split(_EVAL_ROWS)])
    model.train(training)
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    loss: float
    learning_rate: float
    grad_norm_mean: float
    grad_norm_max: float
    clipped_share: float


def _fit_epoch(
    model: nn.Module,
    loss_fn: LossFunction,
    train: Examples,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    *,
    seed: int,
    epoch: int,
) -> _Fitted:
    model.train()
    order = torch.Generator().manual_seed(derive_seed(seed, f"order_{epoch}"))
    batches = torch.randperm(len(train), generator=order).split(settings.batch_rows)
    first_step, total_steps = (epoch - 1) * len(batches), settings.max_epochs * len(batches)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rate, losses, norms = 0.0, [], []
    for index, rows in enumerate(batches):
        loss = loss_fn(model(train.x.index_select(0, rows)), train.y.index_select(0, rows))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(parameters, settings.clip_norm, foreach=True))
        rate = rate_at(first_step + index, total_steps, settings)
        set_rate(optimizer, rate)
        optimizer.step()
        losses.append(loss.detach())
    # Read once an epoch: a read per step makes an accelerator wait at every step.
    loss_S, norm_S = torch.stack(losses).double(), torch.stack(norms).double()
    bad = (~(loss_S.isfinite() & norm_S.isfinite())).nonzero().flatten()
    if len(bad):
        at = int(bad[0])
        name, values = "training loss", loss_S
        if loss_S[at].isfinite():
            name, values = "gradient norm", norm_S
        raise _diverged(name, float(values[at]), epoch, len(batches), settings, step=at + 1)
    weight_S = torch.tensor([len(rows) for rows in batches], dtype=torch.float64)
    return _Fitted(
        loss=float((loss_S * weight_S).sum() / weight_S.sum()),
        learning_rate=rate,
        grad_norm_mean=float(norm_S.mean()),
        grad_norm_max=float(norm_S.max()),
        clipped_share=float((norm_S > settings.clip_norm).double().mean()),
    )


def _take_over(
    model: nn.Module, optimizer: torch.optim.Optimizer, resume: TrainState, steps_per_epoch: int
) -> None:
    differing = differing_shapes(model.state_dict(), resume.model)
    if differing:
        raise ContractError(
            f"The checkpoint must fit the network; these differ: {'; '.join(differing[:5])}.",
            fix="Resume with the model settings it was written with, or start in a fresh folder.",
        )
    if resume.steps != len(resume.history) * steps_per_epoch:
        raise ContractError(
            f"The checkpoint is at step {resume.steps} after {len(resume.history)} epochs, "
            f"these rows make {steps_per_epoch} steps an epoch.",
            cause="The train rows or batch_rows changed.",
            fix="Resume with the rows and settings it was written with, or start afresh.",
        )
    model.load_state_dict(resume.model)
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in resume.optimizer.items():
        index, _, name = key.partition("/")
        moments.setdefault(int(index), {})[name] = tensor.clone()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{index}/{name}": tensor
        for index, state in optimizer.state_dict()["state"].items()
        for name, tensor in state.items()
    }


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _diverged(
    name: str,
    value: float,
    epoch: int,
    steps_per_epoch: int,
    settings: TrainSettings,
    *,
    step: int | None = None,
) -> TrainingFailed:
    place = f"epoch {epoch}" + (f", step {step} of {steps_per_epoch}" if step else "")
    what = f"The {name} must be finite, got {value} at {place}."
    if epoch == 1 and step == 1:
        return TrainingFailed(
            what,
            cause="No weight had moved yet, so it comes from the rows or the loss, not from "
            "training: NaN or infinity in an input or target, a logarithm or division by zero.",
            fix="Check the batch's inputs and targets, then the loss function, on finite rows.",
        )
    return TrainingFailed(
        what,
        cause=f"Most likely the learning rate (peak {settings.learning_rate:g}) is too high.",
        fix=f"Lower learning_rate (try {settings.learning_rate / 10:g}) or clip_norm "
        f"(now {settings.clip_norm:g}), and check rare rows for NaN and infinity.",
    )


def _weights_gone(chosen: int, before: int, epoch: int) -> ContractError:
    return ContractError(
        f"select_epoch returned epoch {chosen} after epoch {epoch}; it may return {epoch} or "
        f"{before or 'nothing else'}, which it returned before.",
        cause="Only the weights of the chosen epoch are kept.",
        fix="Let the rule depend on the scores so far and never go back to a passed-over epoch.",
    )
