"""Reports what is random in a training, how it is seeded, and what would differ between runs."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field

from sluice.base.seeding import RandomStream, derive_seed, deterministic
from sluice.base.settings import Record
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.generator_sharing import OperationDraws, SharedGenerator, record_generator_use
from sluice.training.loop import train
from sluice.training.nondeterminism import (
    NondeterministicOperation,
    find_nondeterministic_operations,
)
from sluice.training.randomness_audit import RandomnessAudit, audit_randomness
from sluice.training.row_order import example_seeds
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_SEED_LABELS = {
    "initial weights": "init",
    "row order of epoch 1": "order_1",
    "dropout": "dropout",
    "loader processes": "loader",
}
"""Uses of random numbers in a training, each with the label from which ``derive_seed`` derives the
seed."""

_FIXES = {
    "PYTHONHASHSEED": " If your code iterates over sets of strings, start this process with "
    "PYTHONHASHSEED=0. Sluice starts its worker processes with this value.",
}


class RandomnessReport(Record):
    """Sources of randomness of a workload, their users, and nondeterministic operations."""

    audit: RandomnessAudit = Field(description="State of the sources inside a fold run.")
    draws: tuple[OperationDraws, ...] = Field(
        description="For each operation of the workload, the global generators that it changed."
    )
    shared: tuple[SharedGenerator, ...] = Field(
        description="Generators that several operations share."
    )
    nondeterministic: tuple[NondeterministicOperation, ...] = Field(
        description="Operations without a deterministic implementation that were called in an "
        "epoch of training on one batch."
    )
    findings: tuple[str, ...] = Field(description="Texts of the problems that were found.")


def examine_randomness(
    workload: Workload, model_settings: ModelSettings, training: TrainSettings, *, seed: int
) -> RandomnessReport:
    """Run every operation of a workload, train on one batch, and report what was random.

    The caller's generators are neither read nor changed.

    Args:
        workload: The workload; its rows are loaded and its features computed.
        model_settings: Architecture and size.
        training: Settings of the real training; one epoch on one batch runs in this process.
        seed: Base seed of the fold run.

    Raises:
        SluiceError: The workload breaks its contract.
        Exception: Any exception of the workload's code.
    """
    run_seed = derive_seed(seed, "unit")  # as in ``train_fold_run``
    run = _WorkloadRun(workload, model_settings, training, seed)
    has_augmentation = workload.augmentation is not None
    labels = _SEED_LABELS | ({"augmentation of epoch 1": "augment_1"} if has_augmentation else {})
    with RandomStream(run_seed).active():
        draws, shared = record_generator_use(run.operations, {})
        nondeterministic = find_nondeterministic_operations(run.fit)
    with RandomStream(run_seed).active(), deterministic():
        audit = audit_randomness(
            seed=run_seed,
            generators={
                name: torch.Generator().manual_seed(derive_seed(seed, label))
                for name, label in labels.items()
            },
            loaders={},
        )
    return RandomnessReport(
        audit=audit,
        draws=draws,
        shared=(*audit.shared, *shared),
        nondeterministic=nondeterministic,
        findings=_findings(audit, draws, nondeterministic),
    )


class _WorkloadRun:
    """Runs the operations of a workload, in the order of a pipeline run."""

    def __init__(
        self, workload: Workload, model: ModelSettings, training: TrainSettings, seed: int
    ) -> None:
        self._workload, self._model_settings, self._seed = workload, model, seed
        self._training = training.model_copy(update={"max_epochs": 1, "loader_workers": 0})
        self.operations: dict[str, Callable[[], Any]] = {
            "load_rows": self._load,
            "compute_features": self._compute,
            "examples": self._examples,
            "build_model": self._build,
            "loss and training": self.fit,
            "metrics": self._metrics,
        }
        if workload.augmentation is not None:
            self.operations["augment"] = self._augment
        self._rows: Examples
        self._model: Scaled

    def _load(self) -> None:
        self._raw = self._workload.load_rows()

    def _compute(self) -> None:
        self._frame = self._workload.compute_features(self._raw)

    def _examples(self) -> None:
        fold = self._workload.plan_folds(self._frame)[0]
        self._workload = fit_workload(self._workload, self._frame, fold)
        train = self._workload.examples(self._frame, fold.train)
        self._rows = train.take(torch.arange(min(self._training.batch_rows, len(train))))

    def _build(self) -> None:
        self._model = prepare_model(
            self._workload, self._model_settings, self._rows, seed=self._seed
        )

    def _augment(self) -> None:
        rows = torch.arange(len(self._rows))
        copied_rows = self._rows.take(rows)  # the augmentation may change rows in place
        seeds = example_seeds(rows, seed=self._seed, epoch=1)
        self._workload.augment(copied_rows.inputs, copied_rows.targets, seeds)

    def fit(self) -> None:
        """Train for one epoch on one batch."""
        groups = self._workload.parameter_groups(self._model.network)
        epochs = train(
            self._model,
            self._workload.loss,
            self._workload.losses,
            self._rows,
            self._rows,
            self._training,
            seed=self._seed,
            groups=groups,
            augment=self._workload.augmentation,
        )
        for _ in epochs:
            pass

    def _metrics(self) -> None:
        with torch.inference_mode():
            self._workload.metrics(self._model(self._rows.inputs), self._rows, self._frame)


def _findings(
    audit: RandomnessAudit,
    draws: tuple[OperationDraws, ...],
    nondeterministic: tuple[NondeterministicOperation, ...],
) -> tuple[str, ...]:
    findings = [
        f"{source.name}, {source.status}: {source.detail}.{_FIXES.get(source.name, '')}"
        for source in audit.sources
        if source.name in audit.unseeded
    ]
    for draw in draws:
        if draw.moved:
            findings.append(
                f"{draw.operation} uses {' and '.join(draw.moved)}, which any other code may "
                "change. Use a separate generator with its own seed."
            )
    findings += [
        f"{call.operation} has no deterministic implementation and is called {call.place}: a "
        "training in deterministic mode fails there. Use another operation."
        for call in nondeterministic
    ]
    findings += [
        f"{switch.name} is {switch.value}: a repeated run may give different bits."
        for switch in audit.switches
        if not switch.repeats
    ]
    return tuple(findings)
