"""One (seed, fold) unit: fitted once, resumed when it was stopped, never fitted twice.

A unit's key is the digest of all that determines its bits. Its folder ``runs/<key>`` holds the
checkpoints while it is fitted, its event log, and at the end ``result.json``.
"""

import contextlib
import fcntl
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json, short
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.files import make_folder, storage_error, write_atomic
from sluice.base.seeding import Stream, derive_seed, deterministic
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table
from sluice.eventlog.event_log import EventLog
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import discard_checkpoints, load_checkpoint
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.code import code_digest, optimizer_code
from sluice.training.device import device_type, resolve_device
from sluice.training.loop import EpochResult, TrainState, predict, train
from sluice.training.members import Member
from sluice.training.ranks import ONE, Ranks
from sluice.training.settings import NO_EFFECT, TrainSettings
from sluice.training.unit_log import epoch_fields, rewind
from sluice.training.unit_trace import UnitTrace, watched
from sluice.training.weights import pack_model
from sluice.workloads.load import load_workload
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """All that a process needs to fit one unit, wherever it runs."""

    workload: str
    """Import path, 'module:Class'."""
    workload_settings: dict[str, Any]
    model: ModelSettings
    training: TrainSettings
    seed: int
    fold: Fold
    table: TableRecord
    """The feature frame."""
    artifacts: Path
    runs: Path
    data_seed: int | None = None
    """Base seed of the row order; that of the unit when absent."""
    ranks: int = 1
    """Processes that fit the unit together. Sums in another order round differently, so it is part
    of the unit's key."""
    sys_path: tuple[str, ...] = ()
    """Folders to add to Python's path, so that the workload imports in another process."""

    @property
    def name(self) -> str:
        """How a unit is called in messages."""
        return f"Seed {self.seed}, fold {self.fold.fold_id}"


EventKind = Literal["started", "epoch", "finished", "reused", "lost", "replaces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEvent:
    """A piece of a unit's progress, for whoever watches."""

    kind: EventKind
    """'lost': its process or machine is gone, and it starts again from its last checkpoint;
    'replaces': one with other settings was left unfinished."""
    seed: int
    fold_id: int
    epochs_done: int
    max_epochs: int
    result: EpochResult | None = None
    """Of the epoch, for kind 'epoch'."""
    damaged_checkpoints: int = 0
    """Passed over on resuming, for kind 'started'."""
    reason: str = ""
    """How it was lost, for kind 'lost'."""


Hear = Callable[[UnitEvent], None]


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return datetime.now(UTC)


def train_unit(
    spec: UnitSpec,
    on_event: Hear,
    *,
    clock: Clock = utc_now,
    timer: Callable[[], float] = time.perf_counter,
    ranks: Ranks = ONE,
) -> Member:
    """Fit one unit, or return it when it is finished already.

    A unit that was stopped goes on from its last checkpoint and ends with the same bits as one
    that was not. A second process that wants the same unit waits for the first.

    Args:
        spec: What to fit.
        on_event: Hears of every epoch, on the first rank.
        clock: Gives the time of the log's events, with a time zone.
        timer: Monotonic time [s], by which checkpoints are paced.
        ranks: The processes that fit it together, ``spec.ranks`` of them; each calls this and gets
            the member. All need the artifacts, the first alone reads and writes in ``runs``.

    Raises:
        TrainingFailed: A loss or gradient is not finite, or another rank is gone.
        ContractError: The workload, its rows or its settings break their contract, or there are
            not as many ranks as the unit is for.
        SettingsError: The device is not there.
        StorageError: Something cannot be read or written; checkpoints before it are kept.
    """
    _require_ranks(spec, ranks)
    resolve_device(spec.training.device)  # one that is not there is refused before all else
    workload = open_workload(spec)
    subject = _subject(spec, workload)
    folder = _folder(spec, subject)
    if not ranks.is_first:
        on_event = _tell_nobody
    with _only_one(folder) if ranks.is_first else contextlib.nullcontext():
        member = ranks.from_first(lambda: _read_result(spec, subject))
        if member is not None:
            if ranks.is_first:
                discard_checkpoints(folder)
            on_event(unit_event(spec, "reused", member.epochs_run))
            return member
        with Stream(derive_seed(spec.seed, "unit")).active(), deterministic():
            fitted = _fit(spec, workload, subject, folder, on_event, clock, timer, ranks)
        member = ranks.from_first(lambda: fitted)
    assert member is not None
    on_event(unit_event(spec, "finished", member.epochs_run))
    return member


def find_finished(spec: UnitSpec) -> Member | None:
    """Return the unit's member when it is finished and its weights are sound, without fitting."""
    subject = describe(spec)
    member = _read_result(spec, subject)
    if member is not None:
        # Whoever fitted it may have been killed just before.
        discard_checkpoints(_folder(spec, subject))
    return member


def describe(spec: UnitSpec) -> dict[str, Any]:
    """Return all that determines the bits of the unit, by name; its digest names the folder."""
    return _subject(spec, open_workload(spec))


def folder_of(spec: UnitSpec) -> Path:
    """Return the folder of the unit's checkpoints and log."""
    return _folder(spec, describe(spec))


def open_workload(spec: UnitSpec) -> Workload:
    """Build the workload that ``spec`` names.

    Raises:
        SettingsError: It does not import, is no workload, or a setting of it is wrong.
    """
    sys.path.extend(folder for folder in spec.sys_path if folder not in sys.path)
    return load_workload(spec.workload, spec.workload_settings, where=spec.workload)


def _require_ranks(spec: UnitSpec, ranks: Ranks) -> None:
    if spec.ranks != ranks.split.world:
        raise ContractError(
            f"{spec.name} must be fitted by {spec.ranks} processes together, got "
            f"{ranks.split.world}.",
            cause="ranks_per_training was set, and the unit was started as if it was not.",
            fix="Start it with train_unit_on_ranks, or set ranks_per_training to 1.",
        )


def _tell_nobody(_: UnitEvent) -> None:
    pass


def _subject(spec: UnitSpec, workload: Workload) -> dict[str, Any]:
    """Return all that determines the bits of the unit; its digest is the unit's key."""
    return {
        "data": spec.table.digest,
        "workload": spec.workload,
        "workload_settings": workload.settings.model_dump(mode="json"),
        "model": spec.model.model_dump(mode="json"),
        "training": spec.training.model_dump(mode="json", exclude={*NO_EFFECT, "device"}),
        # What 'auto' means here: a CPU and a GPU do not give the same bits.
        "device": device_type(spec.training.device),
        "code": code_digest(workload, spec.model),
        **optimizer_code(spec.training),
        "torch": torch.__version__,
        "seed": spec.seed,
        "data_seed": spec.data_seed,
        "ranks": spec.ranks,
        "fold": spec.fold.model_dump(mode="json"),
    }


def _folder(spec: UnitSpec, subject: dict[str, Any]) -> Path:
    return spec.runs / short(digest_json(subject))


def _fit(
    spec: UnitSpec,
    workload: Workload,
    subject: dict[str, Any],
    folder: Path,
    on_event: Hear,
    clock: Clock,
    timer: Callable[[], float],
    ranks: Ranks,
) -> Member | None:
    """Return the member, or None on a rank that writes nothing."""
    store = ArtifactStore(spec.artifacts)
    frame = load_table(spec.table, store)
    fold = spec.fold
    rows = {
        "train": workload.examples(frame, fold.train),
        "val": workload.examples(frame, fold.val),
        "test": workload.examples(frame, fold.test),
    }
    model = prepare_model(workload, spec.model, rows["train"], seed=spec.seed)
    restored = ranks.from_first(lambda: load_checkpoint(folder, subject=subject))
    epochs = functools.partial(_epochs, spec, workload, model, rows, restored.state, ranks)
    if not ranks.is_first:
        for _ in epochs(keep=None):
            pass
        return None
    history = restored.state.history if restored.state else ()
    log_path = folder / "events.ndjson"
    rewind(log_path, spec.seed, fold.fold_id, rows, history, clock=clock)
    on_event(unit_event(spec, "started", len(history), damaged=len(restored.damaged)))

    checkpoints = CheckpointWriter(
        folder, subject=subject, every_epochs=spec.training.checkpoint_every_epochs, clock=timer
    )
    with EventLog(log_path, clock=clock) as log:

        def keep(state: TrainState) -> None:
            nonlocal history
            history = state.history
            # The log first: a checkpoint never covers an epoch that the log does not have.
            log.write("epoch_complete", **epoch_fields(spec.seed, fold.fold_id, history[-1]))
            checkpoints.offer(state)

        with watched(folder, on=spec.training.trace) as trace:
            for result in epochs(keep=keep):
                on_event(unit_event(spec, "epoch", result.epoch, result=result))

        best = history[workload.select_epoch({r.epoch: r.val_loss for r in history}) - 1]
        metrics = _test_metrics(workload, model, rows["test"], frame)
        log.write(
            "fold_complete",
            fold_id=fold.fold_id,
            seed=spec.seed,
            best_epoch=best.epoch,
            epochs_run=len(history),
            **{f"test_{name}": value for name, value in metrics.items()},
        )
    member = Member(
        seed=spec.seed,
        fold_id=fold.fold_id,
        weights=store.put(pack_model(model)),
        event_log=store.put(log_path.read_bytes()),
        best_epoch=best.epoch,
        epochs_run=len(history),
        train_loss=best.train_loss,
        val_loss=best.val_loss,
        test_metrics=metrics,
        trained_through=str(frame.index[max(fold.train.stop, fold.val.stop) - 1]),
        seconds=sum(result.seconds for result in history),
        **_findings(trace, store),
    )
    outcome = {"key": digest_json(subject), "member": member.model_dump(mode="json")}
    write_atomic(folder / "result.json", json.dumps(outcome, indent=2).encode())
    discard_checkpoints(folder)
    trace.print_messages()
    return member


def _findings(trace: UnitTrace, store: ArtifactStore) -> dict[str, Any]:
    diagnoses = trace.diagnoses()
    return {"diagnoses": diagnoses, "replay": trace.keep_replay(diagnoses, store)}


def _epochs(
    spec: UnitSpec,
    workload: Workload,
    model: Scaled,
    rows: Mapping[str, Examples],
    resume: TrainState | None,
    ranks: Ranks,
    *,
    keep: Callable[[TrainState], None] | None,
) -> Iterator[EpochResult]:
    return train(
        model,
        workload.loss,
        workload.losses,
        rows["train"],
        rows["val"],
        spec.training,
        seed=spec.seed,
        data_seed=spec.data_seed,
        select=workload.select_epoch,
        weigh=workload.loss_weight,
        groups=workload.parameter_groups(model.network),
        resume=resume,
        keep=keep,
        ranks=ranks,
    )


def _test_metrics(
    workload: Workload, model: Scaled, test: Examples, frame: pd.DataFrame
) -> dict[str, float]:
    with torch.inference_mode():
        metrics = workload.metrics(predict(model, test.x), test, frame)
    return {name: float(value) for name, value in metrics.items()}


def _read_result(spec: UnitSpec, subject: dict[str, Any]) -> Member | None:
    """Return the finished member, or None when it must be fitted (again)."""
    try:
        result = json.loads((_folder(spec, subject) / "result.json").read_bytes())
        if result["key"] != digest_json(subject):
            return None
        member = Member.model_validate(result["member"])
        store = ArtifactStore(spec.artifacts)
        store.get(member.weights)
        store.get(member.event_log)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IntegrityError):
        # Not ours, or damaged: fitting it again gives the same bits.
        return None
    return member


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the unit's lock; the operating system frees it when the process dies."""
    try:
        make_folder(folder)
        lock = (folder / "lock").open("ab")
    except OSError as error:
        raise storage_error(folder, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unit_event(
    spec: UnitSpec,
    kind: EventKind,
    epochs_done: int,
    *,
    result: EpochResult | None = None,
    damaged: int = 0,
    reason: str = "",
) -> UnitEvent:
    """Return a piece of progress of the unit that ``spec`` names."""
    return UnitEvent(
        kind=kind,
        seed=spec.seed,
        fold_id=spec.fold.fold_id,
        epochs_done=epochs_done,
        max_epochs=spec.training.max_epochs,
        result=result,
        damaged_checkpoints=damaged,
        reason=reason,
    )
