"""The training loop: a generator that yields one result per epoch and ends with the best weights.

Covers: any optimizer with parameter groups, warmup and cosine, clipping, all with changes in
mid-training, early stopping, best weights, exact resume; accumulation, bf16 and fp16, recomputed
activations, a GPU; several processes for one model (``ranks``).
Does not cover: writing anything.

Every source of randomness has a seed of its own, the SHA-256 of ``<seed>_<stage>`` (TRACE-6):

=================  ==============================  ==========================================
what is drawn      stage, after the base seed      where
=================  ==============================  ==========================================
initial weights    ``init``                        ``models.scaled.prepare_model``
row order          ``order_<epoch>``               ``training.batches.epoch_order``
dropout and all    ``dropout``                     ``train``; the state is in the checkpoint
else while fitting ``dropout_<rank>_<epoch>``      ``train``, in ranks but the first
loader processes   ``loader``                      ``training.batches``; draws no number used
the user's code    ``unit``                        ``training.unit``: workload, metrics
=================  ==============================  ==========================================

``data_seed`` replaces the base seed of the row order alone, so the same weights and dropout can be
fitted in another order, or the other way round.

Shape legend: N = train rows, B = rows of a batch, O = outputs.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.out_of_memory import naming_memory, scoring_fix
from sluice.base.pluralize import counted
from sluice.base.seeding import Stream, derive_seed
from sluice.models.dropout import require_dropout, set_dropout
from sluice.training.accumulation import LossFunction as LossFunction
from sluice.training.accumulation import Weigh, count_rows, require_separable
from sluice.training.batches import Batches
from sluice.training.device import device_of, place, resolve_device, start_device
from sluice.training.epoch import Fitted, diverged, fit_epoch
from sluice.training.memory_advice import first_steps, step_of
from sluice.training.optimizer_state import restore_state, split_state
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.precision import Arithmetic, ScaleState
from sluice.training.ranks import ONE, Ranks, Split
from sluice.training.recompute import recomputing
from sluice.training.settings import Precision, TrainSettings
from sluice.training.weights import differing_shapes
from sluice.workloads.best_epoch import best_epoch
from sluice.workloads.workload import Examples

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
    precision: Precision = "fp32"
    """In effect after the epoch: fp32 once fp16 was given up (TRACE-10)."""
    skipped_steps: int = 0
    """Steps that fp16 left out because their gradient overflowed."""
    loss_scale: float = ScaleState(precision="fp16").scale
    """Of fp16, after the epoch; of no effect in another precision."""
    loss_scale_steps: int = 0
    """Sound steps since the scale last changed."""
    failed_unscales: int = 0
    """Steps left out in a row, up to the epoch's last."""


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
    optimizer_tree: Mapping[str, Any]
    """Numbers of the optimizer's state beside its tensors, as ``split_state`` returns them."""
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
    data_seed: int | None = None,
    groups: ParameterGroups | None = None,
    select: Select = best_epoch,
    weigh: Weigh = count_rows,
    resume: TrainState | None = None,
    keep: Callable[[TrainState], None] | None = None,
    ranks: Ranks = ONE,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[EpochResult]:
    """Fit ``model`` in place; yield after every epoch; leave it with the chosen epoch's weights.

    Stops after ``max_epochs``, or when the chosen epoch lies ``patience_epochs`` back. A caller
    that stops earlier keeps the weights of the last epoch. The caller's random generators are
    neither read nor moved. For the same bits everywhere, run inside ``seeds.deterministic()``.
    On a GPU the model is moved there and, at the end, back; the bits are those of one kind of GPU.

    Args:
        model: From ``train.x`` to predictions.
        loss_fn: (output, y) to the scalar that is minimised.
        losses_fn: (output, y) to one loss per row (B,); their mean is the validation loss.
        train: Rows to fit.
        val: Rows to choose the epoch by.
        settings: How to fit.
        seed: Base seed; row order and dropout have their own, derived from it.
        data_seed: Base seed of the row order; ``seed`` when absent.
        groups: The parameters to fit, as ``Workload.parameter_groups`` returns them; one group
            of all trainable ones when absent.
        select: From validation loss by epoch to the epoch whose weights are kept. It may return
            the newest epoch or the one it returned before: other weights are not kept.
        weigh: From a part's targets to what ``loss_fn`` is the mean over, when that is not rows;
            read only where ``micro_batch_rows`` or ``ranks`` splits a batch.
        resume: Where to go on, as ``keep`` received it.
        keep: Called after every epoch, before it is yielded, with all that is needed to go on.
        ranks: The processes that fit the model together; each calls this with the same arguments
            and the same ``resume``, takes all epochs, and ends with the same weights. Only ``keep``
            and ``clock`` may differ.
        clock: Monotonic time [s].

    Raises:
        TrainingFailed: A loss or a gradient is not finite; epoch, step and cause are named.
        ContractError: Nothing to train, ``groups`` are not well-formed, ``resume`` is of another
            model or other rows, ``select`` chose an epoch whose weights are gone, or a setting
            does not suit the network: ``micro_batch_rows``, ``ranks``, ``recompute_activations``,
            a change of the dropout rate.
        SettingsError: ``device`` is 'cuda' and there is none, or the optimizer or one of its
            arguments is refused.
        OutOfMemory: A step or the validation needs more memory than there is.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ContractError(
            f"Training requires at least one trainable parameter, {type(model).__name__} has none.",
            cause="Every parameter is frozen, or the network holds none.",
            fix="Set requires_grad on what is to be fitted.",
        )
    home, device = trainable[0].device, resolve_device(settings.device)
    start_device(device)
    model.to(device)
    try:
        if settings.dropout_at(settings.max_epochs) is not None:
            require_dropout(model)
        optimizer = make_optimizer([{"params": trainable}] if groups is None else groups, settings)
        val_share = ranks.split.share(val.y, count_rows)
        val = place(_part(val, ranks.split), device)
        batches = Batches(
            place(train, device),
            batch_rows=settings.batch_rows,
            seed=seed if data_seed is None else data_seed,
            device=device,
            workers=settings.loader_workers,
            split=ranks.split,
        )
        if splits := _splits(settings, ranks, batches.largest):
            require_separable(model, loss_fn, *batches.first(3), weigh=weigh, setting=splits)
        called = ranks.wrap(model)
        stream = Stream(derive_seed(seed, "dropout"), resume.rng if resume else None)
        history: list[EpochResult] = []
        chosen, best = 0, dict[str, Tensor]()
        if resume is not None:
            _take_over(model, optimizer, resume, batches.steps)
            history, chosen = list(resume.history), resume.best_epoch
            best = {name: tensor.clone() for name, tensor in resume.best.items()}
        arithmetic = Arithmetic(_scale_state(history, settings), device)

        while len(history) < settings.max_epochs and (
            len(history) - chosen < settings.patience_epochs
        ):
            epoch, started = len(history) + 1, clock()
            now, dropout = settings.at(epoch), settings.dropout_at(epoch)
            if dropout is not None:
                set_dropout(model, dropout)
            if not ranks.is_first:
                # Not in the checkpoint, which the first rank writes.
                stream = Stream(derive_seed(seed, f"dropout_{ranks.split.rank}_{epoch}"))
            with stream.active():
                with (
                    recomputing(model, on=settings.recompute_activations),
                    naming_memory(
                        step_of(settings, batches.largest),
                        lambda: first_steps(settings, batches.largest),
                    ),
                ):
                    fitted = fit_epoch(
                        called,
                        loss_fn,
                        batches,
                        optimizer,
                        arithmetic,
                        now,
                        epoch=epoch,
                        weigh=weigh,
                        ranks=ranks,
                    )
                val_loss = _total(mean_loss(model, losses_fn, val), val_share, ranks)
            if not math.isfinite(val_loss):
                raise diverged("validation loss", val_loss, epoch, batches.steps, now)
            scores = {result.epoch: result.val_loss for result in history} | {epoch: val_loss}
            before, chosen = chosen, select(scores)
            if chosen == epoch:
                best = _copy(model)
            elif chosen != before:
                raise _weights_gone(chosen, before, epoch)
            history.append(
                _result(
                    fitted,
                    arithmetic,
                    epoch=epoch,
                    val_loss=val_loss,
                    improved=chosen == epoch,
                    seconds=clock() - started,
                )
            )
            if keep is not None:
                moments, tree = split_state(optimizer)
                keep(
                    TrainState(
                        history=tuple(history),
                        steps=epoch * batches.steps,
                        best_epoch=chosen,
                        model=model.state_dict(),
                        best=best,
                        optimizer=moments,
                        optimizer_tree=tree,
                        rng=stream.state,
                    )
                )
            yield history[-1]
        model.load_state_dict(best)
        model.eval()
    finally:
        model.to(home)


def mean_loss(model: nn.Module, losses_fn: LossFunction, rows: Examples) -> float:
    """Return the mean of the per-row losses of ``model`` on ``rows``, without training it."""
    output = predict(model, rows.x)
    return float(losses_fn(output, rows.y.to(output.device)).double().mean())


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Return the predictions for all rows of ``x``, in row order, where the model is, in fp32."""
    training, device = model.training, device_of(model, x.device)
    model.eval()
    work = f"predicting {len(x)} rows, {min(len(x), _EVAL_ROWS)} at once"
    with torch.inference_mode(), naming_memory(work, scoring_fix):
        output = torch.cat([model(part.to(device)) for part in x.split(_EVAL_ROWS)])
    model.train(training)
    return output


def _splits(settings: TrainSettings, ranks: Ranks, largest: int) -> str | None:
    """Return the setting that splits batches, or None when they stay whole."""
    if ranks.split.world > 1:
        return "ranks_per_training"
    micro_rows = settings.micro_batch_rows
    return "micro_batch_rows" if micro_rows is not None and micro_rows < largest else None


def _part(rows: Examples, split: Split) -> Examples:
    if split.world == 1:
        return rows
    own = split.own(torch.arange(len(rows)))
    return dataclasses.replace(rows, x=rows.x[own], y=rows.y[own], rows=rows.rows[own.numpy()])


def _total(mean: float, share: float, ranks: Ranks) -> float:
    """Return the mean over the rows of all ranks; a rank that has none adds nothing."""
    part = mean * share if share else 0.0
    return float(ranks.total(torch.tensor(part, dtype=torch.float64)))


def _result(
    fitted: Fitted,
    arithmetic: Arithmetic,
    *,
    epoch: int,
    val_loss: float,
    improved: bool,
    seconds: float,
) -> EpochResult:
    scale = arithmetic.state
    return EpochResult(
        epoch=epoch,
        train_loss=fitted.loss,
        val_loss=val_loss,
        learning_rate=fitted.learning_rate,
        grad_norm_mean=fitted.grad_norm_mean,
        grad_norm_max=fitted.grad_norm_max,
        clipped_share=fitted.clipped_share,
        improved=improved,
        seconds=seconds,
        precision=scale.precision,
        skipped_steps=fitted.skipped_steps,
        loss_scale=scale.scale,
        loss_scale_steps=scale.age_steps,
        failed_unscales=scale.failed_in_a_row,
    )


def _scale_state(history: list[EpochResult], settings: TrainSettings) -> ScaleState:
    """The scale is in the epochs' results, and so in every checkpoint."""
    if not history:
        return ScaleState(precision=settings.precision)
    last = history[-1]
    return ScaleState(
        precision=last.precision,
        scale=last.loss_scale,
        age_steps=last.loss_scale_steps,
        failed_in_a_row=last.failed_unscales,
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
            f"The checkpoint is at step {resume.steps} after "
            f"{counted(len(resume.history), 'epoch')}, these rows make {steps_per_epoch} "
            "steps an epoch.",
            cause="The train rows or batch_rows changed.",
            fix="Resume with the rows and settings it was written with, or start afresh.",
        )
    model.load_state_dict(resume.model)
    restore_state(optimizer, resume.optimizer, resume.optimizer_tree)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _weights_gone(chosen: int, before: int, epoch: int) -> ContractError:
    return ContractError(
        f"select_epoch returned epoch {chosen} after epoch {epoch}; it may return {epoch} or "
        f"{before or 'nothing else'}, which it returned before.",
        cause="Only the weights of the chosen epoch are kept.",
        fix="Let the rule depend on the scores so far and never go back to a passed-over epoch.",
    )
