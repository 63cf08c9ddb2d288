"""The training loop: yields one result per epoch and ends with the best weights.

Covers: any optimizer with parameter groups, warmup and cosine schedule, clipping, changes during
training, early stopping, best weights, exact resume after any step, row sources, augmentation,
gradient accumulation, bf16 and fp16, activation checkpointing, a GPU, and several processes for one
model (``ranks``).
Does not cover: writing files.

Every source of randomness has its own seed, derived from the SHA-256 of ``<seed>_<label>``:

=================  ==============================  ==========================================
random numbers     label, after the base seed      where
=================  ==============================  ==========================================
initial weights    ``init``                        ``workloads.prepare_model``
row order          ``order_<epoch>``               ``training.row_order.epoch_order``
buckets            ``buckets_<epoch>_<pool>``      ``training.row_order.BatchPlan``
augmentation       ``augment_<epoch>``             ``training.row_order.example_seeds``
dropout etc.       ``dropout``                     ``train``, first rank; state in the checkpoint
dropout etc.       ``dropout_<rank>_<epoch>``      ``train``, other ranks
loader processes   ``loader``                      ``training.batches``; set, but never used
the user's code    ``unit``                        ``training.fold_run``: workload, metrics
=================  ==============================  ==========================================

``data_seed`` replaces the base seed of row order, buckets and augmentation only. So the data order
and the initial weights can be varied independently.

Shape legend: B = rows of a batch.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.out_of_memory import explain_out_of_memory
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream, derive_seed
from sluice.data.rows.protocol import RowSource
from sluice.data.rows.subset import SubsetRows
from sluice.models.dropout import require_dropout, set_dropout
from sluice.training.accumulation import LossFunction as LossFunction
from sluice.training.accumulation import LossWeight, count_rows, require_splittable
from sluice.training.batches import Batches
from sluice.training.cudnn_dropout import reseeded_cudnn_dropout
from sluice.training.device import place_rows, resolve_device, start_device
from sluice.training.epoch import (
    EpochStatistics,
    fit_epoch,
    non_finite_error,
)
from sluice.training.epoch_keeper import EpochKeeper
from sluice.training.memory_advice import describe_step, suggest_settings
from sluice.training.optimizer_state import restore_state, split_state
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.precision import MixedPrecision, ScaleState
from sluice.training.prediction import mean_loss as mean_loss
from sluice.training.prediction import predict as predict
from sluice.training.prediction import rows_per_chunk
from sluice.training.ranks import SINGLE_PROCESS, Ranks, RankShard
from sluice.training.recompute import recomputing
from sluice.training.settings import TrainSettings
from sluice.training.train_state import EpochProgress
from sluice.training.train_state import EpochResult as EpochResult
from sluice.training.train_state import TrainState as TrainState
from sluice.training.weights import differing_shapes
from sluice.workloads.best_epoch import best_epoch
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Augmentation

SelectEpoch = Callable[[Mapping[int, float]], int]
"""Function that maps the validation losses so far, by epoch, to the epoch whose weights are
kept."""


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
    select: SelectEpoch = best_epoch,
    loss_weight: LossWeight = count_rows,
    augment: Augmentation | None = None,
    resume: TrainState | None = None,
    on_state: Callable[[TrainState], None] | None = None,
    is_due: Callable[[], bool] | None = None,
    ranks: Ranks = SINGLE_PROCESS,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[EpochResult]:
    """Fit ``model`` in place; yield after every epoch; end with the weights of the selected epoch.

    Training stops after ``max_epochs``, or when the last ``patience_epochs`` epochs were not
    selected. If the caller stops iterating earlier, the model has the weights of the last epoch.
    The caller's random generators are neither read nor changed. For bit-identical results on every
    machine, run inside ``sluice.base.seeding.deterministic()``. If a GPU is selected, the model is
    moved to it, and back at the end; results are then bit-identical only on the same type of GPU.

    Args:
        model: Maps ``train.x`` to predictions.
        loss_fn: Function of (output, y) to the scalar that is minimised.
        losses_fn: Function of (output, y) to one loss per row (B,); their mean is the validation
            loss.
        train: Train rows.
        val: Validation rows, by which the epoch is selected.
        settings: Settings of the training.
        seed: Base seed, from which the seeds of row order and dropout are derived.
        data_seed: Base seed of row order and augmentation; ``seed`` if None.
        groups: The parameters to fit, as returned by ``Workload.parameter_groups``; one group of
            all trainable parameters if None.
        select: Maps validation losses by epoch to the epoch whose weights are kept. It must return
            the newest epoch or its previous result, because no other weights are kept.
        loss_weight: Maps targets to the number of items over which ``loss_fn`` averages; by default
            the number of rows. Used only if ``micro_batch_rows`` or ``ranks`` splits a batch.
        augment: Changes the examples of train batches at random, as ``Workload.augmentation``.
        resume: State to resume from, which an earlier call passed to ``on_state``.
        on_state: Called with the state to resume from: after every epoch, before its result is
            yielded; and within an epoch when ``is_due`` returns True, with a state that has
            ``progress``.
        is_due: Returns whether to call ``on_state`` now. Called after every step except the last of
            an epoch, and after every chunk of validation rows. Not called with several ranks: their
            states within an epoch differ.
        ranks: The processes that train the model together. Each process calls this function with
            the same arguments, except ``on_state``, ``is_due`` and ``clock``. Each process consumes
            all epochs, and ends with the same weights.
        clock: Monotonic time [s].

    Raises:
        TrainingFailed: A loss or a gradient is not finite; the message names epoch, step and cause.
        ContractError: There is nothing to train, ``groups`` are invalid, ``resume`` belongs to
            another model or other rows, ``select`` returned an epoch whose weights were not kept,
            a setting does not suit the network (``micro_batch_rows``, ``ranks``,
            ``recompute_activations``, a change of the dropout rate), or a row source breaks its
            contract.
        SettingsError: ``device`` is 'cuda' and not available, or the optimizer is invalid or
            refuses an argument.
        OutOfMemory: A step or the validation exceeds the memory.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ContractError(
            f"Training requires at least one trainable parameter, but {type(model).__name__} has "
            "none.",
            cause="Every parameter is frozen, or the network has no parameters.",
            fix="Set requires_grad on the parameters to train.",
        )
    original_device, device = trainable[0].device, resolve_device(settings.device)
    start_device(device)
    model.to(device)
    batches: Batches | None = None
    try:
        if settings.dropout_at(settings.max_epochs) is not None:
            require_dropout(model)
        optimizer = make_optimizer([{"params": trainable}] if groups is None else groups, settings)
        val_share = ranks.shard.share(torch.arange(len(val)), count_rows)
        val = place_rows(_local_examples(val, ranks.shard), device)
        val_chunk_rows = rows_per_chunk(val.x, model)
        batches = Batches(
            # With an augmentation, rows stay on the CPU. Otherwise, the device of its inputs would
            # depend on the free memory of the GPU.
            place_rows(train, device) if augment is None else train,
            batch_rows=settings.batch_rows,
            seed=seed if data_seed is None else data_seed,
            device=device,
            workers=settings.loader_workers,
            shard=ranks.shard,
            augment=augment,
            by_length=settings.bucket_by_length,
        )
        if setting := _batch_splitting_setting(settings, ranks, batches.max_rows):
            require_splittable(
                model, loss_fn, *batches.first_rows(3), loss_weight=loss_weight, setting=setting
            )
        wrapped_model = ranks.wrap(model)
        stream = RandomStream(derive_seed(seed, "dropout"), resume.rng if resume else None)
        history: list[EpochResult] = []
        selected_epoch, best_weights = 0, dict[str, Tensor]()
        progress: EpochProgress | None = None
        if resume is not None:
            _restore(model, optimizer, resume, batches.steps_per_epoch, ranks)
            history, selected_epoch, progress = (
                list(resume.history),
                resume.best_epoch,
                resume.progress,
            )
            best_weights = {name: tensor.clone() for name, tensor in resume.best.items()}
        mixed_precision = MixedPrecision(_scale_state(history, progress, settings), device)

        def make_state(
            rng: Mapping[str, Tensor], unfinished_epoch: EpochProgress | None = None
        ) -> TrainState:
            moments, tree = split_state(optimizer)
            return TrainState(
                history=tuple(history),
                steps=len(history) * batches.steps_per_epoch
                + (0 if unfinished_epoch is None else unfinished_epoch.steps),
                best_epoch=selected_epoch,
                model=model.state_dict(),
                best=best_weights,
                optimizer=moments,
                optimizer_tree=tree,
                rng=rng,
                progress=unfinished_epoch,
            )

        keeper: EpochKeeper | None = None
        # With several ranks, no state is stored within an epoch, because the first rank does not
        # have the losses of the other ranks.
        if on_state is not None and is_due is not None and ranks.shard.world_size == 1:
            store_state = on_state  # not None in the function below
            keeper = EpochKeeper(
                is_due,
                lambda rng, unfinished_epoch: store_state(make_state(rng, unfinished_epoch)),
                mixed_precision,
                steps_per_epoch=batches.steps_per_epoch,
                clock=clock,
            )
        while len(history) < settings.max_epochs and (
            len(history) - selected_epoch < settings.patience_epochs
        ):
            epoch, started_at = len(history) + 1, clock() - (progress.seconds if progress else 0.0)
            epoch_settings, dropout = settings.at(epoch), settings.dropout_at(epoch)
            if dropout is not None:
                set_dropout(model, dropout)
            if not ranks.is_first:
                # Ranks other than the first restart their stream in every epoch, because the
                # checkpoint contains only the state of the first rank's stream.
                stream = RandomStream(derive_seed(seed, f"dropout_{ranks.shard.rank}_{epoch}"))
            if keeper is not None:
                keeper.begin(epoch, epoch_settings, started_at=started_at)
            with stream.active():
                with (
                    reseeded_cudnn_dropout(model, device),
                    recomputing(model, is_enabled=settings.recompute_activations),
                    explain_out_of_memory(
                        describe_step(settings, batches.max_rows),
                        lambda: suggest_settings(settings, batches.max_rows),
                    ),
                ):
                    statistics, records = fit_epoch(
                        wrapped_model,
                        loss_fn,
                        batches,
                        optimizer,
                        mixed_precision,
                        epoch_settings,
                        epoch=epoch,
                        loss_weight=loss_weight,
                        ranks=ranks,
                        start=progress,
                        after_step=None if keeper is None else keeper.after_step,
                    )
                progress = None
                val_mean = mean_loss(
                    model,
                    losses_fn,
                    val,
                    chunk_size=val_chunk_rows,
                    after_chunk=None if keeper is None else keeper.make_chunk_callback(records),
                )
                val_loss = _mean_over_ranks(val_mean, val_share, ranks)
            if not math.isfinite(val_loss):
                raise non_finite_error(
                    "validation loss", val_loss, epoch, batches.steps_per_epoch, epoch_settings
                )
            scores = {result.epoch: result.val_loss for result in history} | {epoch: val_loss}
            previous_epoch, selected_epoch = selected_epoch, select(scores)
            if selected_epoch == epoch:
                best_weights = _copy_weights(model)
            elif selected_epoch != previous_epoch:
                raise _missing_epoch_weights_error(selected_epoch, previous_epoch, epoch)
            history.append(
                _epoch_result(
                    statistics,
                    mixed_precision,
                    epoch=epoch,
                    val_loss=val_loss,
                    improved=selected_epoch == epoch,
                    seconds=clock() - started_at,
                )
            )
            if on_state is not None:
                on_state(make_state(stream.state))
            yield history[-1]
        model.load_state_dict(best_weights)
        model.eval()
    finally:
        if batches is not None:
            batches.close()
        model.to(original_device)


def _batch_splitting_setting(settings: TrainSettings, ranks: Ranks, max_rows: int) -> str | None:
    """Return the setting that splits batches; None if batches are not split."""
    if ranks.shard.world_size > 1:
        return "ranks_per_training"
    micro_rows = settings.micro_batch_rows
    return "micro_batch_rows" if micro_rows is not None and micro_rows < max_rows else None


def _local_examples(rows: Examples, shard: RankShard) -> Examples:
    """Return the rows that belong to this rank."""
    if shard.world_size == 1:
        return rows
    local_positions = shard.local_rows(torch.arange(len(rows)))
    return dataclasses.replace(
        rows,
        x=_select_rows(rows.x, local_positions),
        y=_select_rows(rows.y, local_positions),
        rows=rows.rows[local_positions.numpy()],
    )


def _select_rows(source: Tensor | RowSource, rows: Tensor) -> Tensor | RowSource:
    return source[rows] if isinstance(source, Tensor) else SubsetRows(source, rows)


def _mean_over_ranks(mean: float, share: float, ranks: Ranks) -> float:
    """Return the mean over the rows of all ranks; a rank without rows adds 0."""
    weighted_mean = mean * share if share else 0.0
    return float(ranks.all_reduce_sum(torch.tensor(weighted_mean, dtype=torch.float64)))


def _epoch_result(
    statistics: EpochStatistics,
    mixed_precision: MixedPrecision,
    *,
    epoch: int,
    val_loss: float,
    improved: bool,
    seconds: float,
) -> EpochResult:
    scale_state = mixed_precision.state
    return EpochResult(
        epoch=epoch,
        train_loss=statistics.loss,
        val_loss=val_loss,
        learning_rate=statistics.learning_rate,
        grad_norm_mean=statistics.grad_norm_mean,
        grad_norm_max=statistics.grad_norm_max,
        clipped_share=statistics.clipped_share,
        improved=improved,
        seconds=seconds,
        precision=scale_state.precision,
        skipped_steps=statistics.skipped_steps,
        loss_scale=scale_state.scale,
        loss_scale_steps=scale_state.age_steps,
        failed_unscales=scale_state.failed_in_a_row,
    )


def _scale_state(
    history: list[EpochResult], progress: EpochProgress | None, settings: TrainSettings
) -> ScaleState:
    """Return the loss-scale state, which is stored in the progress or the last epoch's result."""
    if progress is not None:
        return progress.scale
    if not history:
        return ScaleState(precision=settings.precision)
    last_result = history[-1]
    return ScaleState(
        precision=last_result.precision,
        scale=last_result.loss_scale,
        age_steps=last_result.loss_scale_steps,
        failed_in_a_row=last_result.failed_unscales,
    )


def _restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    resume: TrainState,
    steps_per_epoch: int,
    ranks: Ranks,
) -> None:
    differences = differing_shapes(model.state_dict(), resume.model)
    if differences:
        raise ContractError(
            "The checkpoint does not fit the network; these tensors differ: "
            f"{'; '.join(differences[:5])}.",
            fix="Resume with the model settings of the checkpoint, or start in a new folder.",
        )
    steps_in_epoch = 0 if resume.progress is None else resume.progress.steps
    if steps_in_epoch and ranks.shard.world_size > 1:
        raise ContractError(
            f"{ranks.shard.world_size} ranks can resume only after an epoch, but the checkpoint is "
            f"after step {steps_in_epoch} of epoch {len(resume.history) + 1}.",
            cause="A training in one process wrote the checkpoint.",
            fix="Resume in one process, or start in a new folder.",
        )
    if (
        resume.steps != len(resume.history) * steps_per_epoch + steps_in_epoch
        or steps_in_epoch > steps_per_epoch
    ):
        raise ContractError(
            f"The checkpoint is at step {resume.steps} after "
            f"{pluralize(len(resume.history), 'epoch')}, but these rows make {steps_per_epoch} "
            "steps per epoch.",
            cause="The train rows or batch_rows changed.",
            fix="Resume with the rows and settings of the checkpoint, or start in a new folder.",
        )
    model.load_state_dict(resume.model)
    restore_state(optimizer, resume.optimizer, resume.optimizer_tree)


def _copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _missing_epoch_weights_error(
    selected_epoch: int, previous_epoch: int, epoch: int
) -> ContractError:
    alternative = f" or its previous result ({previous_epoch})" if previous_epoch else ""
    return ContractError(
        f"select_epoch must return the current epoch ({epoch}){alternative}, got {selected_epoch}.",
        cause="Only the weights of the selected epoch are kept.",
        fix="Make select_epoch depend only on the scores so far, and return either the current "
        "epoch or its previous result.",
    )
